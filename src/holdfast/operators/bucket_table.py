"""Which buckets the rows of a frame are in, and the highest event time in each.

The table is what lets a reader follow the watermark without reading rows of other shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model import NO_WATERMARK


def microseconds(column: pa.Array) -> pa.Array:
    """Return a timestamp (or date) column as microseconds since 1970, nulls kept."""
    kind = pa.timestamp("us", column.type.tz) if pa.types.is_timestamp(column.type) else pa.timestamp("us")
    return column.cast(kind).cast(pa.int64())


def highest_event_time(batch: pa.RecordBatch, event_time: str | None) -> int:
    """Return the highest event time of the rows; `NO_WATERMARK` where none has one."""
    highest = None if event_time is None else pc.max(microseconds(batch.column(event_time))).as_py()
    return NO_WATERMARK if highest is None else int(highest)


def bucket_table(
    batch: pa.RecordBatch, tuple_time: str | None, event_time: str | None, width_us: int
) -> list[tuple[int, int]]:
    """Return (bucket, highest event time) for each bucket with rows; nothing for rows that get one stamp together."""
    if tuple_time is None or batch.num_rows == 0:
        return []
    times = microseconds(batch.column(tuple_time))
    if times.null_count:
        return []
    buckets = np.asarray(times) // width_us
    if event_time is None:
        return [(int(bucket), NO_WATERMARK) for bucket in np.unique(buckets)]
    events = np.asarray(microseconds(batch.column(event_time)).fill_null(NO_WATERMARK))
    names, places = np.unique(buckets, return_inverse=True)
    highest = np.full(len(names), NO_WATERMARK, np.int64)
    np.maximum.at(highest, places, events)
    return [(int(bucket), int(time)) for bucket, time in zip(names, highest, strict=True)]


def output_table(
    batch: pa.RecordBatch,
    event_time: str | None,
    buckets: Sequence[int],
    row_ends: Sequence[int],
    reached_us: Sequence[int] = (),
) -> list[tuple[int, int]]:
    """Return (bucket, highest event time) for each bucket of a stage's output, whose rows end at `row_ends`.

    `reached_us` is an event time that nothing behind the bucket can be below, where one is known.
    """
    if event_time is None:
        return [(bucket, NO_WATERMARK) for bucket in buckets]
    events = np.asarray(microseconds(batch.column(event_time)).fill_null(NO_WATERMARK))
    highest = np.maximum.reduceat(events, [0, *row_ends[:-1]])
    if len(reached_us):
        highest = np.maximum(highest, np.array(reached_us, np.int64))
    return list(zip(buckets, highest.tolist(), strict=True))


def output_times(
    table: Sequence[tuple[int, int]], row_ends: Sequence[int] | npt.NDArray[np.int64], width_us: int
) -> npt.NDArray[np.int64]:
    """Return the tuple_time of each row of a stage's output: the start of its bucket."""
    starts = np.array([bucket for bucket, _ in table], np.int64) * width_us
    return np.repeat(starts, np.diff(row_ends, prepend=0))
