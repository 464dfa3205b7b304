"""Row-wise steps over a slice of rows: projections, filters, and functions of the user's, with the bad row named.

Invariants:
    * A function of the user's sees the rows of one slice at a time, never more, so what it sees does not depend on
      how buckets are grouped into waves.
    * When a slice fails, it is cut in halves until single rows are left: the rows that fail by themselves are the bad
      ones. With "reject" the others go on, in order; with "stop" the first bad row is named and nothing goes on.
    * Rows keep their tuple_time and their place in the log through projections and filters. The rows that a function
      makes have the tuple_time of the last row that it was given.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from holdfast import plan
from holdfast.errors import BadRow, HoldfastError, SchemaMismatch, UserFunctionFailed
from holdfast.operators.columns import Words
from holdfast.operators.expressions import evaluate, project, projected_schema
from holdfast.operators.functions.values import truths
from holdfast.operators.sharding import take_rows
from holdfast.operators.union import Slice, conform, empty_columns, read_schema

Function = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that a step could not take."""

    shard: int
    bucket: int
    reason: str
    origin: str
    row: str


@dataclass(slots=True)
class StepRunner:
    """Runs the steps of one input (or those behind the aggregation) over slices, and collects what it rejects."""

    stream: str
    steps: Sequence[plan.Step]
    on_error: str
    functions: Sequence[Function]
    bucket_width_us: int
    lines: Mapping[str, str] = field(default_factory=dict)
    """Where in the user's program each step stands, by `step_key`; `""` is for those that are not known."""
    rejects: list[Reject] = field(default_factory=list)

    @property
    def calls_functions(self) -> bool:
        """Return whether a step is a function of the user's."""
        return any(isinstance(step, plan.MapInArrow) for step in self.steps)

    def run(self, part: Slice) -> Slice:
        """Return the slice as the steps leave it."""
        for step in self.steps:
            part = self._run_step(step, part)
        return part

    def _run_step(self, step: plan.Step, part: Slice) -> Slice:
        if part.batch.num_rows == 0 and not isinstance(step, plan.MapInArrow):
            return self._apply(step, part)
        if part.batch.num_rows == 0:
            return replace(part, batch=empty_columns(_schema_of(step)))
        try:
            return self._apply(step, part)
        except Exception as error:
            if not (isinstance(error, BadRow) or isinstance(step, plan.MapInArrow)):
                raise
            rejecting = (step.on_error if isinstance(step, plan.MapInArrow) else self.on_error) == "reject"
            if not rejecting:
                raise self._named(step, part, error) from error
            return self._without_bad_rows(step, part, error)

    def _apply(self, step: plan.Step, part: Slice) -> Slice:
        if isinstance(step, plan.Project):
            return replace(part, batch=project(step, part.batch))
        if isinstance(step, plan.Filter):
            kept = truths(evaluate(step.condition, part.batch))
            return part if bool(kept.all()) else _take(part, np.flatnonzero(kept))
        batch = call_function(step, self.functions[step.function], part.batch)
        time = part.times[-1] if len(part.times) else 0
        return replace(part, batch=batch, times=np.full(batch.num_rows, time, np.int64), origin=None)

    def _without_bad_rows(self, step: plan.Step, part: Slice, error: Exception) -> Slice:
        """Return what the step makes of the rows that do not fail by themselves; the others are rejected."""
        rows = part.batch.num_rows
        if rows == 1:
            if isinstance(error, SchemaMismatch):
                raise error
            self.rejects.append(
                Reject(part.shard, self._bucket(part), _reason(error), self.place_of(part, 0), row_text(part.batch, 0))
            )
            return self._nothing(step, part)
        halves = [_take(part, np.arange(0, rows // 2)), _take(part, np.arange(rows // 2, rows))]
        if isinstance(step, plan.MapInArrow):
            # The rows that a function makes have the time of the whole slice, however it was cut.
            halves = [replace(half, times=np.full(len(half.times), part.times[-1], np.int64)) for half in halves]
        return _join(self._halve(step, half) for half in halves)

    def _halve(self, step: plan.Step, part: Slice) -> Slice:
        try:
            return self._apply(step, part)
        except Exception as error:
            return self._without_bad_rows(step, part, error)

    def _nothing(self, step: plan.Step, part: Slice) -> Slice:
        schema = part.batch.schema if isinstance(step, plan.Filter) else _schema_of(step)
        none = np.zeros(0, np.int64)
        made = isinstance(step, plan.MapInArrow) or part.origin is None
        return replace(part, batch=empty_columns(schema), times=none, origin=None if made else none)

    def _named(self, step: plan.Step, part: Slice, error: Exception) -> Exception:
        """Return an error that names the first row on which the step fails by itself."""
        if isinstance(error, SchemaMismatch) or (isinstance(error, HoldfastError) and not isinstance(error, BadRow)):
            return error
        row, failure = self._first_bad_row(step, part, 0, error)
        what, within = "a column or condition", ""
        if isinstance(step, plan.MapInArrow):
            what, within = f"function {step.name!r}", line_in(self.functions[step.function], failure)
        reason = _reason(failure) + within
        if row is None:
            message = (
                f"{what} failed on {part.batch.num_rows} rows from {self.place_of(part, 0)} on, but on none of them by "
                f"itself: {reason}. It has to treat each row on its own; fix it and start again"
            )
        else:
            message = (
                f"{what} failed on the row at {self.place_of(part, row)}: {reason}. The row is "
                f'{row_text(part.batch, row)}. Nothing is lost: fix it and start again, or use on_error="reject"'
            )
        # A line in the function itself says more than the one that it was given on.
        line = "" if within else self.lines.get(step_key(step)) or self.lines.get("")
        message += f" (at {line})" if line else ""
        return UserFunctionFailed(message) if isinstance(step, plan.MapInArrow) else BadRow(message)

    def _first_bad_row(
        self, step: plan.Step, part: Slice, first: int, error: Exception
    ) -> tuple[int | None, Exception]:
        """Return the first row that fails by itself, and how; no row, and how all of them failed, where none does."""
        rows = part.batch.num_rows
        if rows == 1:
            return first, error
        for start, end in ((0, rows // 2), (rows // 2, rows)):
            half = _take(part, np.arange(start, end))
            try:
                self._apply(step, half)
            except Exception as failure:
                found = self._first_bad_row(step, half, first + start, failure)
                if found[0] is not None:
                    return found
        return None, error

    def _bucket(self, part: Slice) -> int:
        return int(part.times[0]) // self.bucket_width_us

    def place_of(self, part: Slice, row: int) -> str:
        """Return where a row is, for a person."""
        bucket = int(part.times[row]) // self.bucket_width_us
        place = f"stream {self.stream!r}, shard {part.shard}, bucket {bucket}"
        if part.origin is None:
            return f"{place}, row {row} behind a function"
        if part.places is not None:
            return f"{place}, position {part.places[part.origin[row]]}"
        first = int(np.searchsorted(part.source_times, bucket * self.bucket_width_us))
        position = int(part.origin[row]) - first + (part.position if first == 0 else 0)
        return f"{place}, position {position}"


def step_key(step: plan.Step) -> str:
    """Return a text that is the same for the same step, in every process."""
    return msgspec.json.encode(step).decode()


def call_function(step: plan.MapInArrow, function: Function, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that a function of the user's makes of a batch."""
    schema = read_schema(step.schema)
    what = f"what the function {step.name!r} gave"
    made = []
    for result in function(iter([batch])):
        try:
            if not isinstance(result, pa.RecordBatch):
                raise SchemaMismatch(f"{what} is a {type(result).__name__}, expected pyarrow.RecordBatch")
            made.append(conform(_in_order(result, schema), schema, what))
        except SchemaMismatch as error:
            raise SchemaMismatch(
                f"{error}. Give what mapInArrow was told, or tell it what comes; nothing is lost{line_in(function)}"
            ) from error
    if not made:
        return empty_columns(schema)
    return made[0] if len(made) == 1 else pa.concat_batches(made)


def line_in(function: Function, error: Exception | None = None) -> str:
    """Return the line in a function of the user's where an error came up, or where it begins, as text to be added."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    frames = traceback.extract_tb(None if error is None else error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f" (at {code.co_filename}:{lines[-1] if lines else code.co_firstlineno})"


def _in_order(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with its columns in the schema's order, if it has them all."""
    if batch.schema.names != schema.names and sorted(batch.schema.names) == sorted(schema.names):
        return batch.select(schema.names)
    return batch


def _schema_of(step: plan.Step) -> pa.Schema:
    if isinstance(step, plan.MapInArrow):
        return read_schema(step.schema)
    assert isinstance(step, plan.Project), "a filter keeps its schema"
    return projected_schema(step)


def _take(part: Slice, rows: Words) -> Slice:
    origin = None if part.origin is None else part.origin[rows]
    return replace(part, batch=take_rows(part.batch, rows), times=part.times[rows], origin=origin)


def _join(parts: Iterable[Slice]) -> Slice:
    found = list(parts)
    batches = [part.batch for part in found]
    origins = [part.origin for part in found if part.origin is not None]
    return replace(
        found[0],
        batch=pa.concat_batches(batches),
        times=np.concatenate([part.times for part in found]),
        origin=np.concatenate(origins) if len(origins) == len(found) else None,
    )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, BadRow) else f"{type(error).__name__}: {error}"


def row_text(batch: pa.RecordBatch, row: int) -> str:
    """Return a row as JSON text."""
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=_json_value, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def rejects_batch(rejects: Sequence[Reject]) -> pa.RecordBatch:
    """Return rejected rows with the columns of a stream of rejects."""
    columns = [pa.array([getattr(reject, name) for reject in rejects], pa.string()) for name in plan.REJECTS_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, names=list(plan.REJECTS_COLUMNS))
