"""Decimal arithmetic with Spark's result types and HALF_UP rounding.

Invariants:
    * A result is the exact result rounded once, HALF_UP, to the scale of the type that Spark gave the expression;
      one that does not fit its precision fails its row.
    * Work is done by Arrow in 256 bits. Where 76 digits are too few (two full decimals(38) multiplied or divided),
      Python's decimals do the same, row by row; no common type gets there.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions.values import (
    RowFailure,
    Value,
    as_array,
    checked,
    fail_where,
    rows_of,
    shown,
)

DIGITS_MAX: Final = 76
_EXACT: Final = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP, Emax=999_999, Emin=-999_999)


def add(target: pa.Decimal128Type, left: Value, right: Value) -> Value:
    """Decimal `+`."""
    if _sum_digits(left.type, right.type) > DIGITS_MAX - 1:
        return _by_row(lambda a, b: _EXACT.add(a, b), target, left, right)
    return rounded(pc.add(_wide(left), _wide(right)), target)


def subtract(target: pa.Decimal128Type, left: Value, right: Value) -> Value:
    """Decimal `-`."""
    if _sum_digits(left.type, right.type) > DIGITS_MAX - 1:
        return _by_row(lambda a, b: _EXACT.subtract(a, b), target, left, right)
    return rounded(pc.subtract(_wide(left), _wide(right)), target)


def multiply(target: pa.Decimal128Type, left: Value, right: Value) -> Value:
    """Decimal `*`."""
    if left.type.precision + right.type.precision + 2 > DIGITS_MAX:
        return _by_row(lambda a, b: _EXACT.multiply(a, b), target, left, right)
    return rounded(pc.multiply(_wide(left), _wide(right)), target)


def divide(target: pa.Decimal128Type, left: Value, right: Value) -> Value:
    """Decimal `/`."""
    _refuse_zero(left, right)
    # Arrow cuts the quotient off at scale s1 + p2 - s2 + 1; one digit more than the result has is enough for HALF_UP.
    scale = max(left.type.scale, target.scale + right.type.scale - right.type.precision)
    precision = left.type.precision + scale - left.type.scale
    if precision + right.type.precision + 2 > DIGITS_MAX or precision > DIGITS_MAX:
        return _by_row(_quotient, target, left, right)
    quotient = pc.divide(left.cast(pa.decimal256(precision, scale)), _wide(right))
    return rounded(quotient, target)


def remainder(target: pa.Decimal128Type, left: Value, right: Value) -> Value:
    """Decimal `%`, with the sign of the dividend."""
    _refuse_zero(left, right)
    return _by_row(lambda a, b: _EXACT.remainder(a, b), target, left, right)


def integral_divide(left: Value, right: Value) -> Value:
    """Decimal `div`: the quotient without its fraction, as a bigint."""
    _refuse_zero(left, right)
    whole = _by_row(lambda a, b: _EXACT.divide_int(a, b), pa.decimal128(38, 0), left, right)
    return checked(lambda value: pc.cast(value, pa.int64()), [whole], "the quotient does not fit a bigint")


def rounded(exact: Value, target: pa.Decimal128Type) -> Value:
    """Return decimals rounded HALF_UP to the scale of `target`, which have to fit its precision."""
    reason = f"the result does not fit decimal({target.precision},{target.scale})"
    if exact.type.scale > target.scale:
        exact = _half_up(exact, target.scale)
    return checked(lambda value: value.cast(target), [exact], reason)


def floor(target: pa.Decimal128Type, value: Value) -> Value:
    """The greatest whole number that is not greater."""
    return pc.floor(_wide(value)).cast(target)


def ceil(target: pa.Decimal128Type, value: Value) -> Value:
    """The least whole number that is not less."""
    return pc.ceil(_wide(value)).cast(target)


def round_half_up(target: pa.Decimal128Type, value: Value, places: int) -> Value:
    """`round(value, places)`; `places` may be negative."""
    if 0 <= places < value.type.scale:
        return rounded(pc.cast(_half_up(_wide(value), places), pa.decimal256(DIGITS_MAX - 2, places)), target)
    if places >= value.type.scale:
        return rounded(value, target)
    quantum = Decimal(1).scaleb(-places)
    return _by_row(lambda a, _: _EXACT.multiply(_whole(_EXACT.divide(a, quantum)), quantum), target, value, value)


def _half_up(exact: Value, scale: int) -> Value:
    """Return decimals cut to a lower scale after half a unit was added away from zero."""
    half = Decimal(5).scaleb(-scale - 1)
    if exact.type.precision >= DIGITS_MAX:
        exact = exact.cast(pa.decimal256(DIGITS_MAX - 1, exact.type.scale))
    step = pa.scalar(half, pa.decimal256(exact.type.precision, exact.type.scale))
    away = pc.if_else(pc.less(pc.sign(exact), 0), pc.negate(step), step)
    moved = pc.add(exact.cast(pa.decimal256(exact.type.precision, exact.type.scale)), away)
    return moved.cast(pa.decimal256(moved.type.precision, scale), safe=False)


def _wide(value: Value) -> Value:
    return value.cast(pa.decimal256(value.type.precision, value.type.scale))


def _sum_digits(left: pa.Decimal128Type, right: pa.Decimal128Type) -> int:
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return int(whole + max(left.scale, right.scale) + 1)


def _refuse_zero(left: Value, right: Value) -> None:
    fail_where(pc.and_(pc.equal(pc.sign(right), 0), pc.is_valid(left)), [left, right], "division by zero")


def _quotient(left: Decimal, right: Decimal) -> Decimal:
    return _EXACT.divide(left, right)


def _whole(value: Decimal) -> Decimal:
    return value.to_integral_value(rounding=decimal.ROUND_HALF_UP)


def _by_row(
    function: Callable[[Decimal, Decimal], Decimal], target: pa.Decimal128Type, left: Value, right: Value
) -> pa.Array:
    rows = rows_of([left, right])
    quantum, limit = Decimal(1).scaleb(-target.scale), Decimal(10) ** (target.precision - target.scale)
    found: list[Decimal | None] = []
    pairs = zip(as_array(left, left.type, rows).to_pylist(), as_array(right, right.type, rows).to_pylist(), strict=True)
    for row, (a, b) in enumerate(pairs):
        result = None if a is None or b is None else _EXACT.quantize(function(a, b), quantum)
        if result is not None and abs(result) >= limit:
            reason = f"the result does not fit decimal({target.precision},{target.scale})"
            raise RowFailure(row, f"{reason}: {shown([left, right], row)}")
        found.append(result)
    return pa.array(found, type=target)
