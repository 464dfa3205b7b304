"""The rows of one send as frames, ready to be appended: in shard order, encoded, their times known.

Invariants:
    * Nothing is appended here: what cannot be logged is found before the first byte is written.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connect.catalog import Located
from holdfast.connect.source_frame import source_frame
from holdfast.errors import BadRow
from holdfast.log.frame import EncodedFrame, encode
from holdfast.model import MANY_SHARDS, NO_WATERMARK, FrameRef, Published, bucket_of
from holdfast.operators.bucket_table import microseconds
from holdfast.plan import Source

ROWS_PER_FRAME_MAX = 1 << 20


class OutgoingFrame(msgspec.Struct, frozen=True):
    """A frame and what its commit will say of it."""

    encoded: EncodedFrame
    rows: int
    bucket_start: int
    bucket_end: int
    event_time_max_us: int

    def published(self, stream: str, ref: FrameRef, stamp_us: int | None, bucket_width_us: int) -> Published:
        """Return the journal's item for it; with a stamp all rows lie in the stamp's bucket."""
        start, end = self.bucket_start, self.bucket_end
        if stamp_us is not None:
            start = bucket_of(stamp_us, bucket_width_us)
            end = start + 1
        return Published(
            stream, MANY_SHARDS, start, end, self.rows, ref, stamp_us, event_time_max_us=self.event_time_max_us
        )


class Outgoing(msgspec.Struct, frozen=True):
    """One send. The tuple_times are None for a source that is stamped on arrival."""

    frames: list[OutgoingFrame]
    rows: int
    event_time_max_us: int
    tuple_time_min_us: int | None = None
    tuple_time_max_us: int | None = None
    first_row: int = 0
    """The row that has the lowest tuple_time."""

    @property
    def size_bytes(self) -> int:
        return sum(frame.encoded.length for frame in self.frames)


def outgoing_of(located: Located, source: Source, table: pa.Table) -> Outgoing:
    """Return the frames of a table that has the source's schema."""
    batches = [] if not table.num_rows else table.combine_chunks().to_batches(max_chunksize=ROWS_PER_FRAME_MAX)
    frames = [_frame(located, source, batch) for batch in batches]
    event_time_max_us = max((frame.event_time_max_us for frame in frames), default=NO_WATERMARK)
    if source.tuple_time is None or not table.num_rows:
        return Outgoing(frames, table.num_rows, event_time_max_us)
    times = microseconds(table.column(source.tuple_time).combine_chunks()).to_numpy()
    first = int(np.argmin(times))
    return Outgoing(frames, table.num_rows, event_time_max_us, int(times[first]), int(times.max()), first)


def check_times(table: pa.Table, source: Source) -> None:
    """Raise `BadRow` where the column that orders the source has no value."""
    if source.tuple_time is None or not table.column(source.tuple_time).null_count:
        return
    row = pc.index(pc.is_null(table.column(source.tuple_time)), True).as_py()
    raise BadRow(
        f"source {source.name!r}: row {row} has no value in {source.tuple_time!r}, the column that orders the source: "
        f"{table.slice(row, 1).to_pylist()[0]}. Nothing was sent; give every row a time."
    )


def _frame(located: Located, source: Source, batch: pa.RecordBatch) -> OutgoingFrame:
    header, sharded = source_frame(source, located.topology, batch)
    return OutgoingFrame(
        encode(header, sharded), batch.num_rows, header.bucket_start, header.bucket_end, header.event_time_max_us
    )
