"""The union: rows of all inputs in one order, which is the same on every replica and at every replay.

Invariants:
    * The order is (tuple_time, input, upstream shard, commit order, position). It follows from the log alone.
    * Rows of an arrival-stamped slice share one tuple_time; where all slices are like that, none is taken apart.
    * Buckets never decrease along the rows, so each bucket is one run of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from holdfast.errors import SchemaMismatch
from holdfast.model import NO_WATERMARK, bucket_of
from holdfast.operators.columns import Words, fixed_words, plain
from holdfast.operators.sharding import take_rows


@dataclass(frozen=True, slots=True)
class InputRows:
    """The rows that a unit reads from one frame of an input: of its own shard, or of all of them.

    `stamp_us` is the tuple_time of every row; where it is None, `times` has each row's own or, of a source that is
    ordered by a column, the column `tuple_time`; the rows are sorted by it. `bucket_table` then has (bucket, highest
    event time) for each bucket of the frame. A frame without rows for this unit still counts: its event times move the
    watermark.
    """

    batch: pa.RecordBatch
    stamp_us: int | None
    event_time_max_us: int = NO_WATERMARK
    bucket_table: Sequence[tuple[int, int]] = ()
    shard: int = 0
    tuple_time: str | None = None
    times: Words | None = None
    places: Words | None = None
    """The place of each row in its bucket, where the rows are not all that the frame has of it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one input that are in one run of the order or, when column-timed, sorted by `times`.

    `origin` is each row's place in `source`, the rows as they are in the log; None when a user's function has made
    the rows. `position` is the place of the first source row in its (stream, shard, bucket).
    """

    input: int
    shard: int
    position: int
    batch: pa.RecordBatch
    times: Words
    source: pa.RecordBatch
    source_times: Words
    origin: Words | None
    places: Words | None = None
    """The place of each source row in its (stream, shard, bucket), where they do not go on from `position`."""


@dataclass(frozen=True, slots=True)
class BucketRuns:
    """Which rows lie in which bucket: run `j` is the rows `[ends[j - 1], ends[j])` of bucket `buckets[j]`."""

    buckets: Words
    ends: Words

    def of_rows(self, rows: Words) -> Words:
        """Return the bucket of each given row."""
        return self.buckets[np.searchsorted(self.ends, rows, side="right")]


@dataclass(frozen=True, slots=True)
class UnionRows:
    """Rows in the union's order. `places` says where each row is in the slices, laid end to end; None: as it stands."""

    batch: pa.RecordBatch
    times: Words
    runs: BucketRuns
    slices: tuple[Slice, ...]
    places: Words | None

    def locate(self, row: int) -> tuple[Slice, int]:
        """Return the slice that a row is from, and its place in it."""
        place = row if self.places is None else int(self.places[row])
        for part in self.slices:
            if place < len(part.times):
                return part, place
            place -= len(part.times)
        raise AssertionError(f"the union has no row {row}")

    def take(self, rows: Words) -> UnionRows:
        """Return some of the rows, given in ascending order."""
        places = rows if self.places is None else self.places[rows]
        ends = np.searchsorted(rows, self.runs.ends)
        kept = np.diff(ends, prepend=0) > 0
        runs = BucketRuns(self.runs.buckets[kept], ends[kept])
        return UnionRows(take_rows(self.batch, rows), self.times[rows], runs, self.slices, places)


def tuple_times(rows: InputRows) -> Words:
    """Return the tuple_time of each row."""
    if rows.stamp_us is not None:
        return np.full(rows.batch.num_rows, rows.stamp_us, np.int64)
    if rows.times is not None:
        return rows.times
    assert rows.tuple_time is not None, "a frame without a stamp has a tuple_time column"
    return fixed_words(plain(rows.batch.column(rows.tuple_time)))


