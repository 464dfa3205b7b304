"""Casts as Spark's ANSI mode has them.

Invariants:
    * A value that does not fit, or a text that is not of the type, fails its row: nothing wraps, nothing becomes null.
    * `castable` says beforehand whether a cast is here; the front end asks it, so a stream never meets one that is not.
    * Not here: text to timestamps, which Spark takes in many spellings, and text of floats, which depends on the
      version of Java.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions import calendar, decimals
from holdfast.operators.functions.arithmetic import fits, saturated
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
from holdfast.operators.types import TIMESTAMP, TIMESTAMP_NTZ, is_decimal, is_floating, is_integral

SECOND_US: Final = 1_000_000
_EXACT_DIGITS: Final = 15
_WHOLE: Final = r"\A[+-]?[0-9]+\z"
_FRACTION: Final = r"\A[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
_FLOAT: Final = r"(?i)\A[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?[df]?|inf|infinity|nan)\z"
_DATE: Final = r"\A(?P<sign>[+-]?)(?P<year>[0-9]{4,7})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T].*)?)?)?\z"
_BLANKS: Final = "".join(map(chr, range(33))) + "\x7f"
_TRUE: Final = pa.array(["t", "true", "y", "yes", "1"])
_FALSE: Final = pa.array(["f", "false", "n", "no", "0"])


def castable(source: str, target: str) -> bool:
    """Return whether a cast between two Spark types is here."""
    if source == target or source == "void":
        return True
    kinds = (_kind(source), _kind(target))
    return None not in kinds and kinds in _CASTS


def cast(target: pa.DataType, value: Value, source: Value, kind: Value, zone: Value) -> Value:
    """Cast from the Spark type `source` to `kind`; `zone` is the session's time zone."""
    if source.as_py() == kind.as_py():
        return value
    if source.as_py() == "void":
        return pa.scalar(None, target)
    function = _CASTS[_kind(source.as_py()), _kind(kind.as_py())]  # type: ignore[index]
    return function(target, value, zone.as_py())


def _kind(text: str) -> str | None:
    """Return the group of types that are cast alike."""
    if is_integral(text):
        return "integral"
    if is_floating(text):
        return "floating"
    if is_decimal(text):
        return "decimal"
    return text if text in ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz") else None


def _does_not_fit(target: pa.DataType) -> str:
    return f"the value does not fit {target}"


def _integral(target: pa.DataType, value: Value, zone: str) -> Value:
    return checked(lambda given: pc.cast(given, target), [value], _does_not_fit(target))


def _rounding(target: pa.DataType, value: Value, zone: str) -> Value:
    return pc.cast(value, target, safe=False)


def _float_to_integral(target: pa.DataType, value: Value, zone: str) -> Value:
    array = as_array(value, value.type, rows_of([value]))
    given = numbers(array, 0.0).astype(np.float64)
    fail_where(pa.array(~fits(given, target)), [array], _does_not_fit(target))
    found = with_nulls_of(saturated(np.trunc(given)), array, pa.int64()).cast(target)
    return found if is_array(value) else found[0]


def _to_boolean(target: pa.DataType, value: Value, zone: str) -> Value:
    return pc.not_equal(value, pa.scalar(0, value.type))


def _decimal_to_boolean(target: pa.DataType, value: Value, zone: str) -> Value:
    return pc.not_equal(pc.sign(value), 0)


def _boolean_to_decimal(target: pa.DataType, value: Value, zone: str) -> Value:
    return _integral_to_decimal(target, pc.cast(value, pa.int8()), zone)


def _integral_to_decimal(target: pa.DataType, value: Value, zone: str) -> Value:
    whole = pc.cast(pc.cast(value, pa.int64()), pa.decimal256(19, 0))
    wide = pa.decimal256(60, target.scale)
    return checked(lambda given: given.cast(wide).cast(target), [whole], _does_not_fit(target))


def _decimal_to_decimal(target: pa.DataType, value: Value, zone: str) -> Value:
    return decimals.rounded(value.cast(pa.decimal256(value.type.precision, value.type.scale)), target)


def _decimal_to_integral(target: pa.DataType, value: Value, zone: str) -> Value:
    whole = value.cast(pa.decimal256(max(value.type.precision, 1), value.type.scale))
    cut = whole.cast(pa.decimal256(76, 0), safe=False)
    return checked(lambda given: given.cast(pa.decimal128(38, 0)).cast(target), [cut], _does_not_fit(target))


def _decimal_to_float(target: pa.DataType, value: Value, zone: str) -> Value:
    if not is_array(value) or value.type.precision > _EXACT_DIGITS or target != pa.float64():
        # Arrow's own cast is not the nearest float; its reading of texts is.
        return pc.cast(pc.cast(value, pa.string()), target)
    # Both numbers are exact as doubles, so their quotient is the nearest one.
    whole = np.frombuffer(value.buffers()[1], dtype=np.int64)[::2][value.offset : value.offset + len(value)]
    return with_nulls_of(whole / 10.0**value.type.scale, value, target)


