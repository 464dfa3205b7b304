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
from dataclasses import dataclass, field, replace
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
from holdfast.operators.destinations import order_by_destination
from holdfast.operators.digest import digest_rows
from holdfast.operators.expressions import project
from holdfast.operators.gathering import Gathered, Gatherer
from holdfast.operators.keys import KeyLayout, decode_keys, key_layout
from holdfast.operators.late import late_rows
from holdfast.operators.phases import Phases
from holdfast.operators.steps import Reject, StepRunner, rejects_batch
from holdfast.operators.types import TIMESTAMP, arrow_type
from holdfast.operators.union import (
    BucketRuns,
    InputRows,
    Seen,
    Slice,
    UnionRows,
    Watermarks,
    bucket_runs,
    conform,
    empty_columns,
    follow_watermarks,
    read_schema,
)
from holdfast.operators.windows import (
    Closed,
    CountWindows,
    Rows,
    RunningAggregate,
    TimeWindows,
    edges_to_come,
    state_layout,
)
from holdfast.state.layout import StateLayout


class UnitMeta(msgspec.Struct, array_like=True):
    """What a unit keeps beside its records: the highest event time that each input has shown."""

    event_time_max_us: list[int] = []


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of a stream: those of `buckets[j]` end at `row_ends[j]`. All lie in `[bucket_start, bucket_end)`.

    No row behind `buckets[j]` can have an event time below `reached_us[j]`, where that is known.
    """

    stream: str
    bucket_start: int
    bucket_end: int
    batch: pa.RecordBatch
    buckets: list[int]
    row_ends: list[int]
    reached_us: list[int] = field(default_factory=list)
    destination_ends: Words | None = None
    """The row ends of each bucket's shards, where the rows are in the order of the shards that they go to."""


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
        functions: Sequence[Any],
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
        columns = None if self._aggregating is None else self._aggregating.columns
        keys = None if self._aggregating is None else self._aggregating.keys
        self._gatherer = Gatherer(stage, shards, functions, bucket_width_us, columns, keys, union_schema, self._lines)
        self._bucket_to = 0
        self._bucket_from = 0

    def gather(
        self, runs: Sequence[Sequence[InputRows]], bucket_from: int, bucket_to: int, seen: Seen | None = None
    ) -> Gathered:
        """Bring together the rows of a wave: for each input its frames in commit order, as `Gatherer.gather`."""
        gathered = self._gatherer.gather(runs, bucket_from, bucket_to, self.shard, seen)
        self.phases.end("order")
        return gathered

    def process(
        self, runs: Sequence[Sequence[InputRows]], bucket_from: int, bucket_to: int, ended: bool = False
    ) -> UnitOutput:
        """Process all rows of the buckets `[bucket_from, bucket_to)`: for each input its frames in commit order."""
        return self.process_gathered(self.gather(runs, bucket_from, bucket_to), ended)

    def process_gathered(self, found: Gathered, ended: bool = False) -> UnitOutput:
        """Process what this unit, or another one of a stage whose units pick their rows, has gathered."""
        self._bucket_from, self._bucket_to = found.bucket_from, found.bucket_to
        found = found.of(self.shard)
        self.phases.end("order")
        if found.is_empty and not ended and self._closes_nothing(found.seen):
            return self._nothing(found.seen)
        late: list[StreamRows] = []
        if self._aggregating is None:
            made = [(found.union.batch, found.union.times)]
            rows_in, rows_late, meta = len(found.union.times), 0, b""
        else:
            made, late, rows_in, rows_late, meta = self._aggregate(self._aggregating, found, ended)
        after = StepRunner(self.stage.name, self.stage.steps, "stop", self.functions, self.bucket_width_us, self._lines)
        batch, runs = self._after(after, made)
        destination_ends = None
        if self.stage.shard_by and self.shards > 1 and batch.num_rows:
            batch, destination_ends = order_by_destination(batch, runs, self.stage.shard_by, self.shards)
        row_ends = runs.ends.tolist()
        digests = digest_rows(batch, row_ends)
        counts = np.diff(runs.ends, prepend=0).tolist()
        buckets = runs.buckets.tolist()
        self.phases.end("encode")
        return UnitOutput(
            rows=[self._output_rows(batch, runs, found.seen, destination_ends)] if batch.num_rows else [],
            late=late,
            rejects=[rows for runner in [*found.runners, after] for rows in self._rejects(runner)],
            digests=list(zip(buckets, counts, digests, strict=True)),
            rows_in=rows_in,
            rows_late=rows_late,
            meta=meta,
        )

    def ordered(self, runs: Sequence[Sequence[InputRows]], bucket_from: int, bucket_to: int) -> UnionRows:
        """Return all rows of the buckets in the order of the union, and process none of them."""
        return self.gather(runs, bucket_from, bucket_to).of(self.shard).union

    # A wave without rows for this unit: with many units, that is most of them, so it has to cost next to nothing.

    def _closes_nothing(self, seen: Seen) -> bool:
        """Return whether no window closes if there are no rows."""
        if self._aggregating is None or not isinstance(self._aggregating.spec.window, plan.TimeWindow):
            return True
        watermarks, _ = self._follow(seen)
        return not TimeWindows(self.state, self._aggregating.aggregates, self._aggregating.spec.window).closes(
            watermarks
        )

    def _nothing(self, seen: Seen) -> UnitOutput:
        meta = b""
        if self._aggregating is not None:
            meta = msgspec.msgpack.encode(UnitMeta(self._follow(seen)[1])) if seen else self.state.meta
        return UnitOutput([], [], [], [], 0, 0, meta)

    def _output_rows(
        self, batch: pa.RecordBatch, runs: BucketRuns, seen: Seen, destination_ends: Words | None
    ) -> StreamRows:
        """Return the output, with the event times that the windows still to come cannot be below."""
        rows = replace(self._stream_rows(self.stage.name, batch, runs), destination_ends=destination_ends)
        edge = self.stage.event_time_edge
        if edge is None:
            return rows
        assert self._aggregating is not None and isinstance(self._aggregating.spec.window, plan.TimeWindow)
        watermarks, _ = self._follow(seen)
        reached = edges_to_come(self._aggregating.spec.window, edge, watermarks.at_end(runs.buckets))
        return replace(rows, reached_us=reached.tolist())

    def _stream_rows(self, stream: str, batch: pa.RecordBatch, runs: BucketRuns) -> StreamRows:
        return StreamRows(stream, self._bucket_from, self._bucket_to, batch, runs.buckets.tolist(), runs.ends.tolist())

    # The aggregation.

    def _aggregate(
        self, found: _Aggregating, own: Gathered, ended: bool
    ) -> tuple[list[tuple[pa.RecordBatch, Words]], list[StreamRows], int, int, bytes]:
        union = own.union
        watermarks, maxima = self._follow(own.seen)
        limits = np.repeat(watermarks.at_start(union.runs.buckets), np.diff(union.runs.ends, prepend=0))
        try:
            closed, late = self._fold(found, own, limits, watermarks, ended)
        except BadRow as error:
            raise self._named(error, union, own.runners) from error
        self.phases.end("kernel")
        rows_late = int(np.count_nonzero(late))
        side = []
        if rows_late:
            for number, (batch, buckets) in late_rows(
                union, late, self.stage.inputs, own.runners, self.bucket_width_us
            ):
                side.append(self._stream_rows(self.stage.inputs[number].stream, batch, buckets))
        made = [(self._results(found, part), part.buckets * self.bucket_width_us) for part in closed]
        return made, side, len(union.times), rows_late, msgspec.msgpack.encode(UnitMeta(maxima))

    def _follow(self, seen: Seen) -> tuple[Watermarks, list[int]]:
        inputs = self.stage.inputs
        stored = self.state.meta
        maxima = msgspec.msgpack.decode(stored, type=UnitMeta).event_time_max_us if stored else []
        maxima = maxima or [NO_WATERMARK] * len(inputs)
        return follow_watermarks(seen, [None if each.event_time is None else each.delay_us for each in inputs], maxima)

    def _fold(
        self, found: _Aggregating, own: Gathered, limits: Words, watermarks: Watermarks, ended: bool
    ) -> tuple[list[Closed], Any]:
        union, keys = own.union, own.keys
        assert keys is not None, "an aggregation's rows have keys"
        columns = [plain(column) for column in union.batch.columns]
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