def conform(batch: pa.RecordBatch, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Return the batch with exactly the schema's columns, types and metadata."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.names != schema.names:
        raise SchemaMismatch(f"{what} has the columns {batch.schema.names}, expected {schema.names}")
    columns = []
    for name, column, field in zip(schema.names, batch.columns, schema, strict=True):
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaMismatch(
                f"column {name!r} of {what} has type {column.type}, expected {field.type}: {error}"
            ) from error
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def merge(slices: Sequence[Slice], schema: pa.Schema, bucket_width_us: int) -> UnionRows:
    """Return the rows of all slices, which come in commit order for each input."""
    numbered = [(int(part.times[0]), part.input, number, part) for number, part in enumerate(slices) if len(part.times)]
    numbered.sort(key=lambda item: item[:3])
    if _is_ordered(numbered):
        parts = [part for *_, part in numbered]
        order = None
    else:
        parts = [part for *_, part in sorted(numbered, key=lambda item: item[1:3])]
        order = np.argsort(np.concatenate([part.times for part in parts]), kind="stable")
    times = np.concatenate([part.times for part in parts]) if parts else np.zeros(0, np.int64)
    batches = [conform(part.batch, schema, "the rows of an input") for part in parts]
    batch = _concatenate(batches, schema)
    if order is not None:
        times, batch = times[order], take_rows(batch, order)
    return UnionRows(batch, times, bucket_runs(times, bucket_width_us), tuple(parts), order)


def _is_ordered(numbered: list[tuple[int, int, int, Slice]]) -> bool:
    """Return whether slices laid end to end, by their first tuple_time, are in the union's order row by row."""
    for before, after in pairwise(numbered):
        last = int(before[3].times[-1])
        if last > after[0] or (last == after[0] and before[1:3] > after[1:3]):
            return False
    return True


def _concatenate(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if not batches:
        return empty_columns(schema)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def bucket_runs(times: Words, bucket_width_us: int) -> BucketRuns:
    """Return the runs of equal buckets along ascending tuple_times."""
    if len(times) == 0:
        return BucketRuns(np.zeros(0, np.int64), np.zeros(0, np.int64))
    first = bucket_of(int(times[0]), bucket_width_us)
    last = bucket_of(int(times[-1]), bucket_width_us)
    if last - first > len(times):
        buckets = times // bucket_width_us
        ends = np.append(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1, len(times))
        return BucketRuns(buckets[ends - 1], ends)
    every = np.arange(first, last + 1, dtype=np.int64)
    ends = np.searchsorted(times, (every + 1) * bucket_width_us)
    kept = np.diff(ends, prepend=0) > 0
    return BucketRuns(every[kept], ends[kept])


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The union's watermark along the buckets: `before` at first, `after[j]` from the end of `buckets[j]` on."""

    before: int
    buckets: Words
    after: Words

    def at_start(self, buckets: Words) -> Words:
        """Return the watermark as each of the buckets begins, which decides what is late in it."""
        return np.concatenate([[self.before], self.after])[np.searchsorted(self.buckets, buckets, side="left")]

    def at_end(self, buckets: Words) -> Words:
        """Return the watermark as each of the buckets has ended."""
        return np.concatenate([[self.before], self.after])[np.searchsorted(self.buckets, buckets, side="right")]

    def last(self) -> int:
        return int(self.after[-1]) if len(self.after) else self.before

    def closing_bucket(self, ends: Words) -> Words:
        """Return the bucket in which windows with these ends close; all are at or before the last watermark."""
        return self.buckets[np.searchsorted(self.after, ends, side="left")]


Seen = Sequence[tuple[int, int, int]]
"""(bucket, input, highest event time) of frames, in this order."""


def seen_event_times(runs: Sequence[Sequence[InputRows]], timed: Sequence[bool], bucket_width_us: int) -> Seen:
    """Return the event times of the inputs that are `timed`: what moves the watermark, bucket by bucket."""
    return sorted(
        (bucket, number, highest)
        for number, frames in enumerate(runs)
        if timed[number]
        for frame in frames
        for bucket, highest in _event_times(frame, bucket_width_us)
        if highest != NO_WATERMARK
    )


def follow_watermarks(
    seen: Seen, delays_us: Sequence[int | None], maxima_us: Sequence[int]
) -> tuple[Watermarks, list[int]]:
    """Return the union's watermark over the buckets seen, and the inputs' highest event times at their end.

    The delay of an input without event time is None; it has no say. `maxima_us` are the highest event times before.
    """
    maxima = list(maxima_us)
    before = _watermark(maxima, delays_us)
    buckets: list[int] = []
    after: list[int] = []
    for bucket, number, highest in seen:
        maxima[number] = max(maxima[number], highest)
        if not buckets or buckets[-1] != bucket:
            buckets.append(bucket)
            after.append(0)
        after[-1] = _watermark(maxima, delays_us)
    return Watermarks(before, np.array(buckets, np.int64), np.array(after, np.int64)), maxima


def _event_times(frame: InputRows, bucket_width_us: int) -> Sequence[tuple[int, int]]:
    if frame.stamp_us is not None:
        return [(bucket_of(frame.stamp_us, bucket_width_us), frame.event_time_max_us)]
    return frame.bucket_table


def _watermark(maxima_us: Sequence[int], delays_us: Sequence[int | None]) -> int:
    marks = [
        NO_WATERMARK if highest == NO_WATERMARK else highest - delay
        for highest, delay in zip(maxima_us, delays_us, strict=True)
        if delay is not None
    ]
    return min(marks, default=NO_WATERMARK)


def empty_columns(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of the schema without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def read_schema(serialized: bytes) -> pa.Schema:
    """Return the Arrow schema that a plan holds."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))
