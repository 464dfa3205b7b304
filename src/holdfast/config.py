"""Durations, sizes and names as a user writes them.

Invariants:
    * A duration is PySpark's interval text (`"3 seconds"`, `"1 minute 30 seconds"`) and becomes whole microseconds.
    * A name that becomes a path has only letters, digits, `_` and `-`, so it never leaves its folder.
    * What cannot be read raises, with what was found and an example of what is expected.
"""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import Final

from holdfast.errors import Misconfigured, NameInvalid

NAME_LENGTH_MAX: Final = 100

_UNIT_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_UNIT_BYTES: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SPELLING: Final = re.compile(r"\s*(?:interval\s+)?(.+?)\s*", re.IGNORECASE)
_PART: Final = re.compile(r"([+-]?)\s*(\d+(?:\.\d+)?|\.\d+)\s+([a-z]+)\s*", re.IGNORECASE)
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B)\s*", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def interval_us(text: str) -> int:
    """Return the microseconds of an interval such as `"3 seconds"`; it may be negative, as PySpark's may."""
    whole = _SPELLING.fullmatch(text) if isinstance(text, str) else None
    if whole is None:
        raise _not_an_interval(text)
    body, at, total = whole[1], 0, Decimal(0)
    while at < len(body):
        part = _PART.match(body, at)
        if part is None:
            raise _not_an_interval(text)
        total += _part_us(part, text)
        at = part.end()
    return int(total)


def duration_us(text: str, what: str) -> int:
    """Return the microseconds of an interval that has to be longer than nothing; `what` is named when it is not."""
    try:
        found = interval_us(text)
    except Misconfigured as error:
        raise Misconfigured(f"{what}: {error}") from error
    if found <= 0:
        raise Misconfigured(f"{what} is {text!r} and must be longer than nothing, such as '3 seconds'")
    return found


def size_bytes(text: str) -> int:
    """Return the bytes of a size such as `"64 MB"` (powers of 1024)."""
    found = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise Misconfigured(f"{text!r} is not a size; write a number and B, KB, MB, GB or TB, such as '64 MB'")
    return int(Decimal(found[1]) * _UNIT_BYTES[found[2].upper()])


def check_name(name: str, what: str) -> str:
    """Return `name` if it may become part of a path; `what` (a pipeline, a stream) is named when it may not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        raise NameInvalid(
            f"{name!r} cannot name {what}: use letters, digits, '_' and '-', a letter or digit first, "
            f"at most {NAME_LENGTH_MAX} characters"
        )
    return name


def absolute(path: str, what: str = "path") -> str:
    """Return a local path as absolute, and a URL as it is; `what` is named where it is neither."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise Misconfigured(f"{what} is {path!r} and must be the path of a folder, such as 'data/in'")
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _part_us(part: re.Match[str], text: str) -> Decimal:
    unit = part[3].lower()
    unit = unit if unit in _UNIT_US else unit.removesuffix("s")
    if unit in ("month", "year"):
        raise Misconfigured(f"{text!r} has a {unit}, which has no fixed length; write it in days")
    if unit not in _UNIT_US:
        raise _not_an_interval(text)
    if "." in part[2] and unit != "second":
        raise Misconfigured(f"{text!r} has a fraction of a {unit}; only seconds may have one, as in PySpark")
    amount = Decimal(part[2]) * _UNIT_US[unit]
    return -amount if part[1] == "-" else amount


def _not_an_interval(text: object) -> Misconfigured:
    return Misconfigured(
        f"{text!r} is not an interval; write a number and microseconds, milliseconds, seconds, minutes, hours, days or "
        "weeks, such as '3 seconds' or '1 minute 30 seconds'"
    )
