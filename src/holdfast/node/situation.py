"""What a node knows at a moment, and the questions about it that more than one decision asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.log.ledger import Ledger
from holdfast.model import END_OF_TIME, FIRST_BUCKET, MANY_SHARDS, Advanced, JournalItem
from holdfast.node.delivery import Delivery, DeliveryPhase
from holdfast.node.intake import Intake
from holdfast.node.messages import Order
from holdfast.node.options import NodeOptions
from holdfast.node.units import Phase, Unit, UnitKey
from holdfast.plan import ProducerSource, Stage, Topology


@dataclass(slots=True)
class SlotState:
    """What the node knows of a slot: the order it is at, and how long to leave it alone after failures."""

    number: int
    order: Order | None = None
    started_us: int = 0
    failures: int = 0
    blocked_until_us: int = 0


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
    units: dict[UnitKey, Unit] = field(default_factory=dict)
    intakes: dict[str, Intake] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    bucket_there: dict[str, int] = field(default_factory=dict)
    """With `available_now`: up to where the streams of producers reached when the node started."""
    bumped: bool = False
    """With `available_now`: all input is logged, and the boundaries have passed its last bucket."""

    def units_of(self, stage: str) -> Iterable[Unit]:
        return (self.units[stage, shard] for shard in range(self.topology.shards))

    def target(self, stage: Stage) -> int:
        """Return the end of the stable buckets: every input's boundary has passed it."""
        return min((self.stream_end(read.stream) for read in stage.inputs), default=FIRST_BUCKET)

    def processable(self, stage: Stage) -> int:
        """Return how far the stage's units may go now: with `available_now` the last bucket waits for its `Ended`."""
        target = self.target(stage)
        if not self.options.available_now or target == FIRST_BUCKET or self.ledger.ended(stage.name) == target:
            return target
        return target - 1

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
        most = 0
        for stage in self.stages.values():
            behind = min((unit.bucket_memory for unit in self.units_of(stage.name)), default=FIRST_BUCKET)
            frames = [frame for read in stage.inputs for frame in self.ledger.frames(read.stream, behind, END_OF_TIME)]
            most = max(most, sum(frame.rows for frame in frames))
        return most

    def all_logged(self) -> bool:
        """Return whether everything that was there at the start is in the journal."""
        for intake in self.intakes.values():
            if not (intake.looks and intake.settled and intake.idle):
                return False
        if any(isinstance(item, Advanced) for ticket in self.tickets.values() for item in ticket.items):
            return False
        return all(self.stream_end(stream) >= bucket for stream, bucket in self.bucket_there.items())

    def all_processed(self) -> bool:
        """Return whether, with `available_now`, every unit has committed the end of the input."""
        if not (self.options.available_now and self.bumped):
            return False
        return all(
            unit.bucket_committed >= self.end_wanted(stage) and unit.phase is not Phase.COMMITTING
            for stage in self.stages.values()
            for unit in self.units_of(stage.name)
        )

    def end_wanted(self, stage: Stage) -> int:
        """Return where a stage stops with `available_now`: where it ended, or where its input is."""
        target = self.target(stage)
        ended = self.ledger.ended(stage.name)
        if ended is None or self.has_rows(stage, ended, target):
            return target
        return ended

    def is_delivered(self, delivery: Delivery) -> bool:
        if delivery.phase is not DeliveryPhase.IDLE:
            return False
        stream = delivery.sink.stream
        return not self.ledger.frames(stream, delivery.bucket_done, self.output_end(stream))

    def replay_from(self, unit: Unit) -> int:
        """Return the oldest bucket that a unit may have to read again: the newer snapshot may turn out unreadable."""
        kept = [snapshot.bucket_end for snapshot in self.ledger.snapshots(unit.stage, unit.shard)]
        return kept[0] if len(kept) > 1 else FIRST_BUCKET

    def note_what_is_there(self) -> None:
        for source in self.topology.sources:
            if isinstance(source.origin, ProducerSource):
                frame = self.ledger.last_frame(source.name, MANY_SHARDS)
                self.bucket_there[source.name] = FIRST_BUCKET if frame is None else frame.bucket_end
