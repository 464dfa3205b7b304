"""Arrow columns as the 64-bit words that kernels work on, and back.

Invariants:
    * A value has one form: what a null slot of an Arrow buffer happens to hold never gets through, it is zero.
    * The words of a column do not depend on how the column is sliced, offset or chunked.
    * A decimal of up to 18 digits is one word, a longer one two (low, high); text and bytes have no words, they are
      offsets and data.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from holdfast.errors import UnsupportedQuery

Words = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]

DECIMAL_DIGITS_OF_ONE_WORD = 18


class Kind(IntEnum):
    """How a type's values become words."""

    INTEGER = 1
    BOOLEAN = 2
    REAL = 3
    DECIMAL = 4
    LONG_DECIMAL = 5
    VARIABLE = 6
    NOTHING = 7


def kind_of(type_: pa.DataType) -> Kind | None:
    """Return how values of an atomic type become words; None for structs, lists, maps and what Spark does not have."""
    if pa.types.is_boolean(type_):
        return Kind.BOOLEAN
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return Kind.REAL
    if pa.types.is_decimal128(type_):
        return Kind.DECIMAL if type_.precision <= DECIMAL_DIGITS_OF_ONE_WORD else Kind.LONG_DECIMAL
    if _is_variable(type_):
        return Kind.VARIABLE
    if pa.types.is_null(type_):
        return Kind.NOTHING
    if pa.types.is_integer(type_) or _is_time(type_):
        return Kind.INTEGER
    return None


