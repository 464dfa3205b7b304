"""Group the rows of a batch by shard, keeping their order inside each shard.

Invariants:
    * A row's shard is `keys.shard_of` of the hash of its shard columns, in every writer, `Producer` included. Without
      shard columns all rows are in shard 0.
    * Rows of one shard keep their order; with a tuple_time column they are stably sorted by it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from holdfast.errors import BadRow
from holdfast.operators.columns import Hashes, Words, fixed_words, plain, stored_values, valid_mask
from holdfast.operators.keys import encode_keys, key_layout, shard_of

_TYPES_OF_WIDTH = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """Return the key hash of each row of the batch."""
    layout = key_layout([batch.schema.field(name) for name in columns])
    return encode_keys(layout, [batch.column(name) for name in columns], batch.num_rows).hashes


def sort_by_shard(
    batch: pa.RecordBatch, shard_columns: Sequence[str], shards: int, tuple_time: str | None = None
) -> tuple[pa.RecordBatch, list[int]]:
    """Return the batch with its rows grouped by shard, and the row end of each shard."""
    if tuple_time is not None:
        batch = _sort_by_time(batch, tuple_time)
    if not shard_columns or shards == 1:
        return batch, [batch.num_rows] * shards
    order, ends = group_by_shard(shard_of(hash_rows(batch, shard_columns), shards), shards)
    return take_rows(batch, order), ends.tolist()


def group_by_shard(shard: Words, shards: int) -> tuple[Words, Words]:
    """Return the rows' numbers shard by shard, in their order within each, and where those of each shard end."""
    order, counts = _partition(shard, shards)
    return order, np.cumsum(counts)


def _sort_by_time(batch: pa.RecordBatch, tuple_time: str) -> pa.RecordBatch:
    column = plain(batch.column(tuple_time))
    mask = valid_mask(column)
    if mask is not None:
        row = int(np.argmin(mask))
        values = batch.slice(row, 1).to_pylist()[0]
        raise BadRow(f"row {row} has no value in {tuple_time!r}, the column that orders its stream: {values}")
    times = fixed_words(column)
    if bool(np.all(times[1:] >= times[:-1])):
        return batch
    return take_rows(batch, np.argsort(times, kind="stable"))


@njit("Tuple((int64[::1], int64[::1]))(int64[::1], int64)", cache=True, nogil=True)
def _partition(shard: Any, shards: Any) -> Any:
    counts = np.zeros(shards, np.int64)
    for i in range(shard.shape[0]):
        counts[shard[i]] += 1
    position = np.zeros(shards, np.int64)
    for s in range(1, shards):
        position[s] = position[s - 1] + counts[s - 1]
    order = np.empty(shard.shape[0], np.int64)
    for i in range(shard.shape[0]):
        order[position[shard[i]]] = i
        position[shard[i]] += 1
    return order, counts


def take_rows(batch: pa.RecordBatch, rows: Words) -> pa.RecordBatch:
    """Return the given rows of the batch, in their order."""
    columns = [_take_column(plain(column), rows) for column in batch.columns]
    if not columns:
        return batch.slice(0, 0) if len(rows) == 0 else batch.take(pa.array(rows))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _take_column(column: pa.Array, rows: Words) -> pa.Array:
    type_ = column.type
    if column.null_count or not _gathers(type_):
        return column.take(pa.array(rows))
    dtype = _TYPES_OF_WIDTH[type_.bit_width]
    return pa.Array.from_buffers(type_, len(rows), [None, pa.py_buffer(stored_values(column, dtype)[rows])])


def _gathers(type_: pa.DataType) -> bool:
    return (
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_temporal(type_)
    ) and type_.bit_width in _TYPES_OF_WIDTH
