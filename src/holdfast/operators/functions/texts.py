"""Functions of strings.

Invariants:
    * Positions and lengths count Unicode code points, from 1, as in Spark.
    * Case is changed by the full Unicode rules, so that one letter may become two.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import UnsupportedQuery
from holdfast.operators.functions.values import Value, is_array


def upper(value: Value) -> Value:
    """`upper`."""
    return _recase(value, pc.ascii_upper, str.upper)


def lower(value: Value) -> Value:
    """`lower`."""
    return _recase(value, pc.ascii_lower, str.lower)


def length(value: Value) -> Value:
    """`length`: code points of a string, bytes of a binary."""
    measure = pc.binary_length if pa.types.is_binary(value.type) else pc.utf8_length
    return pc.cast(measure(value), pa.int32())


def octet_length(value: Value) -> Value:
    """`octet_length`: bytes."""
    return pc.cast(pc.binary_length(value), pa.int32())


def substring(value: Value, position: Value, count: Value) -> Value:
    """`substring`: a position below 0 counts from the end, and 0 is as 1."""
    start, size = position.as_py(), count.as_py()
    if start is None or size is None:
        return pa.scalar(None, value.type)
    start = start - 1 if start > 0 else start
    stop: int | None = start + size
    if size <= 0:
        start, stop = 0, 0
    elif start < 0 and start + size >= 0:
        stop = None
    cut = pc.binary_slice if pa.types.is_binary(value.type) else pc.utf8_slice_codeunits
    return cut(value, start=start, stop=stop)


def concat(*values: Value) -> Value:
    """`concat`: null if any part is null."""
    if not any(is_array(value) for value in values):
        parts = [value.as_py() for value in values]
        empty = parts[0][:0] if parts[0] is not None else None
        return pa.scalar(None if None in parts or empty is None else empty.join(parts), values[0].type)
    separator = pa.scalar(b"" if pa.types.is_binary(values[0].type) else "", values[0].type)
    return pc.binary_join_element_wise(*values, separator, null_handling="emit_null")


def trim(value: Value, characters: Value | None = None) -> Value:
    """`trim`: spaces, or the characters given, at both ends."""
    return _trimmed(pc.utf8_trim, value, characters)


def left_trim(value: Value, characters: Value | None = None) -> Value:
    """`ltrim`."""
    return _trimmed(pc.utf8_ltrim, value, characters)


def right_trim(value: Value, characters: Value | None = None) -> Value:
    """`rtrim`."""
    return _trimmed(pc.utf8_rtrim, value, characters)


def starts_with(value: Value, pattern: Value) -> Value:
    """`startswith`."""
    return _matched(pc.starts_with, value, pattern)


def ends_with(value: Value, pattern: Value) -> Value:
    """`endswith`."""
    return _matched(pc.ends_with, value, pattern)


def contains(value: Value, pattern: Value) -> Value:
    """`contains`."""
    return _matched(pc.match_substring, value, pattern)


def like(value: Value, pattern: Value) -> Value:
    """`LIKE` with `%`, `_` and a backslash before either of them or itself."""
    if not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    return pc.match_substring_regex(value, pattern=like_regex(pattern.as_py()))


@lru_cache(maxsize=256)
def like_regex(pattern: str) -> str:
    """Return the regular expression of a `LIKE` pattern."""
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            escaped = next(characters, None)
            if escaped not in ("%", "_", "\\"):
                raise UnsupportedQuery(
                    f"the LIKE pattern {pattern!r} is invalid: a backslash has to stand before '%', '_' or a backslash"
                )
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return rf"(?s)\A{''.join(parts)}\z"


def _recase(value: Value, ascii_kernel: Callable[[Value], Value], function: Callable[[str], str]) -> Value:
    if not is_array(value):
        return pa.scalar(None if not value.is_valid else function(value.as_py()), value.type)
    if pc.all(pc.string_is_ascii(value), min_count=0).as_py() is not False:
        return ascii_kernel(value)
    encoded = value.dictionary_encode()
    words = [function(word) for word in encoded.dictionary.to_pylist()]
    return pa.array(words, type=value.type).take(encoded.indices)


def _trimmed(kernel: Callable[..., Value], value: Value, characters: Value | None) -> Value:
    if characters is None:
        return kernel(value, characters=" ")
    if not characters.is_valid:
        return pa.scalar(None, value.type)
    # Arrow takes no empty set of characters; taking nothing off is what it means.
    return kernel(value, characters=characters.as_py()) if characters.as_py() else value


def _matched(kernel: Callable[..., Value], value: Value, pattern: Value) -> Value:
    if not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    return kernel(value, pattern=pattern.as_py())
