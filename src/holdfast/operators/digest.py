"""One 64-bit number for the data rows of a bucket: equal rows in equal order give equal digests.

Invariants:
    * The digest depends on values and their order alone, not on how a batch is sliced, chunked or laid out.
    * It tells a null from a zero and from an empty text, and `-0.0` from `0.0`; every NaN is the same.
    * It is compared between runs and replicas, so it can never change (FORMAT_VERSION).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from holdfast.errors import UnsupportedQuery
from holdfast.operators.columns import (
    Hashes,
    Kind,
    fixed_words,
    kind_of,
    plain,
    valid_mask,
    variable_parts,
    view_buffer,
)
from holdfast.operators.keys import finish_hash, round_word

_SEED = np.uint64(0x2545F4914F6CDD1D)
_NULL = np.uint64(0xA0761D6478BD642F)
_ROW = np.uint64(0xE7037ED1A0B428DB)


def digest_rows(batch: pa.RecordBatch, row_ends: Sequence[int]) -> list[int]:
    """Return the digest of each run of rows that ends at `row_ends`; an empty run has a digest of 0."""
    hashes = np.full(batch.num_rows, _SEED, np.uint64)
    for column in batch.columns:
        _fold_column(hashes, plain(column))
    ends = np.asarray(row_ends, np.int64)
    return [int(value) for value in _fold_runs(hashes, ends)]


def _fold_column(hashes: Hashes, array: pa.Array) -> None:
    mask = valid_mask(array)
    valid = np.ones(0, np.uint8) if mask is None else mask.view(np.uint8)
    kind = kind_of(array.type)
    if pa.types.is_struct(array.type):
        _fold_words(hashes, np.zeros(len(array), np.int64), valid)
        for child in array.flatten():
            _fold_column(hashes, plain(child))
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_map(array.type):
        _fold_list(hashes, array, valid)
    elif kind == Kind.VARIABLE:
        offsets, data = variable_parts(array)
        _fold_variable(hashes, offsets, data, valid)
    elif kind == Kind.LONG_DECIMAL:
        words = fixed_words(array)
        _fold_words(hashes, np.ascontiguousarray(words[:, 0]), valid)
        _fold_words(hashes, np.ascontiguousarray(words[:, 1]), valid)
    elif kind == Kind.REAL:
        reals = fixed_words(array).view(np.float64)
        _fold_words(hashes, np.where(np.isnan(reals), np.nan, reals).view(np.int64), valid)
    elif kind is not None:
        _fold_words(hashes, fixed_words(array), valid)
    else:
        raise UnsupportedQuery(f"rows with a column of type {array.type} cannot be compared by digest")


def _fold_list(hashes: Hashes, array: pa.Array, valid: Any) -> None:
    if pa.types.is_map(array.type):
        values = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        width: Any = np.int32
    else:
        values = array.values
        width = np.int64 if pa.types.is_large_list(array.type) else np.int32
    offsets = view_buffer(array.buffers()[1], width, array.offset, len(array) + 1).astype(np.int64)
    children = np.full(len(values), _SEED, np.uint64)
    _fold_column(children, plain(values))
    _fold_elements(hashes, children, offsets, valid)


@njit("void(uint64[::1], int64[::1], uint8[::1])", cache=True, nogil=True)
def _fold_words(hashes: Any, words: Any, valid: Any) -> None:
    if valid.shape[0] == 0:
        for i in range(hashes.shape[0]):
            hashes[i] = round_word(hashes[i], np.uint64(words[i]))
        return
    for i in range(hashes.shape[0]):
        if valid[i] == 0:
            hashes[i] = round_word(hashes[i] ^ _NULL, _NULL)
        else:
            hashes[i] = round_word(hashes[i], np.uint64(words[i]))


@njit("void(uint64[::1], int64[::1], uint8[::1], uint8[::1])", cache=True, nogil=True)
def _fold_variable(hashes: Any, offsets: Any, data: Any, valid: Any) -> None:
    for i in range(hashes.shape[0]):
        if valid.shape[0] > 0 and valid[i] == 0:
            hashes[i] = round_word(hashes[i] ^ _NULL, _NULL)
            continue
        position = offsets[i]
        end = offsets[i + 1]
        state = round_word(hashes[i], np.uint64(end - position))
        while position < end:
            word = np.uint64(0)
            for b in range(min(8, end - position)):
                word |= np.uint64(data[position + b]) << np.uint64(8 * b)
            state = round_word(state, word)
            position += 8
        hashes[i] = state


@njit("void(uint64[::1], uint64[::1], int64[::1], uint8[::1])", cache=True, nogil=True)
def _fold_elements(hashes: Any, elements: Any, offsets: Any, valid: Any) -> None:
    for i in range(hashes.shape[0]):
        if valid.shape[0] > 0 and valid[i] == 0:
            hashes[i] = round_word(hashes[i] ^ _NULL, _NULL)
            continue
        state = round_word(hashes[i], np.uint64(offsets[i + 1] - offsets[i]))
        for k in range(offsets[i], offsets[i + 1]):
            state = round_word(state, elements[k])
        hashes[i] = state


@njit("uint64[::1](uint64[::1], int64[::1])", cache=True, nogil=True)
def _fold_runs(hashes: Any, ends: Any) -> Any:
    digests = np.zeros(ends.shape[0], np.uint64)
    start = 0
    for j in range(ends.shape[0]):
        if ends[j] > start:
            state = _ROW
            for i in range(start, ends[j]):
                state = round_word(state, finish_hash(hashes[i]))
            digests[j] = finish_hash(state)
        start = ends[j]
    return digests
