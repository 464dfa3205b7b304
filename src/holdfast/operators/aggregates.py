"""Aggregate functions: which words they keep, how their arguments are encoded, what they give.

Invariants:
    * Results, their types, and what null, NaN and overflow do are Spark's (ANSI where the plan says so).
    * A variable value (text, bytes) is three words: whether there is one, its length, its address. Inside a wave
      the address is a place in the wave's own bytes; between waves it is an address of the state's heap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from holdfast import plan
from holdfast.errors import BadRow, UnsupportedQuery
from holdfast.operators import folding
from holdfast.operators.columns import (
    Bytes,
    Kind,
    Words,
    fixed_words,
    from_variable,
    from_words,
    kind_of,
    plain,
    valid_mask,
    variable_parts,
)
from holdfast.operators.folding import HAS_VALUE, NEVER_NULL, PROGRAM_WORDS, WORDS_OF_CODE
from holdfast.operators.functions.casts import float_to_decimal
from holdfast.operators.wide import divide_half_up

DIGITS_MAX = 38
REAL_DIGITS_MAX = 15
"""Spark computes the mean of a decimal with so few digits as a double of its unscaled value (`DecimalAggregates`)."""
NO_BYTES = np.zeros(0, np.uint8)

Gather = Callable[[Words, Words], tuple[Words, Bytes]]
"""From addresses and lengths to offsets and data."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One aggregate: its code, where its words start, which argument it folds."""

    name: str
    function: str
    code: int
    word: int
    argument: int | None
    argument_type: pa.DataType | None
    type: pa.DataType
    digits: int

    @property
    def variable(self) -> bool:
        return self.argument_type is not None and self.words == 3 and kind_of(self.argument_type) == Kind.VARIABLE

    @property
    def words(self) -> int:
        return WORDS_OF_CODE[self.code]


@dataclass(frozen=True, slots=True)
class AggregateLayout:
    """The aggregates of a window, one after the other in `word_count` words."""

    slots: tuple[Slot, ...]
    word_count: int
    expressions: tuple[plan.Expression, ...]

    @property
    def variable_words(self) -> tuple[int, ...]:
        """Return the words that hold the length of a variable value; its address follows."""
        return tuple(slot.word + 1 for slot in self.slots if slot.variable)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the kernels fold: words and validity per row, the bytes of variable values, and the program for them."""

    matrix: Words
    valid: Bytes
    data: Bytes
    program: Words

    @property
    def numbers(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the matrix with its words read as reals."""
        return self.matrix.view(np.float64)


def aggregate_layout(
    aggregates: Sequence[plan.Aggregate], type_of: Callable[[plan.Expression], pa.DataType]
) -> AggregateLayout:
    """Return the layout of the aggregates; equal arguments are evaluated once."""
    expressions: list[plan.Expression] = []
    found = []
    for aggregate in aggregates:
        argument = None
        if aggregate.argument is not None:
            if aggregate.argument not in expressions:
                expressions.append(aggregate.argument)
            argument = expressions.index(aggregate.argument)
        found.append(_slot(aggregate, argument, type_of))
    slots, word_count = _placed(found)
    return AggregateLayout(slots, word_count, tuple(expressions))


def _placed(slots: Sequence[Slot]) -> tuple[tuple[Slot, ...], int]:
    """Give each slot its words. Variable values come first, as a record can name only so many words as theirs."""
    starts: dict[int, int] = {}
    word = 0
    for number in sorted(range(len(slots)), key=lambda number: not slots[number].variable):
        starts[number] = word
        word += slots[number].words
    return tuple(replace(slot, word=starts[number]) for number, slot in enumerate(slots)), word


def _slot(aggregate: plan.Aggregate, argument: int | None, type_of: Callable[[plan.Expression], pa.DataType]) -> Slot:
    function = aggregate.function
    if function == "count_all" or aggregate.argument is None:
        return Slot(aggregate.name, function, folding.COUNT_ROWS, 0, None, None, pa.int64(), 0)
    type_ = type_of(aggregate.argument)
    code, result, digits = _code(aggregate, type_)
    return Slot(aggregate.name, function, code, 0, argument, type_, result, digits if aggregate.ansi else -digits)


