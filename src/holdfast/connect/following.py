"""A stream that somebody follows: which of its buckets are complete, which are kept, and the frames that hold them.

Invariants:
    * A bucket counts as complete when every unit of its stage has committed it, or its source's boundary has passed
      it; of a side stream, when it is complete in every stream that fills it.
    * After `poll`, the rows below what is promised are there: promises are read before the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connect.catalog import Located, StreamSide
from holdfast.errors import ConsumerExpired
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FrameKind, Published
from holdfast.plan import Source


class Following:
    """Reads the journals of one stream and of those that promise for it. For one thread."""

    def __init__(self, located: Located) -> None:
        self.located = located
        self.reader = StreamReader(located.store, located.stream)
        promisers = located.declared.filled_by if isinstance(located.declared, StreamSide) else []
        self._promisers = [StreamReader(located.store, each) for each in promisers]

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
        for reader in self._promisers:
            reader.poll()
        self.reader.poll()

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
