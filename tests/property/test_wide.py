"""128-bit arithmetic against Python's integers and decimals."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.operators.wide import add_wide, divide_half_up, fits_digits, less_wide

LARGEST = 10**38 - 1
wide = st.one_of(
    st.integers(-LARGEST, LARGEST),
    st.integers(-(2**64) - 2, 2**64 + 2),
    st.integers(0, 38).flatmap(lambda digits: st.sampled_from([10**digits, 10**digits - 1, -(10**digits)])),
).filter(lambda value: abs(value) <= LARGEST)
MANY = settings(max_examples=300, deadline=None)


def split(value: int) -> tuple[int, int]:
    low = value & (2**64 - 1)
    return low - 2**64 if low >> 63 else low, value >> 64


def join(low: int, high: int) -> int:
    return (high << 64) | (low & (2**64 - 1))


@MANY
@given(wide, wide, st.integers(1, 38))
def test_sums_comparisons_and_digits(left: int, right: int, digits: int) -> None:
    total = left + right
    found = add_wide(*split(left), *split(right))
    if -(2**127) <= total < 2**127:
        assert join(*found) == total
    else:
        assert not fits_digits(*found, 38)
    assert less_wide(*split(left), *split(right)) == (left < right)
    assert fits_digits(*split(left), digits) == (abs(left) < 10**digits)


@MANY
@given(wide, st.integers(1, 2**63 - 1), st.integers(0, 4), st.integers(1, 38))
def test_division_rounds_halves_away_from_zero(value: int, divisor: int, extra: int, digits: int) -> None:
    with localcontext() as context:
        context.prec = 120
        expected = int((Decimal(value) * 10**extra / divisor).to_integral_value(ROUND_HALF_UP))
    low, high, fits = divide_half_up(*split(value), divisor, extra, digits)
    assert fits == (abs(expected) < 10**digits)
    if fits:
        assert join(low, high) == expected


@MANY
@given(st.integers(-(10**18), 10**18), st.integers(1, 1000))
def test_exact_halves(value: int, half: int) -> None:
    low, high, _ = divide_half_up(*split(value * 2 * half + half), 2 * half, 0, 38)
    assert join(low, high) == (value + 1 if value * 2 * half + half > 0 else value)