def _code(aggregate: plan.Aggregate, type_: pa.DataType) -> tuple[int, pa.DataType, int]:
    """Return an aggregate's code, its result's type, and for decimal sums the digits that the sum may have."""
    function = aggregate.function
    kind = kind_of(type_)
    if function == "count":
        return folding.COUNT, pa.int64(), 0
    if kind is None:
        raise _unsupported(function, type_)
    if function in ("min", "max"):
        return _EXTREMES[function, kind], type_, 0
    if function in ("first", "last"):
        return _PICKS[function, aggregate.ignore_nulls] + (1 if _is_wide(kind) else 0), type_, 0
    if function in ("stddev_samp", "stddev_pop", "var_samp", "var_pop") and _is_number(type_):
        return folding.MOMENTS, pa.float64(), 0
    if function == "sum":
        return _sum_code(aggregate, type_, kind)
    if function == "avg" and (_is_number(type_) or pa.types.is_duration(type_)):
        return _mean_code(type_, kind)
    raise _unsupported(function, type_)


def _unsupported(function: str, type_: pa.DataType) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"{function} of a column of type {type_} cannot be computed in a stream; cast the column, or leave it out"
    )


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal128(type_))


def _is_wide(kind: Kind) -> bool:
    return kind in (Kind.LONG_DECIMAL, Kind.VARIABLE)


def _sum_code(aggregate: plan.Aggregate, type_: pa.DataType, kind: Kind) -> tuple[int, pa.DataType, int]:
    if pa.types.is_decimal128(type_):
        digits = min(DIGITS_MAX, type_.precision + 10)
        code = folding.SUM_LONG_DECIMAL if kind == Kind.LONG_DECIMAL else folding.SUM_DECIMAL
        return code, pa.decimal128(digits, type_.scale), digits
    if kind == Kind.REAL:
        return folding.SUM_REAL, pa.float64(), 0
    if pa.types.is_duration(type_):
        return folding.SUM_LONG, type_, 0
    if pa.types.is_integer(type_):
        return folding.SUM_LONG if aggregate.ansi else folding.SUM_LONG_WRAPPED, pa.int64(), 0
    raise _unsupported("sum", type_)


def _mean_code(type_: pa.DataType, kind: Kind) -> tuple[int, pa.DataType, int]:
    if pa.types.is_decimal128(type_):
        result = pa.decimal128(min(DIGITS_MAX, type_.precision + 4), min(DIGITS_MAX, type_.scale + 4))
        if result.precision <= REAL_DIGITS_MAX:
            return folding.MEAN_REAL, result, 0
        code = folding.SUM_LONG_DECIMAL if kind == Kind.LONG_DECIMAL else folding.SUM_DECIMAL
        return code, result, min(DIGITS_MAX, type_.precision + 10)
    if pa.types.is_duration(type_):
        # Whole microseconds, rounded as decimals are.
        return folding.SUM_DECIMAL, type_, DIGITS_MAX
    return folding.MEAN_REAL, pa.float64(), 0


_EXTREMES = {
    ("min", Kind.INTEGER): folding.MIN_LONG,
    ("max", Kind.INTEGER): folding.MAX_LONG,
    ("min", Kind.BOOLEAN): folding.MIN_LONG,
    ("max", Kind.BOOLEAN): folding.MAX_LONG,
    ("min", Kind.DECIMAL): folding.MIN_LONG,
    ("max", Kind.DECIMAL): folding.MAX_LONG,
    ("min", Kind.NOTHING): folding.MIN_LONG,
    ("max", Kind.NOTHING): folding.MAX_LONG,
    ("min", Kind.REAL): folding.MIN_REAL,
    ("max", Kind.REAL): folding.MAX_REAL,
    ("min", Kind.LONG_DECIMAL): folding.MIN_DECIMAL,
    ("max", Kind.LONG_DECIMAL): folding.MAX_DECIMAL,
    ("min", Kind.VARIABLE): folding.MIN_BYTES,
    ("max", Kind.VARIABLE): folding.MAX_BYTES,
}
_PICKS = {
    ("first", False): folding.FIRST,
    ("first", True): folding.FIRST_VALUE,
    ("last", False): folding.LAST,
    ("last", True): folding.LAST_VALUE,
}
_AS_REAL = frozenset({folding.MEAN_REAL, folding.MOMENTS, folding.SUM_REAL})


