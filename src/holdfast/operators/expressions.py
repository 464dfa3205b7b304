"""Compute `plan.Expression` over a batch of rows with Arrow, as Spark's ANSI mode would.

Invariants:
    * The result has one element per row and exactly the Arrow type of the expression's Spark type.
    * Rows are independent: a batch may be cut or joined anywhere and the results are the same.
    * What Spark does not compute for a row cannot fail that row: branches not taken, what stands behind a false in
      `and`, behind a true in `or`, behind a null argument of a strict function.
    * A row that cannot be computed raises `BadRow`, which names its number in the batch and the values.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import plan
from holdfast.errors import BadRow, UnsupportedQuery
from holdfast.operators.functions.registry import FUNCTIONS, LAZY, Function
from holdfast.operators.functions.values import RowFailure, Value, as_array, is_array, nulls, truths
from holdfast.operators.types import arrow_type, is_nested, spark_type

MapRows = Callable[[plan.MapInArrow, pa.RecordBatch], pa.RecordBatch]
"""Runs a user's function over a batch; the caller names the row where it raises."""

_ONE_ROW = pa.record_batch({"": pa.array([True])})
_Mask = npt.NDArray[np.bool_]


def evaluate(expression: plan.Expression, batch: pa.RecordBatch) -> pa.Array:
    """Return the expression's value for every row of the batch; `BadRow` names the first row that has none."""
    target = arrow_type(expression.type)
    if batch.num_rows == 0:
        return pa.nulls(0, target)
    try:
        return as_array(_value(expression, batch), target, batch.num_rows)
    except RowFailure as failure:
        error = BadRow(f"row {failure.row} of the batch cannot be computed: {text(expression)}: {failure.reason}")
        error.row = failure.row
        raise error from None


def apply_steps(steps: Sequence[plan.Step], batch: pa.RecordBatch, map_rows: MapRows | None = None) -> pa.RecordBatch:
    """Run row-wise steps over a batch, one after the other.

    `BadRow.row` is the row's number in `batch`, through any filters; it is None behind a `MapInArrow`, whose rows are
    its own. `map_rows` runs those.
    """
    origin: npt.NDArray[np.int64] | None = None
    known = True
    for step in steps:
        try:
            if isinstance(step, plan.Project):
                batch = project(step, batch)
            elif isinstance(step, plan.Filter):
                keep = truths(evaluate(step.condition, batch))
                if not keep.all():
                    rows = np.flatnonzero(keep)
                    batch = batch.filter(pa.array(keep))
                    origin = rows if origin is None else origin[rows]
            else:
                assert map_rows is not None, "steps with a function of the user's need somebody to run it"
                batch, known = map_rows(step, batch), False
        except BadRow as error:
            if error.row is not None:
                error.row = None if not known else error.row if origin is None else int(origin[error.row])
            raise
    return batch


