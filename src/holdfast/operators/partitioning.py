"""Which shard a key belongs to: by its hash, or by a function of the user's.

Invariants:
    * Equal keys are in one shard. A function that tells two equal keys of a batch apart is refused, by name and line.
    * A function's number is taken modulo the shards, so that negative ones count from the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from holdfast.errors import UserFunctionFailed
from holdfast.operators.columns import Words, plain, stored_values
from holdfast.operators.keys import EncodedKeys
from holdfast.operators.partition_function import PartitionFunction


def partition(
    by: PartitionFunction, names: Sequence[str], columns: Sequence[pa.Array], keys: EncodedKeys, shards: int
) -> Words:
    """Return the shard that a function gives to each row; `keys` are the values of the key columns, encoded."""
    batch = pa.RecordBatch.from_arrays(list(columns), names=list(names))
    if batch.num_rows == 0:
        return np.zeros(0, np.int64)
    try:
        given = by.function(batch)
    except Exception as error:
        raise _failed(by, f"raised {type(error).__name__}: {error}") from error
    shard = _numbers(by, given, batch.num_rows) % shards
    row, other = disagreement(keys.hashes, shard)
    if row >= 0 and _same_key(keys, row, other):
        raise _failed(
            by,
            f"gave {shard[other]} and {shard[row]} (modulo {shards} shards) for the same key "
            f"{batch.slice(row, 1).to_pylist()[0]}; it has to be a function of the key's columns alone",
        )
    return shard


def _numbers(by: PartitionFunction, given: Any, rows: int) -> Words:
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = pa.array(given)
    if not isinstance(given, pa.Array | pa.ChunkedArray) or not pa.types.is_integer(given.type):
        found = given.type if isinstance(given, pa.Array | pa.ChunkedArray) else type(given).__name__
        raise _failed(by, f"gave {found}, expected an Arrow array of integers, one for each row of the batch")
    if len(given) != rows:
        raise _failed(by, f"gave {len(given)} numbers for {rows} rows, expected one for each")
    if given.null_count:
        raise _failed(by, f"gave {given.null_count} nulls for {rows} rows; every key needs a shard, null keys too")
    array = plain(given)
    kind = np.dtype(f"{'u' if pa.types.is_unsigned_integer(array.type) else 'i'}{array.type.bit_width // 8}").type
    values: Words = stored_values(array, kind).astype(np.int64)
    return values


def _failed(by: PartitionFunction, what: str) -> UserFunctionFailed:
    return UserFunctionFailed(
        f"the partition_by function {by.name!r} {what}. Nothing is lost: fix it and start again (at {by.line})"
    )


def _same_key(keys: EncodedKeys, row: int, other: int) -> bool:
    """Return whether two keys of equal hashes are equal."""
    offsets, data = keys.variable_offsets, keys.variable_data
    if not np.array_equal(keys.words[row], keys.words[other]):
        return False
    if len(offsets) == 1:
        return True
    first, second = data[offsets[row] : offsets[row + 1]], data[offsets[other] : offsets[other + 1]]
    return bool(np.array_equal(first, second))


@njit("UniTuple(int64, 2)(uint64[::1], int64[::1])", cache=True, nogil=True)
def disagreement(hashes: Any, shard: Any) -> Any:
    """Return a row and one before it whose hashes are equal and whose shards are not, or (-1, -1)."""
    size = 16
    while size < 2 * hashes.shape[0]:
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int64)
    for i in range(hashes.shape[0]):
        place = hashes[i] & mask
        while True:
            other = table[np.int64(place)]
            if other < 0:
                table[np.int64(place)] = i
                break
            if hashes[other] == hashes[i]:
                if shard[other] != shard[i]:
                    return i, other
                break
            place = (place + np.uint64(1)) & mask
    return -1, -1