def _float_to_decimal(target: pa.DataType, value: Value, zone: str) -> Value:
    return float_to_decimal(target, value)


def float_to_decimal(target: pa.DataType, value: Value) -> Value:
    """Return reals as decimals; one that does not fit fails its row."""
    finite = pc.is_finite(value)
    # Spark goes through the shortest text of the number, and makes NaN and infinity null.
    text = pc.cast(pc.cast(pc.if_else(finite, value, pa.scalar(None, value.type)), pa.float64()), pa.string())
    return _decimal_of_text(target, text)


def _text_to_decimal(target: pa.DataType, value: Value, zone: str) -> Value:
    return _decimal_of_text(target, value)


def _decimal_of_text(target: pa.DataType, value: Value) -> Value:
    text = _trimmed(value)
    fail_where(pc.invert(pc.match_substring_regex(text, _FRACTION)), [value], f"the text is not a {target}")
    # Digits far behind the point cannot move a rounded result; Arrow takes none that it cannot keep.
    scale = 36
    kept = pc.replace_substring_regex(text, r"\A([+-]?[0-9]*\.[0-9]{36})[0-9]+\z", r"\1")
    exact = checked(lambda given: pc.cast(given, pa.decimal256(76, scale)), [kept], _does_not_fit(target))
    return decimals.rounded(exact, target)


def _text_to_integral(target: pa.DataType, value: Value, zone: str) -> Value:
    text = _trimmed(value)
    fail_where(pc.invert(pc.match_substring_regex(text, _WHOLE)), [value], f"the text is not a {target}")
    plain = pc.replace_substring_regex(text, r"\A\+", "")
    return checked(lambda given: pc.cast(given, target), [plain], _does_not_fit(target))


def _text_to_float(target: pa.DataType, value: Value, zone: str) -> Value:
    text = _trimmed(value)
    fail_where(pc.invert(pc.match_substring_regex(text, _FLOAT)), [value], f"the text is not a {target}")
    plain = pc.replace_substring_regex(pc.ascii_lower(text), r"\A\+", "")
    plain = pc.replace_substring_regex(plain, r"([0-9.])[df]\z", r"\1")
    return checked(lambda given: pc.cast(given, target), [plain], f"the text is not a {target}")


def _text_to_boolean(target: pa.DataType, value: Value, zone: str) -> Value:
    text = pc.ascii_lower(_trimmed(value))
    true, false = pc.is_in(text, value_set=_TRUE), pc.is_in(text, value_set=_FALSE)
    unknown = pc.and_(pc.invert(pc.or_(true, false)), pc.is_valid(value))
    fail_where(unknown, [value], "the text is not a boolean")
    return pc.if_else(pc.is_valid(value), true, pa.scalar(None, pa.bool_()))


def _text_to_date(target: pa.DataType, value: Value, zone: str) -> Value:
    array = as_array(value, pa.string(), rows_of([value]))
    parts = pc.extract_regex(_trimmed(array), pattern=_DATE)
    fail_where(pc.and_(pc.is_null(parts), pc.is_valid(array)), [array], "the text is not a date")

    def number(name: str, filler: int) -> pa.Array:
        text = pc.struct_field(parts, name)
        # A part that is not there is empty.
        return pc.fill_null(pc.cast(pc.if_else(pc.equal(text, ""), str(filler), text), pa.int64()), filler)

    years = pc.if_else(pc.fill_null(pc.equal(pc.struct_field(parts, "sign"), "-"), False), -1, 1)
    days, valid = _days(
        numbers(pc.multiply(years, number("year", 1970))), numbers(number("month", 1)), numbers(number("day", 1))
    )
    fail_where(pc.and_(pa.array(~valid), pc.is_valid(array)), [array], "the text is not a date")
    found = pc.cast(with_nulls_of(days.astype(np.int32), array, pa.int32()), pa.date32())
    return found if is_array(value) else found[0]