class _ArgumentRows:
    """Collects the rows of the arguments matrix; the same argument in the same form is there once."""

    def __init__(self, columns: Sequence[pa.Array], rows: int, data: Bytes) -> None:
        self._columns = columns
        self._rows = rows
        self._places: dict[tuple[int, str], int] = {}
        self._valid_places: dict[int, int] = {}
        self._data = [data] if len(data) else []
        self._data_size = len(data)
        self.words: list[Words] = []
        self.valid: list[Bytes] = []

    def place(self, slot: Slot) -> tuple[int, int]:
        """Return the first row of the slot's argument in the matrix, and its row of validity."""
        if slot.argument is None:
            return 0, NEVER_NULL
        validity = self._validity(slot.argument)
        if slot.code == folding.COUNT:
            return 0, validity
        form = _form(slot)
        place = self._places.get((slot.argument, form))
        if place is None:
            place = len(self.words)
            self._places[slot.argument, form] = place
            self.words.extend(self._encode(self._columns[slot.argument], form))
        return place, validity

    def _validity(self, argument: int) -> int:
        if argument not in self._valid_places:
            mask = valid_mask(self._columns[argument])
            self._valid_places[argument] = NEVER_NULL if mask is None else len(self.valid)
            if mask is not None:
                self.valid.append(mask.view(np.uint8))
        return self._valid_places[argument]

    def _encode(self, column: pa.Array, form: str) -> list[Words]:
        kind = kind_of(column.type)
        if kind == Kind.VARIABLE:
            offsets, data = variable_parts(column)
            starts = offsets[:-1] + self._data_size
            self._data.append(data)
            self._data_size += len(data)
            return [offsets[1:] - offsets[:-1], starts]
        if form == "unscaled":
            return [fixed_words(column).astype(np.float64).view(np.int64)]
        if form == "real" and kind != Kind.REAL:
            return [fixed_words(plain(column.cast(pa.float64(), safe=False)))]
        words = fixed_words(column)
        if kind == Kind.LONG_DECIMAL:
            return [np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1])]
        return [words]

    def data(self) -> Bytes:
        if not self._data:
            return NO_BYTES
        return np.ascontiguousarray(self._data[0]) if len(self._data) == 1 else np.concatenate(self._data)


def _form(slot: Slot) -> str:
    """Return how the slot wants its argument: as its words, as a real, or as the real of a decimal's unscaled value."""
    if slot.code not in _AS_REAL:
        return "words"
    return "unscaled" if pa.types.is_decimal128(slot.type) else "real"


def encode_arguments(layout: AggregateLayout, columns: Sequence[pa.Array], rows: int, kept: Bytes) -> Arguments:
    """Return what the kernels fold. `kept` are bytes of values from before this wave; their places stay."""
    collected = _ArgumentRows(columns, rows, kept)
    program = np.zeros((len(layout.slots), PROGRAM_WORDS), np.int64)
    for number, slot in enumerate(layout.slots):
        program[number] = (slot.code, slot.word, *collected.place(slot), slot.digits)
    return Arguments(
        _stack(collected.words, rows, np.int64), _stack(collected.valid, rows, np.uint8), collected.data(), program
    )


def _stack(rows_of_words: list[Any], rows: int, dtype: Any) -> np.ndarray[Any, Any]:
    if not rows_of_words:
        return np.zeros((1, rows), dtype) if rows == 0 else np.zeros((0, rows), dtype)
    if len(rows_of_words) == 1:
        return np.ascontiguousarray(rows_of_words[0]).reshape(1, -1)
    return np.stack(rows_of_words)


