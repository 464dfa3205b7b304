"""One unit of a stage: rows of its inputs in, rows of its output stream out, bucket by bucket.

Invariants:
    * What comes out is a function of the log alone. How buckets are grouped into waves changes neither rows, nor
      their order, nor a digest, nor what a function of the user's sees in one call.
    * Output rows belong to a bucket of the range that was processed, in ascending order.
    * Nothing outside the unit's state changes; when `process` raises, rolling the state back undoes all of it.

The caller brackets `process` with `UnitState.begin` and `UnitState.finish(bucket_to, output.meta)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from holdfast import plan
from holdfast.errors import BadRow
from holdfast.model import END_OF_TIME, NO_WATERMARK, bucket_of
from holdfast.operators.aggregates import AggregateLayout, aggregate_layout, finish_aggregates
from holdfast.operators.columns import Words, fixed_words, from_words, plain, valid_mask
from holdfast.operators.digest import digest_rows
from holdfast.operators.expressions import project
from holdfast.operators.keys import KeyLayout, decode_keys, encode_keys, key_layout, shard_of
from holdfast.operators.late import late_rows
from holdfast.operators.phases import Phases
from holdfast.operators.steps import Function, Reject, StepRunner, rejects_batch
from holdfast.operators.types import TIMESTAMP, arrow_type
from holdfast.operators.union import (
    BucketRuns,
    InputRows,
    Slice,
    UnionRows,
    Watermarks,
    bucket_runs,
    conform,
    empty_columns,
    follow_watermarks,
    merge,
    read_schema,
    tuple_times,
)
from holdfast.operators.windows import Closed, CountWindows, Rows, RunningAggregate, TimeWindows, state_layout
from holdfast.state.layout import StateLayout


class UnitMeta(msgspec.Struct, array_like=True):
    """What a unit keeps beside its records: the highest event time that each input has shown."""

    event_time_max_us: list[int] = []


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of a stream: those of `buckets[j]` end at `row_ends[j]`. All lie in `[bucket_start, bucket_end)`."""

    stream: str
    bucket_start: int
    bucket_end: int
    batch: pa.RecordBatch
    buckets: list[int]
    row_ends: list[int]


@dataclass(frozen=True, slots=True)
class UnitOutput:
    """What one unit makes of a wave. `late` and `rejects` name the stream whose rows they are, not a side stream."""

    rows: list[StreamRows]
    late: list[StreamRows]
    rejects: list[StreamRows]
    digests: list[tuple[int, int, int]]
    rows_in: int
    rows_late: int
    meta: bytes


@dataclass(frozen=True, slots=True)
class _Aggregating:
    """What an aggregation needs of the union: its expressions as columns, and the layouts that follow from them."""

    spec: plan.Aggregation
    columns: plan.Project
    keys: KeyLayout
    aggregates: AggregateLayout

    @property
    def key_count(self) -> int:
        return len(self.spec.keys)


def _aggregating(spec: plan.Aggregation) -> _Aggregating:
    aggregates = aggregate_layout(spec.aggregates, lambda expression: arrow_type(expression.type))
    columns = [plan.Named(f"key {n}", key.expression, key.nullable) for n, key in enumerate(spec.keys)]
    columns += [plan.Named(f"argument {n}", expression) for n, expression in enumerate(aggregates.expressions)]
    if isinstance(spec.window, plan.TimeWindow):
        columns.append(plan.Named("event time", spec.window.event_time))
    fields = [pa.field(key.name, arrow_type(key.expression.type), key.nullable) for key in spec.keys]
    return _Aggregating(spec, plan.Project(columns), key_layout(fields), aggregates)


def layout_of(stage: plan.Stage) -> StateLayout | None:
    """Return what a unit of the stage keeps in memory; None for a stage without state."""
    if stage.aggregation is None:
        return None
    found = _aggregating(stage.aggregation)
    return state_layout(stage.aggregation.window, found.keys, found.aggregates)


def watermark_of(stage: plan.Stage, meta: bytes) -> int | None:
    """Return the watermark of a unit that keeps `meta`; None where there is none, or no row has come yet."""
    timed = [source.event_time is not None for source in stage.inputs]
    if not meta or not any(timed):
        return None
    maxima = msgspec.msgpack.decode(meta, type=UnitMeta).event_time_max_us
    found = [
        highest - source.delay_us
        for source, highest in zip(stage.inputs, maxima, strict=False)
        if source.event_time is not None
    ]
    lowest = min(found, default=NO_WATERMARK)
    return None if lowest <= NO_WATERMARK // 2 or lowest >= END_OF_TIME // 2 else lowest