def _is_variable(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def _is_time(type_: pa.DataType) -> bool:
    tests = (pa.types.is_date, pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
    return any(test(type_) for test in tests)


def words_of(kind: Kind) -> int:
    """Return how many words a value takes; a variable one takes one, for its length."""
    return 2 if kind == Kind.LONG_DECIMAL else 1


def plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as one array without chunks, dictionary or view."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        return plain(array.dictionary_decode())
    if pa.types.is_string_view(array.type):
        return array.cast(pa.string())
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.binary())
    return array


def valid_mask(array: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return which rows have a value, or None where all do."""
    if array.null_count == 0:
        return None
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.zeros(len(array), np.bool_)
    return unpack_bits(bitmap, array.offset, len(array))


def unpack_bits(buffer: pa.Buffer, offset: int, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return bits `[offset, offset + length)` of an Arrow bitmap."""
    skipped = offset // 8
    stored = np.frombuffer(buffer, np.uint8)[skipped : (offset + length + 7) // 8]
    bits = np.unpackbits(stored, bitorder="little")
    first = offset - 8 * skipped
    return bits[first : first + length].view(np.bool_)


def pack_bits(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


class _View:
    """An array over an Arrow buffer that keeps the buffer alive.

    It says that it may be written to, so that one compiled kernel serves our arrays and Arrow's; no kernel does.
    """

    def __init__(self, buffer: pa.Buffer, dtype: np.dtype[Any], start: int, count: int) -> None:
        self._buffer = buffer
        self.__array_interface__ = {
            "data": (buffer.address + start * dtype.itemsize, False),
            "shape": (count,),
            "typestr": dtype.str,
            "version": 3,
        }


def view_buffer(buffer: pa.Buffer | None, dtype: Any, start: int, count: int) -> np.ndarray[Any, Any]:
    """Return elements `[start, start + count)` of an Arrow buffer, without a copy."""
    dtype = np.dtype(dtype)
    if buffer is None or count == 0:
        return np.zeros(count, dtype)
    assert (start + count) * dtype.itemsize <= buffer.size, "an Arrow buffer is shorter than its array"
    view = np.asarray(_View(buffer, dtype, start, count))
    # Kernels are compiled for whole words at their natural places; a buffer from elsewhere may lie askew.
    return view if view.flags.aligned else view.copy()


def stored_values(array: pa.Array, dtype: Any, per_row: int = 1) -> np.ndarray[Any, Any]:
    """Return the column's own buffer, without a copy, whatever its null slots hold."""
    return view_buffer(array.buffers()[1], dtype, array.offset * per_row, len(array) * per_row)


def fixed_words(array: pa.Array) -> Words:
    """Return the words of a fixed-width column: `[n]`, or `[n, 2]` for a long decimal. Zero-copy for 64-bit types."""
    kind = kind_of(array.type)
    words = _stored_words(array, kind)
    mask = valid_mask(array)
    if mask is not None:
        words = words * (mask if words.ndim == 1 else mask[:, None])
    return words


def _stored_words(array: pa.Array, kind: Kind | None) -> Words:
    if kind == Kind.NOTHING:
        return np.zeros(len(array), np.int64)
    if kind == Kind.BOOLEAN:
        if len(array) == 0:
            return np.zeros(0, np.int64)
        return unpack_bits(array.buffers()[1], array.offset, len(array)).astype(np.int64)
    if kind == Kind.DECIMAL:
        return stored_values(array, np.int64, 2)[::2].copy()
    if kind == Kind.LONG_DECIMAL:
        return stored_values(array, np.int64, 2).reshape(-1, 2)
    if kind == Kind.REAL:
        if pa.types.is_float64(array.type):
            return stored_values(array, np.int64)
        return stored_values(array, np.float32).astype(np.float64).view(np.int64)
    if kind == Kind.INTEGER:
        dtype = np.dtype(f"{'u' if _is_unsigned(array.type) else 'i'}{array.type.bit_width // 8}").type
        values = stored_values(array, dtype)
        return values if dtype is np.int64 else values.astype(np.int64)
    raise UnsupportedQuery(f"a column of type {array.type} cannot be a key or an aggregate's argument")


def _is_unsigned(type_: pa.DataType) -> bool:
    return bool(pa.types.is_unsigned_integer(type_))


def variable_parts(array: pa.Array) -> tuple[Words, Bytes]:
    """Return offsets `[n + 1]` and data of a text or binary column; a null is empty."""
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(b"", pa.binary()).cast(array.type))
    width = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    _, offsets_buffer, data_buffer = array.buffers()
    if offsets_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    offsets = view_buffer(offsets_buffer, width, array.offset, len(array) + 1).astype(np.int64)
    return offsets, view_buffer(data_buffer, np.uint8, 0, data_buffer.size if data_buffer is not None else 0)


def from_words(words: Words, mask: np.ndarray[Any, np.dtype[np.bool_]] | None, type_: pa.DataType) -> pa.Array:
    """Return a column of a fixed-width type; rows where `mask` is false are null."""
    length = len(words)
    validity = None if mask is None or bool(mask.all()) else pack_bits(mask)
    kind = kind_of(type_)
    if kind == Kind.NOTHING:
        return pa.nulls(length)
    return pa.Array.from_buffers(type_, length, [validity, pa.py_buffer(_storage(words, kind, type_))])


def _storage(words: Words, kind: Kind | None, type_: pa.DataType) -> np.ndarray[Any, Any]:
    if kind == Kind.BOOLEAN:
        return np.packbits(words.astype(np.bool_), bitorder="little")
    if kind == Kind.DECIMAL:
        return np.stack([words, words >> 63], axis=1).reshape(-1)
    if kind == Kind.REAL and pa.types.is_float32(type_):
        return np.ascontiguousarray(words).view(np.float64).astype(np.float32)
    if kind == Kind.INTEGER and type_.bit_width != 64:
        return words.astype(np.dtype(f"{'u' if _is_unsigned(type_) else 'i'}{type_.bit_width // 8}"))
    return np.ascontiguousarray(words).reshape(-1)


def from_variable(
    offsets: Words, data: Bytes, mask: np.ndarray[Any, np.dtype[np.bool_]] | None, type_: pa.DataType
) -> pa.Array:
    """Return a text or binary column over the given bytes."""
    validity = None if mask is None or bool(mask.all()) else pack_bits(mask)
    large = pa.large_string() if pa.types.is_string(type_) or pa.types.is_large_string(type_) else pa.large_binary()
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    array = pa.Array.from_buffers(large, len(offsets) - 1, buffers)
    return array if large.equals(type_) else array.cast(type_)


@njit("void(int64[::1], uint8[::1], int64[::1], uint8[::1], int64[::1])", cache=True, nogil=True)
def _gather_variable(offsets: Any, data: Any, target_offsets: Any, target: Any, rows: Any) -> None:
    for j in range(rows.shape[0]):
        source = offsets[rows[j]]
        start = target_offsets[j]
        for k in range(target_offsets[j + 1] - start):
            target[start + k] = data[source + k]


def gather_variable(offsets: Words, data: Bytes, rows: Words) -> tuple[Words, Bytes]:
    """Return offsets and data of the given rows, in their order."""
    lengths = (offsets[1:] - offsets[:-1])[rows]
    target_offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths, out=target_offsets[1:])
    target = np.empty(int(target_offsets[-1]), np.uint8)
    _gather_variable(
        np.ascontiguousarray(offsets), np.ascontiguousarray(data), target_offsets, target, np.ascontiguousarray(rows)
    )
    return target_offsets, target


def concatenate_variable(parts: Sequence[tuple[Words, Bytes]]) -> tuple[Words, Bytes]:
    """Return, for each row, the bytes of all columns one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows = len(parts[0][0]) - 1
    lengths = np.stack([offsets[1:] - offsets[:-1] for offsets, _ in parts], axis=1)
    ends = np.zeros((rows, len(parts)), np.int64)
    np.cumsum(lengths.reshape(-1), out=ends.reshape(-1))
    target = np.empty(int(ends[-1, -1]) if rows else 0, np.uint8)
    for column, (offsets, data) in enumerate(parts):
        _copy_column(offsets, np.ascontiguousarray(data), np.ascontiguousarray(ends[:, column]), target)
    total = np.zeros(rows + 1, np.int64)
    if rows:
        total[1:] = ends[:, -1]
    return total, target


@njit("void(int64[::1], uint8[::1], int64[::1], uint8[::1])", cache=True, nogil=True)
def _copy_column(offsets: Any, data: Any, ends: Any, target: Any) -> None:
    for j in range(ends.shape[0]):
        source = offsets[j]
        length = offsets[j + 1] - source
        start = ends[j] - length
        for k in range(length):
            target[start + k] = data[source + k]
