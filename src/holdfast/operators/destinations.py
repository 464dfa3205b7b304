"""The rows of a stage's output in the order of the shards that they go to: who reads them takes its part of a frame.

Invariants:
    * Rows are ordered within their bucket only, and rows of a shard keep their order. So a bucket's rows stand together
      for everybody, and a unit that reads them meets its own in the order in which they were made.
    * The order follows from a bucket's rows alone, not from the other buckets of its wave. A bucket with few rows stays
      as it is: to hash them again costs less than to say where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from holdfast.operators.columns import Words
from holdfast.operators.keys import shard_of
from holdfast.operators.sharding import group_by_shard, hash_rows, take_rows
from holdfast.operators.union import BucketRuns

ROWS_OF_SHARD_MIN = 16
"""A bucket with fewer rows than this for each shard is not put in order."""

_STORED = np.dtype("<i4")


def order_by_destination(
    batch: pa.RecordBatch, runs: BucketRuns, columns: Sequence[str], shards: int
) -> tuple[pa.RecordBatch, Words | None]:
    """Return the rows in order, and the row ends of each bucket's shards; None where a bucket is left as it is."""
    counts = np.diff(runs.ends, prepend=0)
    ordered = counts >= ROWS_OF_SHARD_MIN * shards
    if not ordered.any():
        return batch, None
    shard = shard_of(hash_rows(batch, columns), shards) * np.repeat(ordered, counts)
    place = np.repeat(np.arange(len(counts)) * shards, counts) + shard
    order, ends = group_by_shard(place, len(counts) * shards)
    return take_rows(batch, order), ends if ordered.all() else None


def stored_ends(ends: Words) -> bytes:
    """Return row ends as a frame's header has them."""
    return ends.astype(_STORED).tobytes()


def rows_for(stored: bytes, buckets: int, shards: Sequence[int]) -> tuple[Words, Words, Words]:
    """Return the rows of a frame that go to these shards: their numbers, their places in their bucket, and how many
    there are in each bucket."""
    ends = np.frombuffer(stored, _STORED).astype(np.int64).reshape(buckets, -1)
    flat = ends.reshape(-1)
    starts = np.concatenate([[0], flat[:-1]]).reshape(ends.shape)
    lengths = (ends - starts)[:, shards]
    of_bucket = lengths.sum(axis=1)
    lengths = lengths.reshape(-1)
    skipped = starts[:, shards].reshape(-1) - (np.cumsum(lengths) - lengths)
    rows = np.repeat(skipped, lengths) + np.arange(int(lengths.sum()))
    return rows, rows - np.repeat(starts[:, 0], of_bucket), of_bucket
