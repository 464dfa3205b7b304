"""Rows in the order of the shards they go to: each reader finds its own, and in the order in which they were made."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.operators.destinations import ROWS_OF_SHARD_MIN, order_by_destination, rows_for, stored_ends
from holdfast.operators.keys import shard_of
from holdfast.operators.sharding import hash_rows
from holdfast.operators.union import BucketRuns

SHARDS = 4
ENOUGH = ROWS_OF_SHARD_MIN * SHARDS


def rows(count: int) -> pa.RecordBatch:
    chooser = np.random.default_rng(count)
    return pa.record_batch({"key": chooser.integers(0, 9, count), "number": np.arange(count)})


def runs(*counts: int) -> BucketRuns:
    return BucketRuns(np.arange(len(counts), dtype=np.int64), np.cumsum(counts))


@pytest.mark.parametrize("shards", [[0], [3], [1, 2], [0, 3], [0, 1, 2, 3], []])
def test_a_reader_finds_its_rows_bucket_by_bucket_in_their_order(shards: list[int]) -> None:
    counts = [ENOUGH, 3 * ENOUGH, ENOUGH + 7]
    batch, buckets = rows(sum(counts)), runs(*counts)
    ordered, ends = order_by_destination(batch, buckets, ["key"], SHARDS)
    assert ends is not None
    found, places, of_bucket = rows_for(stored_ends(ends), len(counts), shards)
    destination = shard_of(hash_rows(batch, ["key"]), SHARDS)
    number = ordered["number"].to_numpy()
    starts = [0, *buckets.ends[:-1]]
    expected = [
        row
        for start, end in zip(starts, buckets.ends, strict=True)
        for shard in shards
        for row in range(start, end)
        if destination[row] == shard
    ]
    assert number[found].tolist() == expected
    per_bucket = [
        sum(destination[row] in shards for row in range(start, end))
        for start, end in zip(starts, buckets.ends, strict=True)
    ]
    assert of_bucket.tolist() == per_bucket
    assert places.tolist() == (found - np.repeat(starts, per_bucket)).tolist()


def test_a_bucket_with_few_rows_stays_as_it_is_whatever_it_stands_beside() -> None:
    batch = rows(ENOUGH)
    ordered, ends = order_by_destination(batch, runs(ENOUGH - 1, 1), ["key"], SHARDS)
    assert ordered.equals(batch) and ends is None
    batch = rows(2 * ENOUGH)
    ordered, ends = order_by_destination(batch, runs(5, 2 * ENOUGH - 5), ["key"], SHARDS)
    assert ends is None and ordered.slice(0, 5).equals(batch.slice(0, 5))
    alone, ends = order_by_destination(batch.slice(5), runs(2 * ENOUGH - 5), ["key"], SHARDS)
    assert ends is not None and ordered.slice(5).equals(alone)
