"""What a node knows at a moment, and the questions about it that more than one decision asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.log.ledger import Ledger
from holdfast.model import END_OF_TIME, FIRST_BUCKET, JournalItem, Published, StageBegun
from holdfast.node.delivery import Delivery, DeliveryPhase
from holdfast.node.intake import Intake
from holdfast.node.messages import AttachWork, DeliverWork, ForgetWork, IngestWork, Order, ProcessWork, Work
from holdfast.node.options import NodeOptions
from holdfast.node.trouble import Troubles
from holdfast.node.units import Unit, UnitKey
from holdfast.plan import Stage, Topology

JOBS_SLOT: Final = -1


@dataclass(slots=True)
class SlotState:
    """What the node knows of a slot: the order it is at, and how long to leave it alone after failures.

    The one with the number `JOBS_SLOT` is no core: it stands for the Spark jobs of the stages that are a function of
    the user's from DataFrame to DataFrame. Units of these live there, and no others.
    """

    number: int
    order: Order | None = None
    started_us: int = 0
    failures: int = 0
    blocked_until_us: int = 0
    catches_up: bool = False
    """Whether its order is work of a stage or sink that catches up."""
    credit_us: int = 0
    """How much longer it has worked for the others of late."""


@dataclass(slots=True)
class Ticket:
    """A commit under way, and what becomes of it."""

    items: list[JournalItem]
    units: list[tuple[UnitKey, int, int]] = field(default_factory=list)
    """(unit, its bucket in memory, its bucket in the journal) once this is committed."""
    intended: list[str] = field(default_factory=list)
    concluded: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Situation:
    """Everything that the decider changes and the scheduler reads."""

    topology: Topology
    ledger: Ledger
    options: NodeOptions
    now_us: int
    adopted: frozenset[str] = frozenset()
    """Producers' streams that have no producer now: with `available_now` the node ends them."""
    stages: dict[str, Stage] = field(default_factory=dict)
    slots: dict[int, SlotState] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    leavings: dict[str, list[ForgetWork]] = field(default_factory=dict)
    """By host: what it may still hold of units that live elsewhere."""
    units: dict[UnitKey, Unit] = field(default_factory=dict)
    intakes: dict[str, Intake] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    """Rows of each source that were rejected in this run, when they were read or in a step."""
    troubles: Troubles = field(default_factory=Troubles)
    ends: dict[str, int] | None = None
    """With `available_now`: the bucket end at which each stage stops, once that is decided."""
    waiting: set[str] = field(default_factory=set)
    """New stages with an input that cannot be read yet: where they begin is not decided."""
    begun: dict[str, StageBegun] = field(default_factory=dict)
    """Where the stages began that came later."""
    catching_up: set[str] = field(default_factory=set)
    """Stages that were far behind others when the node started, and have not reached their inputs yet."""

    def begins(self, stage: str) -> int:
        """Return the bucket as of which a unit of the stage is empty."""
        begun = self.begun.get(stage)
        return FIRST_BUCKET if begun is None else begun.bucket_start

    def stage_of(self, work: Work) -> str:
        """Return the stage that a piece of work is about; of what only sources have, one that reads the source."""
        match work:
            case ProcessWork() | AttachWork() | ForgetWork():
                return work.stage
            case DeliverWork():
                named = work.stream
            case IngestWork():
                named = work.source
        readers = (stage.name for stage in self.stages.values() if any(read.stream == named for read in stage.inputs))
        return named if named in self.stages else next(readers, next(iter(self.stages)))

    def is_read(self, stage: str) -> bool:
        """Return whether another stage waits for this one's buckets."""
        return any(read.stream == stage for reader in self.stages.values() for read in reader.inputs)

    def units_of(self, stage: str) -> Iterable[Unit]:
        return (self.units[stage, shard] for shard in range(self.topology.shards))

    def target(self, stage: Stage) -> int:
        """Return the end of the stable buckets: every input's boundary has passed it."""
        return min((self.stream_end(read.stream) for read in stage.inputs), default=FIRST_BUCKET)

    def processable(self, stage: Stage) -> int:
        """Return how far the stage's units may go now: with `available_now` the last bucket waits for its `Ended`."""
        target = self.target(stage)
        if not self.options.available_now or target == FIRST_BUCKET:
            return target
        if self.ends is None:
            return target - 1
        end = self.ends[stage.name]
        return min(target, end) if self.ledger.ended(stage.name) == end else min(target, end - 1)

    def stream_end(self, stream: str) -> int:
        bucket_end = self.ledger.stream_bucket_end(stream)
        return FIRST_BUCKET if bucket_end is None else bucket_end

    def has_rows(self, stage: Stage, bucket_from: int, bucket_to: int) -> bool:
        return any(self.ledger.frames(read.stream, bucket_from, bucket_to) for read in stage.inputs)

    def output_end(self, stream: str) -> int:
        """Return the bucket before which every unit of the stream's stage has committed."""
        stage = stream if stream in self.stages else None
        if stage is None:
            return self.stream_end(stream)
        return min(unit.bucket_committed for unit in self.units_of(stage))

    def rows_ahead(self) -> int:
        """Return how many rows are logged and wait to be processed, for the stage that has most of them."""
        waiting = (self._frames_ahead(stage) for stage in self.stages.values())
        return max((sum(frame.rows for frame in frames) for frames in waiting), default=0)

    def _frames_ahead(self, stage: Stage) -> list[Published]:
        behind = min((unit.bucket_memory for unit in self.units_of(stage.name)), default=FIRST_BUCKET)
        return [f for read in stage.inputs for f in self.ledger.frames(read.stream, behind, END_OF_TIME)]

    def may_ingest(self, source: str) -> bool:
        """Return whether a source may bring more rows now: what waits for the stages is bounded.

        A stage that catches up has a lot before it anyhow, and holds up nobody else's rows. A bucket that nobody but
        the source can complete is not held up by its own rows, however many it has.
        """
        limit = self.options.ingest_ahead_rows
        for stage in self.stages.values():
            if stage.name in self.catching_up:
                continue
            frames = self._frames_ahead(stage)
            processable = self.processable(stage)
            if sum(frame.rows for frame in frames if frame.bucket_start < processable) > limit:
                return False
            reads = any(read.stream == source for read in stage.inputs)
            # With `available_now` all that is there gets logged anyhow, and an input that is done moves no boundary.
            waits_for_others = reads and not self.options.available_now and self.stream_end(source) > processable
            if waits_for_others and sum(frame.rows for frame in frames) > limit:
                return False
        return True

    def is_delivered(self, delivery: Delivery) -> bool:
        if delivery.phase is not DeliveryPhase.IDLE:
            return False
        stream = delivery.sink.stream
        return not self.ledger.frames(stream, delivery.bucket_done, self.output_end(stream))

    def kept_from(self, stage: Stage) -> int:
        """Return the first bucket of which all inputs of a stage are still there."""
        trimmed = [self.ledger.trimmed_before(read.stream) for read in stage.inputs]
        return max((bucket for bucket in trimmed if bucket is not None), default=FIRST_BUCKET)

    def replay_from(self, unit: Unit) -> int:
        """Return the oldest bucket that a unit may have to read again: the newer snapshot may turn out unreadable."""
        if self.stages[unit.stage].aggregation is None:
            # What keeps no state has nothing to rebuild.
            return unit.bucket_committed
        kept = [snapshot.bucket_end for snapshot in self.ledger.snapshots(unit.stage, unit.shard)]
        return kept[0] if len(kept) > 1 else self.begins(unit.stage)