def project(step: plan.Project, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of the step's columns."""
    columns = [evaluate(column.expression, batch) for column in step.columns]
    return pa.RecordBatch.from_arrays(columns, schema=projected_schema(step))


def projected_schema(step: plan.Project) -> pa.Schema:
    """Return the schema of a projection's rows."""
    return pa.schema(
        [pa.field(column.name, arrow_type(column.expression.type), column.nullable) for column in step.columns]
    )


def text(expression: plan.Expression) -> str:
    """Return an expression as text for a message."""
    if isinstance(expression, plan.Column):
        return expression.name
    if isinstance(expression, plan.Constant):
        return "null" if expression.value is None else str(expression.value)
    if expression.function == "cast":
        return f"cast({text(expression.arguments[0])} as {expression.type})"
    return f"{expression.function}({', '.join(text(argument) for argument in expression.arguments)})"


def columns_of(expression: plan.Expression) -> set[str]:
    """Return the names of the columns that an expression reads."""
    if isinstance(expression, plan.Column):
        return {expression.name}
    if isinstance(expression, plan.Constant):
        return set()
    return set().union(*(columns_of(argument) for argument in expression.arguments))


def constant(value: object, spark: str) -> plan.Constant:
    """Return a Python value (bytes, Decimal and the numbers behind dates and timestamps too) as a literal."""
    if isinstance(value, bytes):
        return plan.Constant(base64.b64encode(value).decode("ascii"), spark)
    if isinstance(value, Decimal):
        return plan.Constant(format(value, "f"), spark)
    if isinstance(value, float) and (not np.isfinite(value) or str(value) == "-0.0"):
        # JSON has no infinity and no NaN, and -0.0 equals 0.0 as a key of the cache of literals.
        return plan.Constant(repr(value), spark)
    assert value is None or isinstance(value, (bool, int, float, str)), f"{value!r} cannot be kept as a literal"
    return plan.Constant(value, spark)


def folded(expression: plan.Expression) -> plan.Expression:
    """Return a literal in place of a function of literals; one that fails stays, to fail with its first row."""
    if not isinstance(expression, plan.Call) or is_nested(expression.type) or expression.type == "void":
        return expression
    if not all(isinstance(argument, plan.Constant) for argument in expression.arguments):
        return expression
    try:
        array = evaluate(expression, _ONE_ROW)
    except BadRow:
        return expression
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return constant(array[0].as_py(), expression.type)


def can_fail(expression: plan.Expression) -> bool:
    """Return whether some row might have no value."""
    if not isinstance(expression, plan.Call):
        return False
    if any(can_fail(argument) for argument in expression.arguments):
        return True
    if expression.function in LAZY:
        return False
    safe = expression.type in ("float", "double") and expression.function in ("add", "subtract", "multiply", "negate")
    return _function(expression.function).fails and not safe


def _function(name: str) -> Function:
    if name not in FUNCTIONS:
        raise UnsupportedQuery(
            f"the plan has a function {name!r} that this version of holdfast does not have; "
            "run it with the version that wrote it"
        )
    return FUNCTIONS[name]


def _value(expression: plan.Expression, batch: pa.RecordBatch) -> Value:
    if isinstance(expression, plan.Column):
        return batch.column(expression.name)
    if isinstance(expression, plan.Constant):
        return _scalar(expression)
    if expression.function in LAZY:
        return _LAZY_KERNELS[expression.function](expression, batch)
    function = _function(expression.function)
    arguments = _arguments(expression, batch, function.strict, function.right_first)
    if function.typed:
        return function.kernel(arrow_type(expression.type), *arguments)
    return function.kernel(*arguments)


def _arguments(call: plan.Call, batch: pa.RecordBatch, strict: bool, right_first: bool) -> list[Value]:
    """Compute arguments in Spark's order; behind a null one, a strict function's next one is not computed."""
    order = [1, 0] if right_first else range(len(call.arguments))
    found: dict[int, Value] = {}
    needed: _Mask | None = None
    for index in order:
        argument = call.arguments[index]
        if needed is not None and can_fail(argument):
            found[index] = _value_where(argument, batch, needed)
        else:
            found[index] = _value(argument, batch)
        if strict and _has_null(found[index]):
            valid = truths(as_array(pc.is_valid(found[index]), pa.bool_(), batch.num_rows))
            needed = valid if needed is None else needed & valid
    return [found[index] for index in range(len(call.arguments))]


def _has_null(value: Value) -> bool:
    return value.null_count > 0 if is_array(value) else not value.is_valid


def _value_where(expression: plan.Expression, batch: pa.RecordBatch, mask: _Mask) -> pa.Array:
    """Return the expression's value in the rows of the mask, and null in the others, which are not computed."""
    target = arrow_type(expression.type)
    if mask.all() or not can_fail(expression):
        return as_array(_value(expression, batch), target, batch.num_rows)
    rows = np.flatnonzero(mask)
    if len(rows) == 0:
        return pa.nulls(batch.num_rows, target)
    try:
        part = as_array(_value(expression, batch.take(pa.array(rows))), target, len(rows))
    except RowFailure as failure:
        raise RowFailure(int(rows[failure.row]), failure.reason) from None
    return part.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _conjunction(call: plan.Call, batch: pa.RecordBatch) -> Value:
    """`and`: the right side only where the left one is not false."""
    return _short_circuit(call, batch, pc.and_kleene, decides=False)


def _disjunction(call: plan.Call, batch: pa.RecordBatch) -> Value:
    """`or`: the right side only where the left one is not true."""
    return _short_circuit(call, batch, pc.or_kleene, decides=True)


def _short_circuit(call: plan.Call, batch: pa.RecordBatch, kernel: Callable[..., Value], decides: bool) -> Value:
    left = as_array(_value(call.arguments[0], batch), pa.bool_(), batch.num_rows)
    if not can_fail(call.arguments[1]):
        return kernel(left, as_array(_value(call.arguments[1], batch), pa.bool_(), batch.num_rows))
    open_rows = ~truths(left if decides else pc.invert(left))
    return kernel(left, _value_where(call.arguments[1], batch, open_rows))


def _case_when(call: plan.Call, batch: pa.RecordBatch) -> Value:
    """`case when`: condition, value, condition, value, ... and a last value where there is an `else`."""
    target = arrow_type(call.type)
    pairs, otherwise = _branches(call)
    left = np.ones(batch.num_rows, dtype=np.bool_)
    taken: list[tuple[_Mask, pa.Array]] = []
    for condition, result in pairs:
        met = truths(_value_where(condition, batch, left)) & left
        taken.append((met, _value_where(result, batch, met)))
        left = left & ~met
    found = pa.nulls(batch.num_rows, target) if otherwise is None else _value_where(otherwise, batch, left)
    for met, result in reversed(taken):
        found = pc.if_else(pa.array(met), as_array(result, target, batch.num_rows), as_array(found, target, len(left)))
    return found


def _branches(
    call: plan.Call,
) -> tuple[list[tuple[plan.Expression, plan.Expression]], plan.Expression | None]:
    arguments = call.arguments
    pairs = [(arguments[index], arguments[index + 1]) for index in range(0, len(arguments) - 1, 2)]
    return pairs, arguments[-1] if len(arguments) % 2 else None


def _coalesce(call: plan.Call, batch: pa.RecordBatch) -> Value:
    """`coalesce`: an argument only where all before it are null."""
    target = arrow_type(call.type)
    found = pa.nulls(batch.num_rows, target)
    for argument in call.arguments:
        if not found.null_count:
            break
        missing = truths(found.is_null())
        found = pc.if_else(pa.array(missing), _value_where(argument, batch, missing), found)
    return found


_LAZY_KERNELS: dict[str, Callable[[plan.Call, pa.RecordBatch], Value]] = {
    "and": _conjunction,
    "or": _disjunction,
    "case_when": _case_when,
    "coalesce": _coalesce,
}


@lru_cache(maxsize=4096)
def _scalar(literal: plan.Constant) -> pa.Scalar:
    target = arrow_type(literal.type)
    value = literal.value
    if value is None:
        return nulls(target)
    if pa.types.is_binary(target):
        return pa.scalar(base64.b64decode(str(value)), target)
    if pa.types.is_decimal(target):
        return pa.scalar(Decimal(str(value)), target)
    if pa.types.is_floating(target):
        return pa.scalar(float(value), target)
    if pa.types.is_temporal(target):
        whole = pa.scalar(int(value), pa.int32() if pa.types.is_date32(target) else pa.int64())
        return whole.cast(target)
    return pa.scalar(value, target)


def schema_text(schema: pa.Schema) -> str:
    """Return a schema's columns and Spark types as text for a message."""
    return ", ".join(f"{field.name} {spark_type(field.type)}" for field in schema)
