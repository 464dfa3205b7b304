"""Keys: the grouping columns of a row as fixed words, variable bytes and one 64-bit hash.

Invariants:
    * Two rows have the same key exactly if their words and variable bytes are equal: `-0.0` is `0.0`, NaN is one
      value, null is a value of its own, a null struct differs from a struct of nulls.
    * The hash is a function of the values alone: the same in every process, on every machine, for every slicing, and
      whether or not the columns may hold nulls. It decides where rows go, so it can never change (FORMAT_VERSION).
    * The shard comes from the hash's high bits; a map takes its index from the low ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from holdfast.errors import UnsupportedQuery
from holdfast.operators.columns import (
    Bytes,
    Hashes,
    Kind,
    Words,
    concatenate_variable,
    fixed_words,
    from_variable,
    from_words,
    gather_variable,
    kind_of,
    plain,
    valid_mask,
    variable_parts,
    words_of,
)

PARTS_MAX = 64

_SEED = np.uint64(0x9E3779B97F4A7C15)
_SEED_OF_NULLS = np.uint64(0x8EBC6AF09C88C6E3)
_ROUND_1 = np.uint64(0x87C37B91114253D5)
_ROUND_2 = np.uint64(0x4CF5AD432745937F)
_STEP = np.uint64(0x52DCE729)
_FINAL_1 = np.uint64(0xFF51AFD7ED558CCD)
_FINAL_2 = np.uint64(0xC4CEB9FE1A85EC53)


@dataclass(frozen=True, slots=True)
class KeyPart:
    """An atomic value, or the validity of a struct (`kind` None), at `word` of the fixed words."""

    name: str
    type: pa.DataType
    kind: Kind | None
    word: int
    children: tuple[KeyPart, ...] = ()

    def flat(self) -> list[KeyPart]:
        """Return this part and all below it; a part's place in the list of a layout is its null bit."""
        return [self, *(part for child in self.children for part in child.flat())]


@dataclass(frozen=True, slots=True)
class KeyLayout:
    """Which word of a key holds what."""

    parts: tuple[KeyPart, ...]
    word_count: int
    null_bits: bool
    variable: bool

    def flat(self) -> list[KeyPart]:
        return [part for top in self.parts for part in top.flat()]


@dataclass(frozen=True, slots=True)
class EncodedKeys:
    """Keys of `n` rows: words `[n, K]`, and for a variable part offsets `[n + 1]` and data."""

    words: Words
    variable_offsets: Words
    variable_data: Bytes
    hashes: Hashes

    def take(self, rows: Words) -> EncodedKeys:
        """Return the keys of the given rows, in their order."""
        if len(self.variable_offsets) == 1:
            offsets, data = self.variable_offsets, self.variable_data
        else:
            offsets, data = gather_variable(self.variable_offsets, self.variable_data, rows)
        return EncodedKeys(self.words[rows], offsets, data, self.hashes[rows])


NO_OFFSETS = np.zeros(1, np.int64)
NO_DATA = np.zeros(0, np.uint8)


def key_layout(fields: Sequence[pa.Field]) -> KeyLayout:
    """Return the layout for key columns of these types; without columns every row has the same key."""
    null_bits = any(_may_be_null(field) for field in fields)
    word = 1 if null_bits else 0
    parts = []
    for field in fields:
        part, word = _place(field, word)
        parts.append(part)
    layout = KeyLayout(tuple(parts), max(word, 1), null_bits, False)
    flat = layout.flat()
    if len(flat) > PARTS_MAX:
        raise UnsupportedQuery(
            f"the grouping key has {len(flat)} parts, at most {PARTS_MAX} can be; group by fewer columns"
        )
    return KeyLayout(layout.parts, layout.word_count, null_bits, any(part.kind == Kind.VARIABLE for part in flat))


def _may_be_null(field: pa.Field) -> bool:
    type_ = field.type
    return bool(field.nullable) or (
        pa.types.is_struct(type_) and any(_may_be_null(type_.field(i)) for i in range(type_.num_fields))
    )


