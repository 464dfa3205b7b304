"""Codes of aggregates, and how the rarer ones fold one row; `window_kernels` has the loop and the common ones.

Invariants:
    * Rows are folded one by one, in order: no partial sums, no fastmath. So results are the same on every replica, at
      every replay, and however rows are grouped into waves.
    * All words zero is the state of a window without rows.
    * A step writes either all of an aggregate's words or, when it fails, none of them.

An aggregate's program is five numbers: its code, its first word, the first row of its argument's words in the
arguments matrix, its argument's row of validity (or NEVER_NULL), and the digits its sum may have.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from holdfast.operators.wide import add_wide, fits_digits, less_wide

COUNT_ROWS = 1
COUNT = 2
SUM_LONG = 3
SUM_LONG_WRAPPED = 4
SUM_REAL = 5
SUM_DECIMAL = 6
SUM_LONG_DECIMAL = 7
MIN_LONG = 8
MAX_LONG = 9
MIN_REAL = 10
MAX_REAL = 11
MIN_DECIMAL = 12
MAX_DECIMAL = 13
MIN_BYTES = 14
MAX_BYTES = 15
MEAN_REAL = 16
MOMENTS = 17
FIRST = 18
FIRST_WIDE = 19
FIRST_VALUE = 20
FIRST_VALUE_WIDE = 21
LAST = 22
LAST_WIDE = 23
LAST_VALUE = 24
LAST_VALUE_WIDE = 25

WORDS_OF_CODE = {
    COUNT_ROWS: 1,
    COUNT: 1,
    SUM_LONG: 2,
    SUM_LONG_WRAPPED: 2,
    SUM_REAL: 2,
    SUM_DECIMAL: 3,
    SUM_LONG_DECIMAL: 3,
    MIN_LONG: 2,
    MAX_LONG: 2,
    MIN_REAL: 2,
    MAX_REAL: 2,
    MIN_DECIMAL: 3,
    MAX_DECIMAL: 3,
    MIN_BYTES: 3,
    MAX_BYTES: 3,
    MEAN_REAL: 2,
    MOMENTS: 3,
    FIRST: 2,
    FIRST_WIDE: 3,
    FIRST_VALUE: 2,
    FIRST_VALUE_WIDE: 3,
    LAST: 2,
    LAST_WIDE: 3,
    LAST_VALUE: 2,
    LAST_VALUE_WIDE: 3,
}

PROGRAM_WORDS = 5
NEVER_NULL = -1
HAS_VALUE = 1
HAS_NULL = 2
OVERFLOWED = -1
"""In place of a count: the sum of an aggregate that is not ANSI has overflowed and stays null."""


@njit("boolean(uint8[::1], int64, int64, int64, int64)", cache=True, nogil=True)
def less_bytes(data: Any, length: Any, start: Any, other_length: Any, other_start: Any) -> Any:
    """Return whether one run of bytes sorts before another; bytes have no sign."""
    for k in range(min(length, other_length)):
        left = data[start + k]
        right = data[other_start + k]
        if left != right:
            return left < right
    return length < other_length


@njit("boolean(float64, float64)", cache=True, nogil=True)
def less_real(left: Any, right: Any) -> Any:
    """Return whether `left` sorts before `right`: NaN is the largest, both zeros are equal."""
    return left < right or (right != right and left == left)


@njit(
    "boolean(int64[::1], int64, int64, int64[:, ::1], int64, int64, int64)",
    cache=True,
    nogil=True,
)
def sum_decimal(words: Any, p: Any, digits: Any, arguments: Any, argument: Any, row: Any, wide: Any) -> Any:
    """Add a decimal to the count at `p` and the sum behind it; return whether the sum fits."""
    if words[p] == OVERFLOWED:
        return True
    low = arguments[argument, row]
    high = arguments[argument + 1, row] if wide else low >> 63
    total_low, total_high = add_wide(words[p + 1], words[p + 2], low, high)
    if not fits_digits(total_low, total_high, abs(digits)):
        if digits > 0:
            return False
        # Negative digits: not ANSI.
        words[p] = OVERFLOWED
        return True
    words[p] += 1
    words[p + 1] = total_low
    words[p + 2] = total_high
    return True


@njit("void(int64[::1], int64, int64, int64[:, ::1], int64, int64, uint8[::1])", cache=True, nogil=True)
def fold_extreme(words: Any, p: Any, code: Any, arguments: Any, argument: Any, row: Any, data: Any) -> None:
    """Fold a value of two words, a decimal or (length, place in `data`), into a minimum or maximum."""
    first = arguments[argument, row]
    second = arguments[argument + 1, row]
    if words[p] == HAS_VALUE:
        if code == MIN_DECIMAL:
            better = less_wide(first, second, words[p + 1], words[p + 2])
        elif code == MAX_DECIMAL:
            better = less_wide(words[p + 1], words[p + 2], first, second)
        elif code == MIN_BYTES:
            better = less_bytes(data, first, second, words[p + 1], words[p + 2])
        else:
            better = less_bytes(data, words[p + 1], words[p + 2], first, second)
        if not better:
            return
    words[p] = HAS_VALUE
    words[p + 1] = first
    words[p + 2] = second


@njit("void(int64[::1], int64, int64, int64[:, ::1], int64, int64, boolean)", cache=True, nogil=True)
def fold_pick(words: Any, p: Any, code: Any, arguments: Any, argument: Any, row: Any, null: Any) -> None:
    """Fold a row into first or last."""
    skips_nulls = code in (FIRST_VALUE, FIRST_VALUE_WIDE, LAST_VALUE, LAST_VALUE_WIDE)
    if (null and skips_nulls) or (code <= FIRST_VALUE_WIDE and words[p] != 0):
        return
    wide = code in (FIRST_WIDE, FIRST_VALUE_WIDE, LAST_WIDE, LAST_VALUE_WIDE)
    words[p] = HAS_NULL if null else HAS_VALUE
    words[p + 1] = 0 if null else arguments[argument, row]
    if wide:
        words[p + 2] = 0 if null else arguments[argument + 1, row]
