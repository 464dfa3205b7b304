"""Python values as a column's: which kinds of values may stand for which type.

Invariants:
    * Arrow would cut a float to an integer, take a truth for a number and text for bytes, and leave out a field of a
      struct that it does not know; here none of them gets through.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from pyarrow import types

from holdfast.errors import SchemaMismatch


def check_values(values: Sequence[Any], kind: Any, subject: str) -> None:
    """Raise `SchemaMismatch` where a value cannot be meant as `kind`; Arrow checks ranges and what is left."""
    for found in {type(value) for value in values} - {type(None)}:
        if not _may_be(found, kind):
            value = next(each for each in values if type(each) is found)
            raise SchemaMismatch(
                f"{subject}: expected {kind}, found the {found.__name__} {value!r}. Convert it before, or declare the "
                "type that the data has."
            )
    present = [value for value in values if value is not None]
    if types.is_struct(kind):
        _check_fields(present, kind, subject)
    elif types.is_list(kind):
        check_values([each for value in present for each in _items(value, subject)], kind.value_type, subject)


def _check_fields(values: Sequence[Any], kind: Any, subject: str) -> None:
    names = [field.name for field in kind]
    dicts = [value for value in values if isinstance(value, dict)]
    unknown = sorted({str(name) for value in dicts for name in value.keys() - set(names)})
    if unknown:
        raise SchemaMismatch(f"{subject}: unknown field {unknown[0]!r}. Expected {kind}.")
    for field in kind:
        check_values([value.get(field.name) for value in dicts], field.type, f"{subject}, field {field.name!r}")


def _items(value: Any, subject: str) -> Iterable[Any]:
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise SchemaMismatch(f"{subject}: expected a list, found the {type(value).__name__} {value!r}.")
    return value


def _may_be(found: type, kind: Any) -> bool:
    truth = found.__name__ in ("bool", "bool_")
    if types.is_integer(kind):
        return issubclass(found, numbers.Integral) and not truth
    if types.is_floating(kind):
        return issubclass(found, numbers.Real) and not truth
    if types.is_decimal(kind):
        return not truth and not issubclass(found, float)
    if types.is_string(kind):
        return issubclass(found, str)
    if types.is_binary(kind):
        return issubclass(found, (bytes, bytearray, memoryview))
    return not types.is_boolean(kind) or truth
