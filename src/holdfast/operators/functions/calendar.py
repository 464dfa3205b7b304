"""Parts of dates and timestamps, and conversions between them, in the session's time zone.

Invariants:
    * UTC needs no time zone database; any other zone is looked up by Arrow.
    * Midnight of a day that has none is the first moment of that day; a local time that happens twice is the first one.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.functions.values import Value
from holdfast.operators.types import TIMESTAMP, TIMESTAMP_NTZ

_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "UCT", "Zulu", "+00:00"})
_UNITS: Final = {
    "year": "year",
    "yyyy": "year",
    "yy": "year",
    "quarter": "quarter",
    "month": "month",
    "mon": "month",
    "mm": "month",
    "week": "week",
    "day": "day",
    "dd": "day",
    "hour": "hour",
    "minute": "minute",
    "second": "second",
    "millisecond": "millisecond",
    "microsecond": "microsecond",
}
_WITHIN_A_DAY: Final = ("hour", "minute", "second", "millisecond", "microsecond")


def local(value: Value, zone: str) -> Value:
    """Return timestamps as the local time of `zone`, without a zone."""
    if value.type.tz is None:
        return value
    if zone in _UTC:
        return value.cast(TIMESTAMP_NTZ)
    return pc.local_timestamp(value.cast(pa.timestamp("us", tz=zone)))


def instant(value: Value, zone: str) -> Value:
    """Return local times of `zone` as timestamps."""
    if zone in _UTC:
        return value.cast(TIMESTAMP)
    return pc.assume_timezone(value, zone, ambiguous="earliest", nonexistent="latest").cast(TIMESTAMP)


def year(value: Value) -> Value:
    """`year` of a date."""
    return pc.cast(pc.year(value), pa.int32())


def quarter(value: Value) -> Value:
    """`quarter` of a date."""
    return pc.cast(pc.quarter(value), pa.int32())


def month(value: Value) -> Value:
    """`month` of a date."""
    return pc.cast(pc.month(value), pa.int32())


def day(value: Value) -> Value:
    """`day` of the month of a date."""
    return pc.cast(pc.day(value), pa.int32())


def day_of_week(value: Value) -> Value:
    """`dayofweek` of a date: Sunday is 1."""
    return pc.cast(pc.day_of_week(value, count_from_zero=False, week_start=7), pa.int32())


def week_day(value: Value) -> Value:
    """`weekday` of a date: Monday is 0."""
    return pc.cast(pc.day_of_week(value, count_from_zero=True, week_start=1), pa.int32())


def day_of_year(value: Value) -> Value:
    """`dayofyear` of a date."""
    return pc.cast(pc.day_of_year(value), pa.int32())


def week_of_year(value: Value) -> Value:
    """`weekofyear` of a date, by ISO 8601."""
    return pc.cast(pc.iso_week(value), pa.int32())


def hour(value: Value, zone: Value) -> Value:
    """`hour` of a timestamp."""
    return pc.cast(pc.hour(local(value, zone.as_py())), pa.int32())


def minute(value: Value, zone: Value) -> Value:
    """`minute` of a timestamp."""
    return pc.cast(pc.minute(local(value, zone.as_py())), pa.int32())


def second(value: Value, zone: Value) -> Value:
    """`second` of a timestamp."""
    return pc.cast(pc.second(local(value, zone.as_py())), pa.int32())


def truncate(unit: Value, value: Value, zone: Value) -> Value:
    """`date_trunc(unit, value)`; a unit that Spark does not know gives null."""
    found = _UNITS.get(unit.as_py().lower()) if unit.is_valid else None
    if found is None:
        return pa.scalar(None, value.type)
    there = local(value, zone.as_py())
    floor = pc.floor_temporal(there, unit=found, week_starts_monday=True)
    if value.type.tz is None:
        return floor
    if found in _WITHIN_A_DAY:
        # The offset from UTC is that of the time itself: an hour that happens twice stays the one it was.
        return pc.subtract(value, pc.subtract(there, floor))
    return instant(floor, zone.as_py())


def is_unit(unit: str) -> bool:
    """Return whether `date_trunc` has such a unit."""
    return unit.lower() in _UNITS


def date_add(value: Value, days: Value) -> Value:
    """`date_add`."""
    return pc.cast(pc.add(pc.cast(value, pa.int32()), pc.cast(days, pa.int32())), pa.date32())


def date_sub(value: Value, days: Value) -> Value:
    """`date_sub`."""
    return pc.cast(pc.subtract(pc.cast(value, pa.int32()), pc.cast(days, pa.int32())), pa.date32())


def date_diff(end: Value, start: Value) -> Value:
    """`datediff`: days from `start` to `end`."""
    return pc.subtract(pc.cast(end, pa.int32()), pc.cast(start, pa.int32()))
