"""Which functions there are: the table that the front end asks and the evaluator follows.

Invariants:
    * A function that is not in the table never reaches a stream: the front end refuses it by name.
    * `fails` is true for every function that can raise `RowFailure`; only those are kept away from rows that Spark
      would not compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions import arithmetic, calendar, casts, comparison, texts
from holdfast.operators.functions.values import Value, as_array, rows_of


@dataclass(frozen=True, slots=True)
class Function:
    """One function: how it is computed, and what the evaluator has to know of it.

    `typed` kernels get the result's Arrow type as their first argument. `strict` ones are null as soon as one argument
    is, so that an argument behind a null one is not computed. `right_first` computes the second argument before.
    """

    kernel: Callable[..., Value]
    typed: bool = False
    fails: bool = False
    strict: bool = True
    right_first: bool = False


def _struct(target: pa.DataType, *values: Value) -> Value:
    names = [field.name for field in target]
    rows = rows_of(values)
    columns = [as_array(value, field.type, rows) for value, field in zip(values, target, strict=True)]
    return pa.StructArray.from_arrays(columns, names=names)


def _field(value: Value, ordinal: Value) -> Value:
    return pc.struct_field(value, [ordinal.as_py()])


def _typed(kernel: Callable[..., Value], right_first: bool = False) -> Function:
    return Function(kernel, typed=True, fails=True, right_first=right_first)


FUNCTIONS: Final[dict[str, Function]] = {
    "add": _typed(arithmetic.add),
    "subtract": _typed(arithmetic.subtract),
    "multiply": _typed(arithmetic.multiply),
    "divide": _typed(arithmetic.divide, right_first=True),
    "integral_divide": _typed(arithmetic.integral_divide, right_first=True),
    "remainder": _typed(arithmetic.remainder, right_first=True),
    "negate": _typed(arithmetic.negate),
    "abs": _typed(arithmetic.absolute),
    "floor": _typed(arithmetic.floor),
    "ceil": _typed(arithmetic.ceil),
    "round": _typed(arithmetic.round_half_up),
    "cast": _typed(casts.cast),
    "equal": Function(comparison.equal),
    "less": Function(comparison.less),
    "less_equal": Function(comparison.less_equal),
    "greater": Function(comparison.greater),
    "greater_equal": Function(comparison.greater_equal),
    "null_safe_equal": Function(comparison.null_safe_equal, strict=False),
    "is_in": Function(comparison.is_in, strict=False),
    "is_null": Function(pc.is_null, strict=False),
    "is_not_null": Function(pc.is_valid, strict=False),
    "is_nan": Function(comparison.is_nan, strict=False),
    "greatest": Function(comparison.greatest, strict=False),
    "least": Function(comparison.least, strict=False),
    "not": Function(pc.invert),
    "upper": Function(texts.upper),
    "lower": Function(texts.lower),
    "length": Function(texts.length),
    "octet_length": Function(texts.octet_length),
    "substring": Function(texts.substring),
    "concat": Function(texts.concat, strict=False),
    "trim": Function(texts.trim),
    "left_trim": Function(texts.left_trim),
    "right_trim": Function(texts.right_trim),
    "starts_with": Function(texts.starts_with),
    "ends_with": Function(texts.ends_with),
    "contains": Function(texts.contains),
    "like": Function(texts.like),
    "year": Function(calendar.year),
    "quarter": Function(calendar.quarter),
    "month": Function(calendar.month),
    "day": Function(calendar.day),
    "day_of_week": Function(calendar.day_of_week),
    "week_day": Function(calendar.week_day),
    "day_of_year": Function(calendar.day_of_year),
    "week_of_year": Function(calendar.week_of_year),
    "hour": Function(calendar.hour),
    "minute": Function(calendar.minute),
    "second": Function(calendar.second),
    "date_trunc": Function(calendar.truncate),
    "date_add": Function(calendar.date_add),
    "date_sub": Function(calendar.date_sub),
    "date_diff": Function(calendar.date_diff),
    "field": Function(_field),
    "struct": Function(_struct, typed=True, strict=False),
}

LAZY: Final = frozenset({"and", "or", "case_when", "coalesce"})
"""Functions that the evaluator itself computes: an argument is only computed for the rows that need it."""
