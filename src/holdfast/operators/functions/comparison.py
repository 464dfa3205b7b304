"""Comparisons as Spark orders values.

Invariants:
    * NaN equals NaN and is greater than every other number; -0.0 equals 0.0; false is less than true.
    * Strings and binaries are ordered by their bytes.
    * A comparison with null is null, but for `null_safe_equal`, which is never null.
"""

from __future__ import annotations

from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions.values import Value, as_array, is_array, rows_of


def equal(left: Value, right: Value) -> Value:
    """Spark's `=`."""
    found = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        return pc.or_(found, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return found


def less(left: Value, right: Value) -> Value:
    """Spark's `<`."""
    found = pc.less(left, right)
    if pa.types.is_floating(left.type):
        return pc.or_(found, pc.and_(pc.is_nan(right), pc.invert(pc.is_nan(left))))
    return found


def less_equal(left: Value, right: Value) -> Value:
    """Spark's `<=`."""
    found = pc.less_equal(left, right)
    return pc.or_(found, pc.and_(pc.is_nan(right), pc.is_valid(left))) if pa.types.is_floating(left.type) else found


def greater(left: Value, right: Value) -> Value:
    """Spark's `>`."""
    return less(right, left)


def greater_equal(left: Value, right: Value) -> Value:
    """Spark's `>=`."""
    return less_equal(right, left)


def null_safe_equal(left: Value, right: Value) -> Value:
    """Spark's `<=>`: two nulls are equal."""
    same = pc.fill_null(equal(left, right), False)
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def is_in(value: Value, *items: Value) -> Value:
    """Spark's `IN`: true where found, else null where the value or an item is null."""
    plain = not pa.types.is_floating(value.type) and not any(is_array(item) for item in items)
    if not plain or not is_array(value):
        return reduce(pc.or_kleene, [equal(value, item) for item in items])
    known = [item for item in items if item.is_valid]
    found = pc.is_in(value, value_set=pa.array([item.as_py() for item in known], type=value.type))
    if len(known) < len(items):
        found = pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    return pc.if_else(pc.is_valid(value), found, pa.scalar(None, pa.bool_())) if value.null_count else found


def is_nan(value: Value) -> Value:
    """Spark's `isnan`: false for null."""
    return pc.fill_null(pc.is_nan(value), False)


def greatest(*values: Value) -> Value:
    """Spark's `greatest`: nulls are passed over."""
    return reduce(lambda best, value: _pick(best, value, greater(value, best)), values)


def least(*values: Value) -> Value:
    """Spark's `least`: nulls are passed over."""
    return reduce(lambda best, value: _pick(best, value, less(value, best)), values)


def _pick(best: Value, value: Value, better: Value) -> Value:
    """Return `value` where it is better or `best` is null, else `best`."""
    rows = rows_of([best, value])
    take = pc.or_(pc.is_null(best), pc.fill_null(better, False))
    return pc.if_else(take, as_array(value, value.type, rows), as_array(best, best.type, rows))