def _days(
    years: np.ndarray[tuple[int], np.dtype[np.int64]],
    months: np.ndarray[tuple[int], np.dtype[np.int64]],
    days: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return days since 1970 in the proleptic Gregorian calendar, and which dates there are."""
    leap = (years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0))
    month_index = np.clip(months, 1, 12) - 1
    lengths = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[month_index] + (leap & (month_index == 1))
    valid = (months >= 1) & (months <= 12) & (days >= 1) & (days <= lengths)
    shifted = years - (months <= 2)
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * (months + np.where(months > 2, -3, 9)) + 2) // 5 + days - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return era * 146_097 + day_of_era - 719_468, valid


def _text(target: pa.DataType, value: Value, zone: str) -> Value:
    return pc.cast(value, target)


def _decimal_to_text(target: pa.DataType, value: Value, zone: str) -> Value:
    text = pc.cast(value, target)
    array = as_array(text, target, rows_of([text]))
    if not pc.any(pc.match_substring(array, "E"), min_count=0).as_py():
        return text
    # Arrow writes very small ones with an exponent, Spark never does.
    encoded = array.dictionary_encode()
    plain = [format(Decimal(word), "f") for word in encoded.dictionary.to_pylist()]
    found = pa.array(plain, type=target).take(encoded.indices)
    return found if is_array(value) else found[0]


def _timestamp_to_text(target: pa.DataType, value: Value, zone: str) -> Value:
    text = pc.cast(calendar.local(value, zone), target)
    return _without_zeros(text)


def _without_zeros(text: Value) -> Value:
    """Take zeros at the end of the fraction off, and a point with nothing behind it."""
    return pc.replace_substring_regex(pc.replace_substring_regex(text, r"(\.[0-9]*?)0+\z", r"\1"), r"\.\z", "")


def _timestamp_to_date(target: pa.DataType, value: Value, zone: str) -> Value:
    return pc.cast(pc.floor_temporal(calendar.local(value, zone), unit="day"), target)


def _date_to_timestamp(target: pa.DataType, value: Value, zone: str) -> Value:
    midnight = pc.cast(value, TIMESTAMP_NTZ)
    return midnight if target == TIMESTAMP_NTZ else calendar.instant(midnight, zone)


def _timestamp_to_ntz(target: pa.DataType, value: Value, zone: str) -> Value:
    return calendar.local(value, zone)


def _ntz_to_timestamp(target: pa.DataType, value: Value, zone: str) -> Value:
    return calendar.instant(value, zone)


def _timestamp_to_integral(target: pa.DataType, value: Value, zone: str) -> Value:
    seconds = pc.cast(pc.floor_temporal(value.cast(TIMESTAMP_NTZ), unit="second"), pa.int64())
    return checked(lambda given: pc.cast(given, target), [pc.divide(seconds, SECOND_US)], _does_not_fit(target))


def _timestamp_to_float(target: pa.DataType, value: Value, zone: str) -> Value:
    micros = pc.cast(pc.cast(value, pa.int64()), pa.float64(), safe=False)
    return pc.cast(pc.divide(micros, float(SECOND_US)), target, safe=False)


def _integral_to_timestamp(target: pa.DataType, value: Value, zone: str) -> Value:
    seconds = pc.cast(value, pa.int64())
    micros = checked(
        lambda given: pc.multiply_checked(given, SECOND_US), [seconds], "the seconds do not fit a timestamp"
    )
    return pc.cast(micros, TIMESTAMP)


_Cast = Callable[[pa.DataType, Value, str], Value]
_CASTS: Final[dict[tuple[str, str], _Cast]] = {
    ("integral", "integral"): _integral,
    ("integral", "floating"): _rounding,
    ("integral", "decimal"): _integral_to_decimal,
    ("integral", "string"): _text,
    ("integral", "boolean"): _to_boolean,
    ("integral", "timestamp"): _integral_to_timestamp,
    ("floating", "integral"): _float_to_integral,
    ("floating", "floating"): _rounding,
    ("floating", "decimal"): _float_to_decimal,
    ("floating", "boolean"): _to_boolean,
    ("decimal", "integral"): _decimal_to_integral,
    ("decimal", "floating"): _decimal_to_float,
    ("decimal", "decimal"): _decimal_to_decimal,
    ("decimal", "string"): _decimal_to_text,
    ("decimal", "boolean"): _decimal_to_boolean,
    ("boolean", "integral"): _text,
    ("boolean", "floating"): _text,
    ("boolean", "decimal"): _boolean_to_decimal,
    ("boolean", "string"): _text,
    ("string", "integral"): _text_to_integral,
    ("string", "floating"): _text_to_float,
    ("string", "decimal"): _text_to_decimal,
    ("string", "boolean"): _text_to_boolean,
    ("string", "date"): _text_to_date,
    ("string", "binary"): _text,
    ("date", "string"): _text,
    ("date", "timestamp"): _date_to_timestamp,
    ("date", "timestamp_ntz"): _date_to_timestamp,
    ("timestamp", "string"): _timestamp_to_text,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "timestamp_ntz"): _timestamp_to_ntz,
    ("timestamp", "integral"): _timestamp_to_integral,
    ("timestamp", "floating"): _timestamp_to_float,
    ("timestamp_ntz", "string"): _timestamp_to_text,
    ("timestamp_ntz", "date"): _timestamp_to_date,
    ("timestamp_ntz", "timestamp"): _ntz_to_timestamp,
}


def _trimmed(value: Value) -> Value:
    """Take blanks and control characters off both ends, as Spark does before it reads a text."""
    return pc.utf8_trim(value, characters=_BLANKS)
