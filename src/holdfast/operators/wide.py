"""128-bit integers in kernels: the sums of decimals.

Invariants:
    * A value is two words, low and high, in two's complement: Arrow's own layout of a decimal.
    * Nothing rounds but `divide_half_up`, which rounds halves away from zero, as Spark does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

_LIMITS = [10**digits for digits in range(39)]
_LIMITS_LOW = np.array([limit & (2**64 - 1) for limit in _LIMITS], np.uint64)
_LIMITS_HIGH = np.array([limit >> 64 for limit in _LIMITS], np.uint64)
_TOP = np.uint64(1 << 63)


@njit("UniTuple(uint64, 2)(int64, int64)", cache=True, nogil=True)
def _size(low: Any, high: Any) -> Any:
    """Return the absolute value."""
    if high >= 0:
        return np.uint64(low), np.uint64(high)
    size_low = ~np.uint64(low) + np.uint64(1)
    size_high = ~np.uint64(high)
    if size_low == np.uint64(0):
        size_high += np.uint64(1)
    return size_low, size_high


@njit("UniTuple(int64, 2)(int64, int64)", cache=True, nogil=True)
def _negate(low: Any, high: Any) -> Any:
    negated = ~np.uint64(low) + np.uint64(1)
    return np.int64(negated), (~high) + (np.int64(1) if negated == np.uint64(0) else np.int64(0))


@njit("UniTuple(uint64, 2)(uint64, uint64)", cache=True, nogil=True)
def _times_ten(low: Any, high: Any) -> Any:
    # Ten times 32-bit halves stays within 64 bits.
    half = (low & np.uint64(0xFFFFFFFF)) * np.uint64(10)
    upper = (low >> np.uint64(32)) * np.uint64(10) + (half >> np.uint64(32))
    return (upper << np.uint64(32)) | (half & np.uint64(0xFFFFFFFF)), high * np.uint64(10) + (upper >> np.uint64(32))


@njit("UniTuple(uint64, 3)(uint64, uint64, uint64)", cache=True, nogil=True)
def _divide_size(low: Any, high: Any, divisor: Any) -> Any:
    """Return low and high word of the quotient, and the remainder; bit by bit, as no wider division is at hand."""
    quotient_high = high // divisor
    remainder = high % divisor
    quotient_low = np.uint64(0)
    for bit in range(63, -1, -1):
        carried = remainder >= _TOP
        remainder = (remainder << np.uint64(1)) | ((low >> np.uint64(bit)) & np.uint64(1))
        quotient_low <<= np.uint64(1)
        if carried or remainder >= divisor:
            remainder -= divisor
            quotient_low |= np.uint64(1)
    return quotient_low, quotient_high, remainder


@njit("UniTuple(int64, 2)(int64, int64, int64, int64)", cache=True, nogil=True)
def add_wide(low: Any, high: Any, other_low: Any, other_high: Any) -> Any:
    """Return the sum's low and high words; with up to 38 digits each it always fits but for the sign test below."""
    total = np.uint64(low) + np.uint64(other_low)
    carry = np.int64(1) if total < np.uint64(low) else np.int64(0)
    return np.int64(total), high + other_high + carry


@njit("boolean(int64, int64, int64)", cache=True, nogil=True)
def fits_digits(low: Any, high: Any, digits: Any) -> Any:
    """Return whether a value has at most so many decimal digits."""
    size_low, size_high = _size(low, high)
    limit_high = _LIMITS_HIGH[digits]
    return size_high < limit_high or (size_high == limit_high and size_low < _LIMITS_LOW[digits])


@njit("boolean(int64, int64, int64, int64)", cache=True, nogil=True)
def less_wide(low: Any, high: Any, other_low: Any, other_high: Any) -> Any:
    return high < other_high or (high == other_high and np.uint64(low) < np.uint64(other_low))


@njit("Tuple((int64, int64, boolean))(int64, int64, int64, int64, int64)", cache=True, nogil=True)
def divide_half_up(low: Any, high: Any, divisor: Any, extra_digits: Any, digits: Any) -> Any:
    """Return value / divisor with `extra_digits` more decimal places, and whether it has at most `digits` digits."""
    negative = high < 0
    size_low, size_high = _size(low, high)
    unit = np.uint64(divisor)
    quotient_low, quotient_high, remainder = _divide_size(size_low, size_high, unit)
    for _ in range(extra_digits):
        # Schoolbook: ten times the remainder gives the next digit.
        ten_low, ten_high = _times_ten(remainder, np.uint64(0))
        digit_low, digit_high, remainder = _divide_size(ten_low, ten_high, unit)
        grown_low, grown_high = _times_ten(quotient_low, quotient_high)
        if quotient_high > _LIMITS_HIGH[37]:
            return np.int64(0), np.int64(0), False
        quotient_low = grown_low + digit_low
        quotient_high = grown_high + digit_high + (np.uint64(1) if quotient_low < grown_low else np.uint64(0))
    if remainder >= unit - remainder:
        quotient_low += np.uint64(1)
        if quotient_low == np.uint64(0):
            quotient_high += np.uint64(1)
    result_low, result_high = np.int64(quotient_low), np.int64(quotient_high)
    fits = result_high >= 0 and fits_digits(result_low, result_high, digits)
    if negative:
        result_low, result_high = _negate(result_low, result_high)
    return result_low, result_high, fits
