"""A stream that somebody follows: which of its buckets are complete, which are kept, and the frames that hold them.

Invariants:
    * A bucket counts as complete when every unit of its stage has committed it, or its source's boundary has passed
      it; of a side stream, when it is complete in every stream that fills it.
    * After `poll`, the rows below what is promised are there: promises are read before the rows.
    * Who fills a side stream is asked after the promises were read: a stage that came meanwhile is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.connect.catalog import Located, StreamSide, load, schema_of, streams
from holdfast.errors import ConsumerExpired
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FrameKind, Published
from holdfast.plan import Source, Stage


class Following:
    """Reads the journals of one stream and of those that promise for it. For one thread."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self.reader = StreamReader(located.store, located.stream)
        self.others: list[pa.Schema] = list(located.earlier)
        """What rows may have been written with, beside the schema that the stream had when it was found."""
        self._promisers = [StreamReader(located.store, each) for each in _fillers(located.declared)]

    @property
    def stream(self) -> str:
        return self.located.stream

    @property
    def tuple_time(self) -> str | None:
        """The column that gives the stream's tuple_times, of a source that is ordered by one."""
        declared = self.located.declared
        return declared.tuple_time if isinstance(declared, Source) else None

    def poll(self) -> None:
        """Take in what the journals say now."""
        while True:
            for reader in self._promisers:
                reader.poll()
            if not isinstance(self.located.declared, StreamSide) or not self._filled_by_others():
                break
        self.reader.poll()

    def learn_schemas(self) -> bool:
        """Look whether the stream has got columns since it was found; return whether it has."""
        topology = load(self.located.store).topology
        declared = self.located.declared
        name = declared.of if isinstance(declared, StreamSide) else declared.name
        now = next((source for source in topology.sources if source.name == name), None)
        found = [] if now is None else [schema_of(each) for each in (now.schema, *now.earlier)]
        fresh = [schema for schema in found if schema not in self.others and schema != self.located.schema]
        self.others += fresh
        return bool(fresh)

    def _filled_by_others(self) -> bool:
        """Look whether other stages fill the stream now; if so, follow those."""
        declared = streams(load(self.located.store).topology).get(self.stream)
        now = _fillers(self.located.declared) if declared is None else _fillers(declared[0])
        if set(now) == {reader.stream for reader in self._promisers}:
            return False
        for reader in self._promisers:
            reader.close()
        self._promisers = [StreamReader(self.located.store, each) for each in now]
        return True

    def wait(self, timeout_s: float) -> None:
        """Wait until what holds the stream up may have moved on."""
        slowest = min(self._promisers or [self.reader], key=_complete_end)
        slowest.wait(timeout_s)

    @property
    def complete_to(self) -> int:
        """The end of the buckets that are complete."""
        return min(_complete_end(reader) for reader in self._promisers or [self.reader])

    @property
    def kept_from(self) -> int:
        """The first bucket that retention has left."""
        trimmed_before = self.reader.ledger.trimmed_before(self.stream)
        return FIRST_BUCKET if trimmed_before is None else trimmed_before

    @property
    def ended_at(self) -> int | None:
        """Where the stream ended last, None if it never did; a side stream ends with all stages that fill it."""
        stages = {stage.name for stage in self.located.topology.stages}
        fillers = [reader for reader in self._promisers if reader.stream in stages]
        if fillers:
            over = all(reader.ledger.ended(reader.stream) == _complete_end(reader) for reader in fillers)
            return self.complete_to if over else None
        return self.reader.ledger.ended(self.stream)

    def check_kept(self, bucket: int, who: str) -> None:
        """Raise `ConsumerExpired` where rows from `bucket` on are not all there any more."""
        first = self.kept_from
        if bucket < first:
            place = "the beginning" if bucket <= FIRST_BUCKET else f"bucket {bucket}"
            raise ConsumerExpired(
                f"{who} of stream {self.stream!r} is at {place}, and the first bucket kept is {first}. "
                f"The rows between are gone; begin anew with start={first} (and another name), or start='earliest'."
            )

    def frames(self, bucket_from: int, bucket_to: int) -> list[Published]:
        """Return the frames with rows in a range of buckets, in the order of their commits."""
        return self.reader.ledger.frames(self.stream, bucket_from, bucket_to, (FrameKind.DATA,))

    def close(self) -> None:
        """Give the descriptors back."""
        for reader in (self.reader, *self._promisers):
            reader.close()


def _fillers(declared: Source | Stage | StreamSide) -> list[str]:
    return declared.filled_by if isinstance(declared, StreamSide) else []


def range_end(frames: Sequence[Published], bucket_to: int, rows_max: int) -> int:
    """Return the end of a range of whole buckets that has about `rows_max` rows, or one bucket."""
    rows, end = 0, bucket_to
    for frame in sorted(frames, key=lambda frame: frame.bucket_end):
        if rows and rows + frame.rows > rows_max:
            return min(bucket_to, end)
        end = frame.bucket_end
        rows += frame.rows
    return bucket_to


def _complete_end(reader: StreamReader) -> int:
    """Return the end of the buckets of a stream that are complete; that of a stage is where its last unit is.

    Unlike the stream's boundary this is a bucket even when the stage has ended: a later run may go on behind it.
    """
    ledger = reader.ledger
    units = ledger.units(reader.stream)
    if units:
        return min(unit.bucket_end for unit in units.values()) if len(units) >= ledger.shards else FIRST_BUCKET
    boundary_us = ledger.boundary_us(reader.stream)
    if boundary_us >= END_OF_TIME:
        return max((frame.bucket_end for frame in ledger.all_frames(reader.stream)), default=FIRST_BUCKET)
    end = ledger.stream_bucket_end(reader.stream)
    return FIRST_BUCKET if end is None else end