class UnitOperator:
    """Runs one unit of a stage. It keeps nothing between waves but what is in `state`."""

    def __init__(
        self,
        stage: plan.Stage,
        shard: int,
        shards: int,
        state: Any,
        functions: Sequence[Function],
        session_time_zone: str,
        bucket_width_us: int,
        phases: Phases | None = None,
        lines: Mapping[str, str] | None = None,
    ) -> None:
        self.phases = phases if phases is not None else Phases()
        self.stage = stage
        self.shard = shard
        self.shards = shards
        self.state = state
        self.functions = functions
        self.session_time_zone = session_time_zone
        self.bucket_width_us = bucket_width_us
        # What an aggregation computes itself is where it was written.
        self._line = (lines or {}).get(stage.name, "")
        self._lines = {**(lines or {}), "": self._line}
        self._schema = read_schema(stage.schema)
        self._aggregating = None if stage.aggregation is None else _aggregating(stage.aggregation)
        union_schema = read_schema(stage.union_schema)
        if self._aggregating is not None:
            union_schema = pa.schema(
                [pa.field(c.name, arrow_type(c.expression.type), c.nullable) for c in self._aggregating.columns.columns]
            )
        self._union_schema = union_schema
        self._bucket_to = 0
        self._bucket_from = 0

    def process(
        self, runs: Sequence[Sequence[InputRows]], bucket_from: int, bucket_to: int, ended: bool = False
    ) -> UnitOutput:
        """Process all rows of the buckets `[bucket_from, bucket_to)`: for each input its frames in commit order."""
        assert len(runs) == len(self.stage.inputs), "one list of frames for each input"
        self._bucket_from, self._bucket_to = bucket_from, bucket_to
        runners = [self._runner(number) for number in range(len(runs))]
        slices = [part for number, frames in enumerate(runs) for part in self._prepare(number, frames, runners)]
        if not slices and not ended and self._closes_nothing(runs):
            return self._nothing(runs)
        union = merge(slices, self._union_schema, self.bucket_width_us)
        self.phases.end("order")
        late: list[StreamRows] = []
        if self._aggregating is None:
            made = [(union.batch, union.times)]
            rows_in, rows_late, meta = len(union.times), 0, b""
        else:
            made, late, rows_in, rows_late, meta = self._aggregate(self._aggregating, union, runs, runners, ended)
        after = self._step_runner(self.stage.name, self.stage.steps, "stop")
        batch, found = self._after(after, made)
        row_ends = found.ends.tolist()
        digests = digest_rows(batch, row_ends)
        counts = np.diff(found.ends, prepend=0).tolist()
        buckets = found.buckets.tolist()
        self.phases.end("encode")
        return UnitOutput(
            rows=[self._stream_rows(self.stage.name, batch, found)] if batch.num_rows else [],
            late=late,
            rejects=[rows for runner in [*runners, after] for rows in self._rejects(runner)],
            digests=list(zip(buckets, counts, digests, strict=True)),
            rows_in=rows_in,
            rows_late=rows_late,
            meta=meta,
        )

    # A wave without rows for this unit: with many units, that is most of them, so it has to cost next to nothing.

    def _closes_nothing(self, runs: Sequence[Sequence[InputRows]]) -> bool:
        """Return whether no window closes if there are no rows."""
        if self._aggregating is None or not isinstance(self._aggregating.spec.window, plan.TimeWindow):
            return True
        watermarks, _ = self._follow(runs)
        return not TimeWindows(self.state, self._aggregating.aggregates, self._aggregating.spec.window).closes(
            watermarks
        )

    def _nothing(self, runs: Sequence[Sequence[InputRows]]) -> UnitOutput:
        meta = b""
        if self._aggregating is not None:
            meta = msgspec.msgpack.encode(UnitMeta(self._follow(runs)[1])) if any(runs) else self.state.meta
        return UnitOutput([], [], [], [], 0, 0, meta)

    def _stream_rows(self, stream: str, batch: pa.RecordBatch, runs: BucketRuns) -> StreamRows:
        return StreamRows(stream, self._bucket_from, self._bucket_to, batch, runs.buckets.tolist(), runs.ends.tolist())

    # Before the union.

    def _runner(self, number: int) -> StepRunner:
        """Return what runs an input's steps and, as the last one, the aggregation's own expressions."""
        source = self.stage.inputs[number]
        steps = list(source.steps)
        if self._aggregating is not None:
            steps.append(self._aggregating.columns)
        return self._step_runner(source.stream, steps, source.on_error)

    def _step_runner(self, stream: str, steps: Sequence[plan.Step], on_error: str) -> StepRunner:
        return StepRunner(stream, steps, on_error, self.functions, self.bucket_width_us, self._lines)

    def _prepare(self, number: int, frames: Sequence[InputRows], runners: Sequence[StepRunner]) -> list[Slice]:
        """Return an input's rows as its steps leave them, frame by frame."""
        positions: dict[tuple[int, int], int] = {}
        prepared = []
        for frame in frames:
            for part in self._cut(number, frame, positions, runners[number].calls_functions):
                prepared.append(runners[number].run(part))
        return prepared

    def _cut(
        self, number: int, frame: InputRows, positions: dict[tuple[int, int], int], by_bucket: bool
    ) -> list[Slice]:
        """Return a frame's rows of this wave's buckets: one slice, or one for each bucket."""
        width = self.bucket_width_us
        if frame.stamp_us is not None:
            inside = self._bucket_from <= bucket_of(frame.stamp_us, width) < self._bucket_to
            cuts = [0, frame.batch.num_rows] if inside and frame.batch.num_rows else []
        else:
            cuts = self._cuts(tuple_times(frame))
        times = tuple_times(frame)
        shard = self.shard if self.stage.sharded else frame.shard
        slices = []
        starts = cuts if by_bucket else [*cuts[:1], *cuts[-1:]]
        for first, last in pairwise(starts):
            source = frame.batch.slice(first, last - first)
            position = positions.get((shard, bucket_of(int(times[first]), width)), 0)
            rows = np.arange(last - first, dtype=np.int64)
            part = times[first:last]
            slices.append(Slice(number, shard, position, source, part, source, part, rows))
        for first, last in pairwise(cuts):
            place = (shard, bucket_of(int(times[first]), width))
            positions[place] = positions.get(place, 0) + last - first
        return slices

    def _cuts(self, times: Words) -> list[int]:
        """Return where each bucket of this wave begins in ascending tuple_times, and where the last one ends."""
        start = int(np.searchsorted(times, self._bucket_from * self.bucket_width_us))
        end = int(np.searchsorted(times, self._bucket_to * self.bucket_width_us))
        if start == end:
            return []
        return [start, *(bucket_runs(times[start:end], self.bucket_width_us).ends + start).tolist()]

    # The aggregation.

    def _aggregate(
        self,
        found: _Aggregating,
        union: UnionRows,
        runs: Sequence[Sequence[InputRows]],
        runners: Sequence[StepRunner],
        ended: bool,
    ) -> tuple[list[tuple[pa.RecordBatch, Words]], list[StreamRows], int, int, bytes]:
        union = self._own_rows(found, union)
        watermarks, maxima = self._follow(runs)
        limits = np.repeat(watermarks.at_start(union.runs.buckets), np.diff(union.runs.ends, prepend=0))
        try:
            closed, late = self._fold(found, union, limits, watermarks, ended)
        except BadRow as error:
            raise self._named(error, union, runners) from error
        self.phases.end("kernel")
        rows_late = int(np.count_nonzero(late))
        side = []
        if rows_late:
            for number, (batch, buckets) in late_rows(union, late, self.stage.inputs, runners, self.bucket_width_us):
                side.append(self._stream_rows(self.stage.inputs[number].stream, batch, buckets))
        made = [(self._results(found, part), part.buckets * self.bucket_width_us) for part in closed]
        return made, side, len(union.times), rows_late, msgspec.msgpack.encode(UnitMeta(maxima))

    def _own_rows(self, found: _Aggregating, union: UnionRows) -> UnionRows:
        """Return the rows whose keys belong to this unit's shard."""
        if self.stage.sharded or self.shards == 1:
            return union
        keys = encode_keys(found.keys, union.batch.columns[: found.key_count], len(union.times))
        own = np.flatnonzero(shard_of(keys.hashes, self.shards) == self.shard)
        return union if len(own) == len(union.times) else union.take(own)

    def _follow(self, runs: Sequence[Sequence[InputRows]]) -> tuple[Watermarks, list[int]]:
        inputs = self.stage.inputs
        stored = self.state.meta
        maxima = msgspec.msgpack.decode(stored, type=UnitMeta).event_time_max_us if stored else []
        maxima = maxima or [NO_WATERMARK] * len(inputs)
        delays = [None if source.event_time is None else source.delay_us for source in inputs]
        return follow_watermarks(runs, delays, maxima, (self._bucket_from, self._bucket_to), self.bucket_width_us)

    def _fold(
        self, found: _Aggregating, union: UnionRows, limits: Words, watermarks: Watermarks, ended: bool
    ) -> tuple[list[Closed], Any]:
        columns = [plain(column) for column in union.batch.columns]
        keys = encode_keys(found.keys, columns[: found.key_count], len(union.times))
        arguments = columns[found.key_count : found.key_count + len(found.aggregates.expressions)]
        rows = Rows(keys, arguments, union.times, union.runs)
        window = found.spec.window
        no_late = np.zeros(len(rows), np.bool_)
        last_bucket = self._bucket_to - 1
        if isinstance(window, plan.CountWindow):
            counting = CountWindows(self.state, found.aggregates, window)
            closed = [counting.fold(rows)]
            return closed + ([counting.end(last_bucket)] if ended else []), no_late
        if isinstance(window, plan.TimeWindow):
            timing = TimeWindows(self.state, found.aggregates, window)
            event_times = columns[-1]
            present = _present(event_times)
            chosen, starts, late = timing.assign(fixed_words(event_times)[present], limits[present])
            timing.fold(rows, present[chosen], starts)
            no_late[present] = late
            return [timing.close(watermarks)] + ([timing.end(last_bucket)] if ended else []), no_late
        return [RunningAggregate(self.state, found.aggregates).fold(rows)], no_late

    def _named(self, error: BadRow, union: UnionRows, runners: Sequence[StepRunner]) -> BadRow:
        """Return the error with the row's place in the log."""
        if error.row is None:
            return error
        part, row = union.locate(error.row)
        line = f" (at {self._line})" if self._line else ""
        return BadRow(f"stage {self.stage.name!r}: {error} (row at {runners[part.input].place_of(part, row)}){line}")

    def _results(self, found: _Aggregating, closed: Closed) -> pa.RecordBatch:
        """Return the rows of closed windows, as the aggregation's outputs."""
        spec = found.spec
        names = [key.name for key in spec.keys] + [aggregate.name for aggregate in spec.aggregates]
        keys = closed.keys
        columns = []
        if found.key_count:
            columns += decode_keys(found.keys, keys.words, keys.variable_offsets, keys.variable_data)
        columns += finish_aggregates(found.aggregates, closed.values, closed.gather)
        if spec.window is not None:
            names.append(spec.window_column)
            columns.append(_window_column(spec.window, closed))
        if not columns:
            return pa.RecordBatch.from_arrays([], names=[])
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        return project(plan.Project(spec.outputs), batch)

    # Behind the aggregation.

    def _after(self, runner: StepRunner, made: list[tuple[pa.RecordBatch, Words]]) -> tuple[pa.RecordBatch, BucketRuns]:
        """Run the last steps over the rows, one bucket at a time where a function of the user's has to see them."""
        none = np.zeros(0, np.int64)
        batches, times = [], []
        positions: dict[int, int] = {}
        for batch, row_times in made:
            runs = bucket_runs(row_times, self.bucket_width_us)
            cuts = [0, *runs.ends.tolist()] if runner.calls_functions else [0, batch.num_rows]
            for first, last in pairwise(cuts):
                if first == last:
                    continue
                rows = batch.slice(first, last - first)
                part_times = row_times[first:last]
                bucket = bucket_of(int(part_times[0]), self.bucket_width_us)
                position = positions.get(bucket, 0)
                origin = np.arange(last - first, dtype=np.int64)
                part = Slice(0, self.shard, position, rows, part_times, rows, part_times, origin)
                positions[bucket] = position + last - first
                done = runner.run(part)
                batches.append(conform(done.batch, self._schema, f"the output of stage {self.stage.name!r}"))
                times.append(done.times)
        if not batches:
            return empty_columns(self._schema), BucketRuns(none, none)
        whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return whole, bucket_runs(np.concatenate(times), self.bucket_width_us)

    def _rejects(self, runner: StepRunner) -> list[StreamRows]:
        """Return an input's rejected rows; where every unit reads every row, the unit of the row's shard has them."""
        mine = [
            reject
            for reject in runner.rejects
            if self.stage.sharded
            or self._aggregating is None
            or runner.stream == self.stage.name
            or reject.shard == self.shard
        ]
        if not mine:
            return []
        mine.sort(key=_bucket_of_reject)
        times = np.array([reject.bucket for reject in mine], np.int64)
        return [self._stream_rows(runner.stream, rejects_batch(mine), bucket_runs(times, 1))]


def _bucket_of_reject(reject: Reject) -> int:
    return reject.bucket


def _present(column: pa.Array) -> Words:
    """Return the rows that have an event time; like Spark, a window takes no others."""
    mask = valid_mask(column)
    return np.arange(len(column), dtype=np.int64) if mask is None else np.flatnonzero(mask)


def _window_column(window: plan.TimeWindow | plan.CountWindow, closed: Closed) -> pa.Array:
    assert closed.starts is not None and closed.ends is not None, "windows have a start and an end"
    type_ = arrow_type(window.event_time.type) if isinstance(window, plan.TimeWindow) else TIMESTAMP
    children = [from_words(closed.starts, None, type_), from_words(closed.ends, None, type_)]
    names = ["start", "end"]
    if closed.numbers is not None:
        children.append(from_words(closed.numbers, None, pa.int64()))
        names.append("number")
    return pa.StructArray.from_arrays(children, names=names)
