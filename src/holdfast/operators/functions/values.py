"""What a function of the expression engine takes and gives, and how it says which row failed.

Invariants:
    * A value is an Arrow array with one element per row, or an Arrow scalar that stands for the same element in each.
    * A function raises `RowFailure` with the first row that cannot be computed; a row that is null in any argument
      cannot fail, as in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Value = Any
"""A `pa.Array` or a `pa.Scalar`; Arrow's compute functions take both."""

Kernel = Callable[..., Value]


class RowFailure(Exception):
    """Row `row` of the batch at hand cannot be computed, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def is_array(value: Value) -> bool:
    """Return whether a value has an element per row."""
    return isinstance(value, (pa.Array, pa.ChunkedArray))


def as_array(value: Value, arrow: pa.DataType, rows: int) -> pa.Array:
    """Return a value as an array of `rows` elements of exactly the type `arrow`."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if not isinstance(value, pa.Array):
        value = pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)
    if value.type == arrow:
        return value
    if pa.types.is_null(value.type):
        return pa.nulls(rows, arrow)
    return value.cast(arrow)


def nulls(arrow: pa.DataType) -> pa.Scalar:
    """Return the null of a type."""
    return pa.scalar(None, arrow)


def rows_of(arguments: Sequence[Value]) -> int:
    """Return how many rows the arguments stand for: one if all of them are scalars."""
    return next((len(value) for value in arguments if is_array(value)), 1)


def checked(kernel: Kernel, arguments: Sequence[Value], reason: str) -> Value:
    """Run a row-wise Arrow kernel that raises on a bad row; turn its error into the first such row.

    Arrow does not say which row it was, so the shortest prefix that raises is looked for by bisection: it costs nothing
    until something is wrong.
    """
    try:
        return kernel(*arguments)
    except pa.ArrowInvalid:
        row = _first_bad_row(kernel, arguments)
    raise RowFailure(row, f"{reason}: {shown(arguments, row)}")


def first(mask: npt.NDArray[np.bool_] | pa.BooleanArray) -> int | None:
    """Return the first row where the mask is true; None if there is none."""
    array = mask if isinstance(mask, np.ndarray) else truths(mask)
    found = int(array.argmax()) if len(array) else 0
    return found if len(array) and array[found] else None


def fail_where(mask: Value, arguments: Sequence[Value], reason: str) -> None:
    """Raise `RowFailure` for the first row where the mask is true (not null)."""
    rows = rows_of([mask, *arguments])
    row = first(truths(as_array(mask, pa.bool_(), rows)))
    if row is not None:
        raise RowFailure(row, f"{reason}: {shown(arguments, row)}")


def truths(array: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return a boolean array as numpy's, null as false."""
    if array.null_count:
        array = pc.fill_null(array, False)
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def numbers(array: pa.Array, filler: int | float = 0) -> npt.NDArray[Any]:
    """Return a numeric array as numpy's, with `filler` in place of nulls."""
    if array.null_count:
        array = pc.fill_null(array, filler)
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def with_nulls_of(values: npt.NDArray[Any], like: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Return numpy values as an Arrow array that is null where `like` is."""
    mask = np.asarray(like.is_null().to_numpy(zero_copy_only=False)) if like.null_count else None
    return pa.array(values, type=arrow, mask=mask)


def shown(arguments: Sequence[Value], row: int) -> str:
    """Return the arguments of one row as text for a message."""
    return ", ".join(_shorten(repr(value[row].as_py() if is_array(value) else value.as_py())) for value in arguments)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_bad_row(kernel: Kernel, arguments: Sequence[Value]) -> int:
    low, high = 0, rows_of(arguments)
    # The first `low` rows are known to be good, the first `high` to have a bad one.
    while high - low > 1:
        middle = (low + high) // 2
        try:
            kernel(*[value.slice(low, middle - low) if is_array(value) else value for value in arguments])
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