def _place(field: pa.Field, word: int) -> tuple[KeyPart, int]:
    type_ = field.type
    if pa.types.is_struct(type_):
        children = []
        start = word
        for i in range(type_.num_fields):
            child, word = _place(type_.field(i), word)
            children.append(child)
        return KeyPart(field.name, type_, None, start, tuple(children)), word
    kind = kind_of(type_)
    if kind is None:
        raise UnsupportedQuery(
            f"column {field.name!r} of type {type_} cannot be a grouping key; atomic types and structs of them can"
        )
    return KeyPart(field.name, type_, kind, word), word + words_of(kind)


def encode_keys(layout: KeyLayout, columns: Sequence[pa.Array | pa.ChunkedArray], rows: int) -> EncodedKeys:
    """Return the keys of the rows of `columns`, which have the layout's types."""
    if not columns:
        return EncodedKeys(np.zeros((rows, 1), np.int64), NO_OFFSETS, NO_DATA, np.zeros(rows, np.uint64))
    leaves = [leaf for part, column in zip(layout.parts, columns, strict=True) for leaf in _leaves(part, plain(column))]
    variable = [variable_parts(array) for part, array in leaves if part.kind == Kind.VARIABLE]
    words = _words(layout, leaves, rows)
    if not variable:
        return EncodedKeys(words, NO_OFFSETS, NO_DATA, _hash_words(words, layout.null_bits))
    offsets, data = concatenate_variable(variable)
    offsets, data = np.ascontiguousarray(offsets), np.ascontiguousarray(data)
    return EncodedKeys(words, offsets, data, _hash_variable(words, layout.null_bits, offsets, data))


def _leaves(part: KeyPart, array: pa.Array) -> list[tuple[KeyPart, pa.Array]]:
    found = [(part, array)]
    if part.kind is None:
        # `flatten` makes the fields of a null struct null, so that it has one form.
        for child, column in zip(part.children, array.flatten(), strict=True):
            found.extend(_leaves(child, plain(column)))
    return found


def _words(layout: KeyLayout, leaves: list[tuple[KeyPart, pa.Array]], rows: int) -> Words:
    if len(leaves) == 1 and layout.word_count == 1 and leaves[0][0].kind == Kind.INTEGER:
        if leaves[0][1].null_count:
            raise UnsupportedQuery(f"key column {leaves[0][0].name!r} holds a null and is declared without")
        return fixed_words(leaves[0][1]).reshape(-1, 1)
    words = np.zeros((rows, layout.word_count), np.int64)
    for bit, (part, array) in enumerate(leaves):
        mask = valid_mask(array)
        if mask is not None:
            if not layout.null_bits:
                raise UnsupportedQuery(f"key column {part.name!r} holds a null and is declared without")
            words[:, 0] |= np.where(mask, np.int64(0), np.uint64(1 << bit).astype(np.int64))
        if part.kind == Kind.VARIABLE:
            offsets, _ = variable_parts(array)
            words[:, part.word] = offsets[1:] - offsets[:-1]
        elif part.kind == Kind.REAL:
            words[:, part.word] = canonical_reals(fixed_words(array).view(np.float64)).view(np.int64)
        elif part.kind == Kind.LONG_DECIMAL:
            words[:, part.word : part.word + 2] = fixed_words(array)
        elif part.kind is not None:
            words[:, part.word] = fixed_words(array)
    return words


