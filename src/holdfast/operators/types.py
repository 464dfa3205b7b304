"""Spark's types as text, and the Arrow types that hold them.

Invariants:
    * `spark_type(arrow_type(text)) == text` for every text that `spark_type` gives.
    * The text is Spark's own `simpleString`, but a field whose name is not a plain word stands in backquotes, so that
      the text can be read back.
    * A timestamp is in microseconds, UTC; a `timestamp_ntz` is in microseconds without a zone.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import pyarrow as pa

from holdfast.errors import UnsupportedQuery

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ: Final = pa.timestamp("us")

_ATOMIC: Final[dict[str, pa.DataType]] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
    "interval day to second": pa.duration("us"),
}
_TEXT: Final[dict[pa.DataType, str]] = {arrow: text for text, arrow in _ATOMIC.items()} | {
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ATOM: Final = re.compile(r"interval [a-z ]+[a-z]|[a-z_]+")
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


@lru_cache(maxsize=4096)
def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type that holds values of Spark's type `text`; `UnsupportedQuery` if we cannot hold them."""
    reader = _Reader(text)
    found = reader.type()
    if reader.rest():
        raise UnsupportedQuery(f"the type {text!r} cannot be read: {reader.rest()!r} is left over")
    return found


def spark_type(arrow: pa.DataType) -> str:
    """Return Spark's text for an Arrow type; `UnsupportedQuery` if Spark has none."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp_ntz" if arrow.tz is None else "timestamp"
    if pa.types.is_struct(arrow):
        return f"struct<{','.join(f'{quoted(field.name)}:{spark_type(field.type)}' for field in arrow)}>"
    if pa.types.is_map(arrow):
        return f"map<{spark_type(arrow.key_type)},{spark_type(arrow.item_type)}>"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return f"array<{spark_type(arrow.value_type)}>"
    if pa.types.is_dictionary(arrow):
        return spark_type(arrow.value_type)
    if arrow not in _TEXT:
        raise UnsupportedQuery(f"the Arrow type {arrow} has no Spark type that holdfast can hold; cast it before")
    return _TEXT[arrow]


def is_floating(text: str) -> bool:
    """Return whether a type is float or double."""
    return text in ("float", "double")


def is_integral(text: str) -> bool:
    """Return whether a type is one of the whole numbers."""
    return text in ("tinyint", "smallint", "int", "bigint")


def is_decimal(text: str) -> bool:
    """Return whether a type is a decimal."""
    return text.startswith("decimal(")


def is_nested(text: str) -> bool:
    """Return whether a type is a struct, an array or a map."""
    return text.startswith(("struct<", "array<", "map<"))


def quoted(name: str) -> str:
    """Return a field's name as it stands in a type's text."""
    if _WORD.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


class _Reader:
    """Reads one type from its text, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rest(self) -> str:
        return self._text[self._at :]

    def type(self) -> pa.DataType:
        if self._take("struct<"):
            return self._struct()
        if self._take("array<"):
            element = self.type()
            self._expect(">")
            return pa.list_(element)
        if self._take("map<"):
            key = self.type()
            self._expect(",")
            item = self.type()
            self._expect(">")
            return pa.map_(key, item)
        if decimal := _DECIMAL.match(self._text, self._at):
            self._at = decimal.end()
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        atom = _ATOM.match(self._text, self._at)
        if atom is None or atom[0] not in _ATOMIC:
            raise UnsupportedQuery(
                f"the type {self._text!r} cannot be held by a stream (at {self.rest()!r}); "
                "cast the column to another type before it"
            )
        self._at = atom.end()
        return _ATOMIC[atom[0]]

    def _struct(self) -> pa.DataType:
        fields: list[tuple[str, pa.DataType]] = []
        if self._take(">"):
            return pa.struct(fields)
        while True:
            name = self._name()
            self._expect(":")
            fields.append((name, self.type()))
            if self._take(">"):
                return pa.struct(fields)
            self._expect(",")

    def _name(self) -> str:
        if not self._take("`"):
            end = self._text.index(":", self._at) if ":" in self.rest() else len(self._text)
            name, self._at = self._text[self._at : end], end
            return name
        name = ""
        while True:
            end = self._text.find("`", self._at)
            if end < 0:
                raise UnsupportedQuery(f"the type {self._text!r} cannot be read: a backquote is not closed")
            name += self._text[self._at : end]
            self._at = end + 1
            if not self._take("`"):
                return name
            name += "`"

    def _take(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise UnsupportedQuery(f"the type {self._text!r} cannot be read: expected {token!r} at {self.rest()!r}")
