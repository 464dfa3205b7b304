"""Rows grouped by shard."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import BadRow
from holdfast.operators.keys import shard_of
from holdfast.operators.sharding import hash_rows, sort_by_shard, take_rows


def rows(count: int) -> pa.RecordBatch:
    numbers = np.random.default_rng(1).integers(0, 50, count)
    columns = {
        "key": pa.array(numbers),
        "text": pa.array([None if n % 7 == 0 else f"t{n}" for n in numbers.tolist()]),
        "flag": pa.array((numbers % 2 == 0).tolist()),
        "small": pa.array(numbers.astype(np.int8)),
        "at": pa.array(numbers[::-1].copy()).cast(pa.timestamp("us")),
        "number": pa.array(np.arange(count)),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("columns", [["key"], ["text"], ["key", "text", "flag"]])
def test_each_shard_has_its_rows_in_their_order(columns: list[str]) -> None:
    batch = rows(500).slice(3)
    grouped, row_ends = sort_by_shard(batch, columns, 8)
    shards = shard_of(hash_rows(batch, columns), 8)
    start = 0
    for shard, end in enumerate(row_ends):
        assert grouped.slice(start, end - start).equals(batch.take(pa.array(np.flatnonzero(shards == shard))))
        start = end
    assert start == batch.num_rows and len(row_ends) == 8


def test_column_timed_rows_are_stably_sorted_inside_each_shard() -> None:
    batch = rows(300)
    grouped, row_ends = sort_by_shard(batch, ["key"], 4, tuple_time="at")
    start = 0
    for end in row_ends:
        part = grouped.slice(start, end - start)
        order = list(zip(part["at"].cast(pa.int64()).to_pylist(), part["number"].to_pylist(), strict=True))
        assert order == sorted(order)
        start = end


def test_without_shard_columns_all_rows_are_in_shard_0() -> None:
    batch = rows(5)
    grouped, row_ends = sort_by_shard(batch, [], 3)
    assert grouped.equals(batch) and row_ends == [5, 5, 5]


def test_a_row_without_tuple_time_is_named() -> None:
    batch = pa.RecordBatch.from_pydict({"at": pa.array([1, None]).cast(pa.timestamp("us"))})
    with pytest.raises(BadRow, match="row 1 has no value in 'at'"):
        sort_by_shard(batch, [], 1, tuple_time="at")


def test_taking_rows_keeps_values_of_every_type() -> None:
    batch = rows(100).slice(11)
    chosen = np.array([3, 3, 0, 88], np.int64)
    assert take_rows(batch, chosen).equals(batch.take(pa.array(chosen)))
