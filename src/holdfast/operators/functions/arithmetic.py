"""Arithmetic on whole numbers and floats as Spark's ANSI mode has it; decimals are handed to `decimals`.

Invariants:
    * A whole number never wraps: what does not fit its type fails its row.
    * Division and remainder by zero fail their row, for floats too. The remainder has the sign of the dividend.
    * `round` on floats works on the shortest decimal text of the number, HALF_UP, as Spark does.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions import decimals
from holdfast.operators.functions.values import (
    Value,
    as_array,
    checked,
    fail_where,
    is_array,
    numbers,
    rows_of,
    with_nulls_of,
)

_EXACT_WHOLE_MAX: Final = 2.0**52
_TIE_WIDTH: Final = 1e-3


def add(target: pa.DataType, left: Value, right: Value) -> Value:
    """`+`."""
    if pa.types.is_decimal(target):
        return decimals.add(target, left, right)
    return checked(pc.add_checked, [left, right], f"the sum does not fit {target}")


def subtract(target: pa.DataType, left: Value, right: Value) -> Value:
    """`-`."""
    if pa.types.is_decimal(target):
        return decimals.subtract(target, left, right)
    return checked(pc.subtract_checked, [left, right], f"the difference does not fit {target}")


def multiply(target: pa.DataType, left: Value, right: Value) -> Value:
    """`*`."""
    if pa.types.is_decimal(target):
        return decimals.multiply(target, left, right)
    return checked(pc.multiply_checked, [left, right], f"the product does not fit {target}")


def divide(target: pa.DataType, left: Value, right: Value) -> Value:
    """`/`, of doubles or decimals: Spark casts other numbers before."""
    if pa.types.is_decimal(target):
        return decimals.divide(target, left, right)
    return checked(pc.divide_checked, [left, right], "division by zero")


def integral_divide(target: pa.DataType, left: Value, right: Value) -> Value:
    """`div`: the quotient cut towards zero."""
    if pa.types.is_decimal(left.type):
        return decimals.integral_divide(left, right)
    return checked(pc.divide_checked, [left, right], f"division by zero, or the quotient does not fit {target}")


def remainder(target: pa.DataType, left: Value, right: Value) -> Value:
    """`%`."""
    if pa.types.is_decimal(target):
        return decimals.remainder(target, left, right)
    fail_where(pc.and_(pc.equal(right, 0), pc.is_valid(left)), [left, right], "division by zero")
    return pc.remainder(left, right)


def negate(target: pa.DataType, value: Value) -> Value:
    """The sign turned."""
    return checked(pc.negate_checked, [value], f"the negative does not fit {target}")


def absolute(target: pa.DataType, value: Value) -> Value:
    """Without the sign."""
    return checked(pc.abs_checked, [value], f"the absolute value does not fit {target}")


def floor(target: pa.DataType, value: Value) -> Value:
    """The greatest whole number that is not greater; that of NaN is 0, as in Spark."""
    if pa.types.is_decimal(target):
        return decimals.floor(target, value)
    return _to_bigint(pc.floor(value)) if pa.types.is_floating(value.type) else value.cast(target)


def ceil(target: pa.DataType, value: Value) -> Value:
    """The least whole number that is not less; that of NaN is 0, as in Spark."""
    if pa.types.is_decimal(target):
        return decimals.ceil(target, value)
    return _to_bigint(pc.ceil(value)) if pa.types.is_floating(value.type) else value.cast(target)


def round_half_up(target: pa.DataType, value: Value, places: Value) -> Value:
    """`round(value, places)`, ties away from zero."""
    digits = places.as_py()
    if pa.types.is_decimal(value.type):
        return decimals.round_half_up(target, value, digits)
    if pa.types.is_floating(value.type):
        return _round_floats(value, digits)
    if digits >= 0:
        return value
    return checked(
        lambda whole: pc.cast(decimals.round_half_up(pa.decimal128(20, 0), _whole(whole), digits), target),
        [value],
        f"the rounded number does not fit {target}",
    )


def fits(values: npt.NDArray[np.float64], target: pa.DataType) -> npt.NDArray[np.bool_]:
    """Return which floats a whole number type can hold once their fraction is cut off; NaN is never one."""
    limits = np.iinfo(target.to_pandas_dtype())
    found: npt.NDArray[np.bool_] = (np.floor(values) <= float(limits.max)) & (np.ceil(values) >= float(limits.min))
    return found


def saturated(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return whole floats as int64: NaN is 0, what is beyond the ends is the end (Java's conversion)."""
    limits = np.iinfo(np.int64)
    with np.errstate(invalid="ignore"):
        found = np.where(np.isnan(values), 0, values).astype(np.int64)
    found[values >= 2.0**63] = limits.max
    found[values < -(2.0**63)] = limits.min
    return found


def _whole(value: Value) -> Value:
    return pc.cast(pc.cast(value, pa.int64()), pa.decimal128(19, 0))


def _to_bigint(value: Value) -> Value:
    array = as_array(value, value.type, rows_of([value]))
    given = numbers(array, 0.0).astype(np.float64)
    too_wide = ~fits(given, pa.int64()) & ~np.isnan(given)
    fail_where(pa.array(too_wide), [array], "the whole number does not fit a bigint")
    found = with_nulls_of(saturated(given), array, pa.int64())
    return found if is_array(value) else found[0]


def _round_floats(value: Value, places: int) -> Value:
    array = as_array(value, value.type, rows_of([value]))
    given = numbers(array, 0.0)
    wide = given.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.abs(wide) * 10.0**places
        fraction = scaled - np.floor(scaled)
        found = np.copysign(np.floor(scaled + 0.5) / 10.0**places, wide)
        # Near a tie, and where the scaled number has no exact form, the shortest text decides.
        unsure = (np.abs(fraction - 0.5) < _TIE_WIDTH) | (scaled > _EXACT_WHOLE_MAX) | (not 0 <= places <= 22)
    for row in np.flatnonzero(unsure & np.isfinite(wide)):
        found[row] = _rounded_text(float(wide[row]), places)
    unfit = ~np.isfinite(wide)
    found[unfit] = wide[unfit]
    # Spark goes through a decimal, which has no negative zero.
    found[found == 0] = 0.0
    result = with_nulls_of(found.astype(given.dtype), array, value.type)
    return result if is_array(value) else result[0]


def _rounded_text(number: float, places: int) -> float:
    quantum = Decimal(1).scaleb(-places)
    return float(Decimal(repr(number)).quantize(quantum, rounding=decimal.ROUND_HALF_UP, context=_WIDE))


_WIDE: Final = decimal.Context(prec=800, Emax=9_999, Emin=-9_999)
