"""The rows of a range of buckets of a stream as one table, in the stream's order.

Invariants:
    * The order is (bucket, shard, commit, position): it follows from the log alone, so every reader sees the same.
    * A row's number is its position among the data rows of its (bucket, shard); with stream, shard and bucket it is the
      identity of the row. Numbers are only given for whole buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.log.frame import FrameHeader
from holdfast.model import Published, bucket_start_us
from holdfast.operators.bucket_table import microseconds

Numbers = npt.NDArray[np.int64]
ReadFrame = Callable[[Published], tuple[FrameHeader, pa.RecordBatch]]

ID_TYPE = pa.struct([("bucket", pa.int64()), ("shard", pa.int32()), ("position", pa.int64())])
TIME_TYPE = pa.timestamp("us", tz="UTC")


class RangeRows(msgspec.Struct, frozen=True):
    """Rows in the stream's order, and each row's bucket, shard and tuple_time."""

    table: pa.Table
    buckets: Numbers
    shards: Numbers
    times_us: Numbers

    def positions(self) -> Numbers:
        """Return the number of each row among those of its bucket and shard."""
        count = len(self.buckets)
        if not count:
            return self.buckets
        fresh = np.ones(count, bool)
        fresh[1:] = (self.buckets[1:] != self.buckets[:-1]) | (self.shards[1:] != self.shards[:-1])
        starts = np.flatnonzero(fresh)
        return np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))


def read_range(
    frames: Sequence[Published],
    read: ReadFrame,
    schema: pa.Schema,
    bucket_from: int,
    bucket_to: int,
    bucket_width_us: int,
    tuple_time: str | None = None,
) -> RangeRows:
    """Return the rows of `[bucket_from, bucket_to)` that are in `frames`, which are in the order of their commits."""
    batches: list[pa.RecordBatch] = []
    buckets: list[Numbers] = []
    shards: list[Numbers] = []
    times: list[Numbers] = []
    for frame in frames:
        header, batch = read(frame)
        of_rows, at = _buckets_and_times(frame, header, batch, bucket_width_us, tuple_time)
        batches.append(batch)
        buckets.append(of_rows)
        times.append(at)
        shards.append(_shards(frame, header, batch.num_rows))
    table = pa.Table.from_batches(batches, schema)
    if not batches:
        nothing = np.empty(0, np.int64)
        return RangeRows(table, nothing, nothing, nothing)
    return _ordered(
        table, np.concatenate(buckets), np.concatenate(shards), np.concatenate(times), bucket_from, bucket_to
    )


def _ordered(
    table: pa.Table, buckets: Numbers, shards: Numbers, times_us: Numbers, bucket_from: int, bucket_to: int
) -> RangeRows:
    """Leave out what is not in the range, and put the rest in order."""
    order: Numbers | None = None
    inside = (buckets >= bucket_from) & (buckets < bucket_to)
    if not inside.all():
        order = np.flatnonzero(inside)
        buckets, shards, times_us = buckets[order], shards[order], times_us[order]
    later = (buckets[1:] > buckets[:-1]) | ((buckets[1:] == buckets[:-1]) & (shards[1:] >= shards[:-1]))
    if not later.all():
        # Stable, so that commit and position decide within a bucket and shard.
        sorting = np.lexsort((shards, buckets))
        order = sorting if order is None else order[sorting]
        buckets, shards, times_us = buckets[sorting], shards[sorting], times_us[sorting]
    if order is not None:
        table = table.combine_chunks().take(pa.array(order))
    return RangeRows(table, buckets, shards, times_us)


def _shards(frame: Published, header: FrameHeader, rows: int) -> Numbers:
    if not header.shard_row_ends:
        return np.full(rows, max(frame.shard, 0), np.int64)
    counts = _counts(header.shard_row_ends)
    return np.repeat(np.arange(len(counts)), counts)


def _counts(row_ends: Sequence[int]) -> Numbers:
    ends = np.array(row_ends, np.int64)
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    return counts


def _buckets_and_times(
    frame: Published, header: FrameHeader, batch: pa.RecordBatch, width_us: int, tuple_time: str | None
) -> tuple[Numbers, Numbers]:
    """Return the bucket and the tuple_time of each row; a stage's rows have the beginning of their bucket."""
    rows = batch.num_rows
    if frame.stamp_us is not None:
        return np.full(rows, frame.bucket_start, np.int64), np.full(rows, frame.stamp_us, np.int64)
    if header.bucket_row_ends:
        counts = _counts(header.bucket_row_ends)
        buckets = np.repeat(np.array([bucket for bucket, _ in header.bucket_table], np.int64), counts)
        return buckets, buckets * width_us
    if tuple_time is not None and header.bucket_table:
        times = microseconds(batch.column(tuple_time)).to_numpy(zero_copy_only=False)
        return times // width_us, times
    first_us = bucket_start_us(frame.bucket_start, width_us)
    return np.full(rows, frame.bucket_start, np.int64), np.full(rows, first_us, np.int64)