def finish_aggregates(layout: AggregateLayout, values: Words, gather: Gather) -> list[pa.Array]:
    """Return the result columns of windows whose words are the rows of `values`."""
    return [_finish(slot, values[:, slot.word : slot.word + slot.words], gather) for slot in layout.slots]


def _finish(slot: Slot, words: Words, gather: Gather) -> pa.Array:
    if slot.type.equals(pa.int64()) and slot.code in (folding.COUNT, folding.COUNT_ROWS):
        return from_words(np.ascontiguousarray(words[:, 0]), None, slot.type)
    if slot.code == folding.MOMENTS:
        return _finish_moments(slot, np.ascontiguousarray(words).view(np.float64))
    if slot.code == folding.MEAN_REAL:
        return _finish_mean(slot, words)
    if slot.code in (folding.SUM_DECIMAL, folding.SUM_LONG_DECIMAL):
        return _finish_decimal(slot, words)
    mask = words[:, 0] == HAS_VALUE
    if slot.variable:
        offsets, data = gather(np.ascontiguousarray(words[:, 2]), np.ascontiguousarray(words[:, 1]))
        return from_variable(offsets, data, mask, slot.type)
    value = words[:, 1] if slot.words == 2 else words[:, 1:3]
    return from_words(np.ascontiguousarray(value), mask, slot.type)


def _finish_mean(slot: Slot, words: Words) -> pa.Array:
    counts = words[:, 0]
    sums = np.ascontiguousarray(words[:, 1]).view(np.float64)
    means = sums / np.maximum(counts, 1).astype(np.float64)
    if not pa.types.is_decimal128(slot.type):
        return from_words(means.view(np.int64), counts > 0, slot.type)
    assert slot.argument_type is not None
    scaled = pa.array(means / 10.0**slot.argument_type.scale, mask=counts == 0)
    return float_to_decimal(slot.type, scaled)


def _finish_moments(slot: Slot, reals: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Array:
    """Return variance or deviation; of a sample of one it is null, as Spark has it."""
    counts = reals[:, 0]
    sample = slot.function.endswith("_samp")
    divisor = counts - 1.0 if sample else counts
    mask = divisor > 0.0
    results = np.where(mask, reals[:, 2], 0.0) / np.where(mask, divisor, 1.0)
    if slot.function.startswith("stddev"):
        with np.errstate(invalid="ignore"):
            results = np.sqrt(results)
    return from_words(results.view(np.int64), mask, slot.type)


def _finish_decimal(slot: Slot, words: Words) -> pa.Array:
    mask = words[:, 0] > 0
    if slot.function == "sum":
        results = np.ascontiguousarray(words[:, 1:3])
    else:
        assert slot.argument_type is not None
        exact = pa.types.is_decimal128(slot.type)
        extra_digits = slot.type.scale - slot.argument_type.scale if exact else 0
        digits = slot.type.precision if exact else DIGITS_MAX
        results, fits = _divide_rows(np.ascontiguousarray(words), extra_digits, digits)
        if not bool(fits.all()):
            if slot.digits > 0:
                raise BadRow(
                    f"{slot.function} {slot.name!r} of a window does not fit {slot.type}: cast its argument to a "
                    "decimal with fewer digits before the point, or to double"
                )
            mask = mask & fits
    if kind_of(slot.type) != Kind.LONG_DECIMAL:
        return from_words(np.ascontiguousarray(results[:, 0]), mask, slot.type)
    return from_words(results, mask, slot.type)


@njit("Tuple((int64[:, ::1], boolean[::1]))(int64[:, ::1], int64, int64)", cache=True, nogil=True)
def _divide_rows(words: Any, extra_digits: Any, digits: Any) -> Any:
    results = np.zeros((words.shape[0], 2), np.int64)
    fits = np.ones(words.shape[0], np.bool_)
    for i in range(words.shape[0]):
        if words[i, 0] > 0:
            low, high, fit = divide_half_up(words[i, 1], words[i, 2], words[i, 0], extra_digits, digits)
            results[i, 0] = low
            results[i, 1] = high
            fits[i] = fit
    return results, fits
