"""A function of the user's that says which shard a key belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import UserFunctionFailed
from holdfast.operators.keys import encode_keys, key_layout
from holdfast.operators.partition_function import PartitionFunction
from holdfast.operators.partitioning import disagreement, partition

KEYS = pa.record_batch({"region": pa.array(["north", None, "south", "north", ""]), "number": [1, 2, 3, 1, -4]})
Function = Callable[[pa.RecordBatch], Any]


def shards(function: Function, batch: pa.RecordBatch = KEYS, count: int = 4) -> list[int]:
    keys = encode_keys(key_layout(list(batch.schema)), batch.columns, batch.num_rows)
    by = PartitionFunction(function, "by_region", "user.py:7")
    return partition(by, batch.schema.names, batch.columns, keys, count).tolist()


@pytest.mark.parametrize(
    "given",
    [
        pa.array([1, 2, 7, 1, -4], pa.int8()),
        pa.array([1, 2, 7, 1, 2**64 - 4], pa.uint64()),
        pa.chunked_array([[1, 2], [7, 1, -4]]),
        np.array([1, 2, 7, 1, -4]),
    ],
)
def test_a_number_modulo_the_shards_is_the_shard(given: Any) -> None:
    assert shards(lambda keys: given) == [1, 2, 3, 1, 0]


def test_the_function_sees_the_key_columns_by_name_and_nothing_where_there_are_no_rows() -> None:
    assert shards(lambda keys: keys["number"]) == [1, 2, 3, 1, 0]
    assert shards(lambda keys: 1 / 0, KEYS.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda keys: keys["number"].slice(1), "gave 4 numbers for 5 rows"),
        (lambda keys: pa.array([1, None, 2, 1, 3]), "gave 1 nulls for 5 rows"),
        (lambda keys: keys["region"], "gave string, expected an Arrow array of integers"),
        (lambda keys: [1, 2, 3, 1, 4], "gave list, expected an Arrow array of integers"),
        (lambda keys: pa.array([0.0] * 5), "gave double, expected"),
        (lambda keys: keys["town"], "raised KeyError"),
        (lambda keys: pa.array([0, 1, 2, 3, 4]), "gave 0 and 3 .modulo 4 shards. for the same key .'region': 'north'"),
    ],
)
def test_what_is_no_number_for_each_key_is_refused_at_the_users_line(function: Function, told: str) -> None:
    with pytest.raises(UserFunctionFailed, match=f"partition_by function 'by_region' {told}.* .at user.py:7."):
        shards(function)


def test_hashes_that_meet_are_no_disagreement_and_equal_ones_are_found_among_many() -> None:
    numbers = np.arange(100_000, dtype=np.uint64) << np.uint64(40)
    shard = np.arange(100_000) % 7
    assert disagreement(numbers, shard) == (-1, -1)
    numbers[77_777] = numbers[3]
    assert disagreement(numbers, shard) == (77_777, 3)
    batch = pa.record_batch({"word": pa.array(["a", "b"])})
    keys = encode_keys(key_layout(list(batch.schema)), batch.columns, 2)
    keys.hashes[:] = 1
    by = PartitionFunction(lambda keys: pa.array([0, 1]), "f", "l")
    assert partition(by, ["word"], batch.columns, keys, 2).tolist() == [0, 1]
