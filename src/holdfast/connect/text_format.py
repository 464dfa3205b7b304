"""How the text of a source's files is to be read: Spark's options, resolved and checked.

Invariants:
    * An option or a pattern that is not known is refused by name, never ignored.
    * What a format cannot hold is refused when the source is declared, not when its first file comes.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import types

from holdfast.errors import Misconfigured, SchemaMismatch

JSON_OPTIONS = ("encoding", "charset", "timestampFormat", "dateFormat")
CSV_OPTIONS = ("header", "sep", "delimiter", "quote", "escape", "nullValue", "multiLine", "inferSchema", *JSON_OPTIONS)

_PATTERN_LETTERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "XXX": "%z", "XX": "%z"}


class TextFormat(msgspec.Struct, frozen=True):
    """How to read the text: Spark's options, resolved."""

    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = ""
    null_value: str = ""
    encoding: str = "utf8"
    multi_line: bool = False
    timestamp_format: str = ""
    date_format: str = ""
    time_zone: str = "UTC"

    @classmethod
    def of(cls, kind: str, options: Mapping[str, str], time_zone: str = "UTC") -> TextFormat:
        """Return the format that Spark's `options` describe; `Misconfigured` names what is not known."""
        known = CSV_OPTIONS if kind == "csv" else JSON_OPTIONS
        spelled = {name.lower(): name for name in known}
        unknown = sorted(name for name in options if name.lower() not in spelled)
        if unknown:
            raise Misconfigured(
                f"files of format {kind}: unknown options {', '.join(unknown)}. Known are {', '.join(known)}."
            )
        given = {spelled[name.lower()]: value for name, value in options.items()}
        return cls(
            header=_truth(given, "header"),
            separator=_single(given.get("sep", given.get("delimiter", ",")), "sep"),
            quote=_single(given.get("quote", '"'), "quote"),
            escape=_single(given["escape"], "escape") if given.get("escape") else "",
            null_value=given.get("nullValue", ""),
            encoding=given.get("encoding", given.get("charset", "utf8")).lower().replace("utf-8", "utf8"),
            multi_line=_truth(given, "multiLine"),
            timestamp_format=strptime_pattern(given.get("timestampFormat", "")),
            date_format=strptime_pattern(given.get("dateFormat", "")),
            time_zone=time_zone,
        )


def strptime_pattern(pattern: str) -> str:
    """Return Spark's date pattern in the letters of `strptime`; `Misconfigured` for what has no counterpart."""
    if not pattern:
        return ""
    result, rest = "", pattern
    while rest:
        if rest.startswith("'"):
            literal, _, rest = rest[1:].partition("'")
            result += literal.replace("%", "%%")
            continue
        run = rest[: len(rest) - len(rest.lstrip(rest[0]))]
        if run in _PATTERN_LETTERS:
            result += _PATTERN_LETTERS[run]
        elif run[0].isalpha():
            raise Misconfigured(
                f"date pattern {pattern!r}: {run!r} is not known. Known are {', '.join(_PATTERN_LETTERS)}; "
                "without a pattern ISO dates and timestamps are read, with fractions of a second."
            )
        else:
            result += run.replace("%", "%%")
        rest = rest[len(run) :]
    return result


def check_declared(kind: str, options: Mapping[str, str], schema: pa.Schema) -> None:
    """Raise `Misconfigured` where files of this format cannot have these options, or hold these columns."""
    if kind == "parquet":
        if options:
            raise Misconfigured(
                f"files of format parquet take no options, and {sorted(options)[0]!r} is given. Leave it out."
            )
        return
    form = TextFormat.of(kind, options)
    try:
        codecs.lookup(form.encoding)
    except LookupError as error:
        raise Misconfigured(f"option encoding: {form.encoding!r} is not known; write utf-8 or latin-1, say.") from error
    for field in schema:
        try:
            csv_type(field.type, form) if kind == "csv" else json_type(field.type)
        except SchemaMismatch as error:
            raise SchemaMismatch(f"column {field.name!r}: {error}") from error


def csv_type(kind: Any, form: TextFormat) -> pa.DataType:
    """Return the type that Arrow's CSV reader is asked for; the rest is converted from text."""
    if types.is_nested(kind):
        raise SchemaMismatch(f"CSV has no values of type {kind}; declare a string and parse it in a step.")
    return pa.string() if types.is_timestamp(kind) or (types.is_date(kind) and form.date_format) else kind


def json_type(kind: Any) -> pa.DataType:
    """Return the type that Arrow's JSON reader is asked for; the rest is converted from text."""
    if types.is_map(kind):
        raise SchemaMismatch(f"JSON lines: a column of type {kind} cannot be read; declare a struct.")
    return pa.string() if types.is_timestamp(kind) or types.is_date(kind) else kind


def _single(value: str, option: str) -> str:
    value = {"\\t": "\t", "\\0": "\0"}.get(value, value)
    if len(value) > 1:
        raise Misconfigured(f"option {option}: expected one character, found {value!r}.")
    return value


def _truth(given: Mapping[str, str], option: str) -> bool:
    value = str(given.get(option, "false")).lower()
    if value not in ("true", "false"):
        raise Misconfigured(f"option {option}: expected true or false, found {value!r}.")
    return value == "true"