def canonical_reals(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values with one zero and one NaN."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isnan(values), np.nan, values + 0.0)


def decode_keys(layout: KeyLayout, words: Words, variable_offsets: Words, variable_data: Bytes) -> list[pa.Array]:
    """Return the key columns of encoded keys."""
    bits = {id(part): bit for bit, part in enumerate(layout.flat())}
    cursor = variable_offsets[:-1].copy() if layout.variable else NO_OFFSETS
    return [_decode_part(layout, part, bits, words, cursor, variable_data) for part in layout.parts]


def _decode_part(
    layout: KeyLayout, part: KeyPart, bits: dict[int, int], words: Words, cursor: Words, variable_data: Bytes
) -> pa.Array:
    mask = None
    if layout.null_bits:
        mask = ((words[:, 0].view(np.uint64) >> np.uint64(bits[id(part)])) & np.uint64(1)) == 0
    if part.kind is None:
        children = [_decode_part(layout, child, bits, words, cursor, variable_data) for child in part.children]
        fields = [part.type.field(i) for i in range(part.type.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=None if mask is None else pa.array(~mask))
    if part.kind == Kind.VARIABLE:
        return _decode_variable(part, words[:, part.word], mask, cursor, variable_data)
    if part.kind == Kind.LONG_DECIMAL:
        return from_words(np.ascontiguousarray(words[:, part.word : part.word + 2]), mask, part.type)
    return from_words(np.ascontiguousarray(words[:, part.word]), mask, part.type)


def _decode_variable(
    part: KeyPart, lengths: Words, mask: np.ndarray[Any, np.dtype[np.bool_]] | None, cursor: Words, data: Bytes
) -> pa.Array:
    """Take this column's bytes at the cursor of each row, and move the cursor behind them."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(cursor, np.ascontiguousarray(data), offsets, target)
    cursor += lengths
    return from_variable(offsets, target, mask, part.type)


@njit("void(int64[::1], uint8[::1], int64[::1], uint8[::1])", cache=True, nogil=True)
def copy_spans(starts: Any, data: Any, target_offsets: Any, target: Any) -> None:
    for j in range(starts.shape[0]):
        source = starts[j]
        start = target_offsets[j]
        for k in range(target_offsets[j + 1] - start):
            target[start + k] = data[source + k]


@njit("uint64(uint64, uint64)", cache=True, nogil=True, inline="always")
def round_word(state: Any, word: Any) -> Any:
    # The block step of MurmurHash3 for 64-bit words.
    word *= _ROUND_1
    word = (word << np.uint64(31)) | (word >> np.uint64(33))
    word *= _ROUND_2
    state ^= word
    state = (state << np.uint64(27)) | (state >> np.uint64(37))
    return state * np.uint64(5) + _STEP


@njit("uint64(uint64)", cache=True, nogil=True, inline="always")
def finish_hash(state: Any) -> Any:
    state ^= state >> np.uint64(33)
    state *= _FINAL_1
    state ^= state >> np.uint64(33)
    state *= _FINAL_2
    return state ^ (state >> np.uint64(33))


@njit("uint64(int64[:, ::1], int64, boolean)", cache=True, nogil=True, inline="always")
def hash_fixed(words: Any, i: Any, null_bits: Any) -> Any:
    """Return the hash so far of row `i`: of its fixed words."""
    state = _SEED
    first = 0
    if null_bits:
        first = 1
        if words[i, 0] != 0:
            # Without nulls this round is left out, so that a nullable column hashes as one that is not.
            state = round_word(_SEED_OF_NULLS, np.uint64(words[i, 0]))
    for k in range(first, words.shape[1]):
        state = round_word(state, np.uint64(words[i, k]))
    return state


@njit("uint64[::1](int64[:, ::1], boolean)", cache=True, nogil=True)
def _hash_words(words: Any, null_bits: Any) -> Any:
    hashes = np.empty(words.shape[0], np.uint64)
    for i in range(words.shape[0]):
        hashes[i] = finish_hash(hash_fixed(words, i, null_bits))
    return hashes


@njit("uint64[::1](int64[:, ::1], boolean, int64[::1], uint8[::1])", cache=True, nogil=True)
def _hash_variable(words: Any, null_bits: Any, offsets: Any, data: Any) -> Any:
    hashes = np.empty(words.shape[0], np.uint64)
    for i in range(words.shape[0]):
        state = hash_fixed(words, i, null_bits)
        position = offsets[i]
        end = offsets[i + 1]
        while position + 8 <= end:
            word = np.uint64(0)
            for b in range(8):
                word |= np.uint64(data[position + b]) << np.uint64(8 * b)
            state = round_word(state, word)
            position += 8
        if position < end:
            word = np.uint64(0)
            for b in range(end - position):
                word |= np.uint64(data[position + b]) << np.uint64(8 * b)
            state = round_word(state, word)
        hashes[i] = finish_hash(state)
    return hashes


@njit("uint64[::1](uint64[::1], int64[::1])", cache=True, nogil=True)
def extend_hashes(hashes: Any, words: Any) -> Any:
    """Return the hashes of keys that have one more word each, such as a window's start."""
    extended = np.empty_like(hashes)
    for i in range(hashes.shape[0]):
        extended[i] = finish_hash(round_word(hashes[i], np.uint64(words[i])))
    return extended


def shard_of(hashes: Hashes, shards: int) -> Words:
    """Return each hash's shard, from the hash's high 32 bits."""
    return (((hashes >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32)).view(np.int64)
