"""What a node knows at a moment, and the questions about it that more than one decision asks. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.log.ledger import Ledger
from holdfast.model import END_OF_TIME, FIRST_BUCKET, MANY_SHARDS, Advanced, JournalItem, Published
from holdfast.node.delivery import Delivery, DeliveryPhase
from holdfast.node.intake import Intake
from holdfast.node.messages import Order
from holdfast.node.options import NodeOptions
from holdfast.node.units import Phase, Unit, UnitKey
from holdfast.plan import Stage, Topology


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
    unread: set[str] = field(default_factory=set)
    """Producers' streams that somebody was taking over when the node started: what is there is not known yet."""
    stages: dict[str, Stage] = field(default_factory=dict)
    slots: dict[int, SlotState] = field(default_factory=dict)
    units: dict[UnitKey, Unit] = field(default_factory=dict)
    intakes: dict[str, Intake] = field(default_factory=dict)
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    tickets: dict[int, Ticket] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    """Rows of each source that were rejected in this run, when they were read or in a step."""
    bucket_there: dict[str, int] = field(default_factory=dict)
    """With `available_now`: the end of each source's last bucket with rows; of a producer's, when the node started."""
    bumped: bool = False
    """With `available_now`: all input is logged, and the boundaries have passed its last bucket."""
    endings: dict[str, int] = field(default_factory=dict)
    """With `available_now`: the bucket end at which each stage stops. Decided once in a run."""

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
        ending = self.endings.get(stage.name)
        committed = self.ledger.ended(stage.name)
        if ending is not None and ending > FIRST_BUCKET and committed != ending:
            # It is on its way into the journal; no wave may pass it before.
            return min(target, ending) - 1
        if committed is not None and not self.had_rows(stage, committed) and not self._is_waited_for(stage, committed):
            # Nothing came since an earlier run: what it ended stays ended where it did.
            return min(target, committed)
        return target if committed == target else target - 1

    def _is_waited_for(self, stage: Stage, bucket_end: int) -> bool:
        """Return whether a stage that reads this one needs a bucket behind `bucket_end`.

        It may have rows there of another input, or have gone up to `bucket_end` and have to end yet; or a stage that
        reads it is like that.
        """
        for reader in self.stages.values():
            if any(read.stream == stage.name for read in reader.inputs):
                ended = self.ledger.ended(reader.name)
                is_there = any(unit.bucket_committed >= bucket_end for unit in self.units_of(reader.name))
                if is_there and (ended is None or self.had_rows(reader, ended)):
                    return True
                if self.has_rows(reader, bucket_end, END_OF_TIME) or self._is_waited_for(reader, bucket_end):
                    return True
        return False

    def stream_end(self, stream: str) -> int:
        bucket_end = self.ledger.stream_bucket_end(stream)
        return FIRST_BUCKET if bucket_end is None else bucket_end

    def has_rows(self, stage: Stage, bucket_from: int, bucket_to: int) -> bool:
        return any(self.ledger.frames(read.stream, bucket_from, bucket_to) for read in stage.inputs)

    def had_rows(self, stage: Stage, bucket_from: int) -> bool:
        """Return whether rows came in `bucket_from` or later; rows that are not kept any more count as rows."""
        trimmed = [self.ledger.trimmed_before(read.stream) for read in stage.inputs]
        is_trimmed = any(bucket is not None and bucket > bucket_from for bucket in trimmed)
        # Not up to the target: an input that got nothing may hold it down before the rows of another one.
        return is_trimmed or self.has_rows(stage, bucket_from, END_OF_TIME)

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

        A bucket that nobody but the source can complete is not held up by its own rows, however many it has.
        """
        limit = self.options.ingest_ahead_rows
        for stage in self.stages.values():
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

    def all_logged(self) -> bool:
        """Return whether everything that was there at the start is in the journal."""
        if self.unread:
            return False
        for intake in self.intakes.values():
            if not (intake.looks and intake.settled and intake.idle):
                return False
        if any(isinstance(item, Advanced) for ticket in self.tickets.values() for item in ticket.items):
            return False
        return all(self.stream_end(stream) >= bucket for stream, bucket in self.bucket_there.items())

    def all_processed(self) -> bool:
        """Return whether, with `available_now`, every unit has committed the end of the input."""
        return self.options.available_now and self.bumped and all(map(self.is_processed, self.stages))

    def is_processed(self, stage: str) -> bool:
        """Return whether, with `available_now`, a stage's end is decided and every unit has committed it."""
        ending = self.endings.get(stage)
        return ending is not None and all(
            unit.bucket_committed >= ending and unit.phase is not Phase.COMMITTING for unit in self.units_of(stage)
        )

    def ending_of(self, stage: Stage) -> int | None:
        """Return the bucket end at which a stage's windows are to close with `available_now`; None if that is open yet.

        That of an earlier run serves again where no row came after it, and nobody needs the stage to go on.
        """
        if not all(self.is_processed(read.stream) for read in stage.inputs if read.stream in self.stages):
            return None
        ended = self.ledger.ended(stage.name)
        if ended is not None and not self.had_rows(stage, ended) and not self._is_waited_for(stage, ended):
            return ended
        target = self.target(stage)
        if target < max((self._input_end(read.stream) for read in stage.inputs), default=target):
            # Another input's boundary has not yet passed the last rows of one.
            return None
        # A run without `available_now` may have gone up to the boundary: the end is then the next bucket's.
        is_ahead = target == FIRST_BUCKET or all(unit.bucket_committed < target for unit in self.units_of(stage.name))
        return target if is_ahead else None

    def _input_end(self, stream: str) -> int:
        """Return where a stage ended, or the end of the last bucket with rows that a source had at the start."""
        if stream in self.stages:
            return self.endings[stream]
        last = self.ledger.last_frame(stream, MANY_SHARDS)
        there = self.bucket_there.get(stream, FIRST_BUCKET)
        return FIRST_BUCKET if last is None else min(there, last.bucket_end)

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
        return kept[0] if len(kept) > 1 else FIRST_BUCKET

    def note_what_is_there(self, streams: Iterable[str]) -> None:
        """Remember how far streams of producers reach that were just read for the first time."""
        for stream in streams:
            frame = self.ledger.last_frame(stream, MANY_SHARDS)
            self.bucket_there[stream] = FIRST_BUCKET if frame is None else frame.bucket_end
            self.unread.discard(stream)
