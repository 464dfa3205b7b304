"""Keys of every atomic type and structs of them."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import UnsupportedQuery
from holdfast.operators.keys import EncodedKeys, decode_keys, encode_keys, key_layout, shard_of

DECIMAL = decimal.Decimal
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "tinyint": (pa.int8(), [-128, 127, None]),
    "smallint": (pa.int16(), [-5, 5, None]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1, 0, None]),
    "float": (pa.float32(), [1.5, float("inf"), None]),
    "double": (pa.float64(), [0.1, -1e300, None]),
    "decimal": (pa.decimal128(10, 2), [DECIMAL("-1.25"), DECIMAL("99999999.99"), None]),
    "long decimal": (pa.decimal128(38, 0), [DECIMAL(10**37), DECIMAL(-(10**37)), DECIMAL(-1), None]),
    "string": (pa.string(), ["", "a", "x" * (1 << 20), None]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\x00", None]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), None]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [datetime.datetime(1960, 1, 1, tzinfo=datetime.UTC), None]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime.datetime(1960, 1, 1), None]),
    "interval": (pa.duration("us"), [datetime.timedelta(-1), None]),
    "time": (pa.time64("ns"), [pa.scalar(1, pa.time64("ns")).as_py(), None]),
    "void": (pa.null(), [None]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
        [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, {"a": None, "b": {"c": None}}, None],
    ),
}
GOLDEN_BIGINT = [17966465884629773581, 2628490560731434638, 8986273536555274931, 14058846801193766274]
GOLDEN_STRING = [17966465884629773581, 11684174403826644035, 9363355390263048603, 5305121319981900799]
GOLDEN_MIXED = [8573227762471338370]


def encoded(columns: list[pa.Array], nullable: bool = True) -> EncodedKeys:
    layout = key_layout([pa.field(f"c{n}", column.type, nullable) for n, column in enumerate(columns)])
    return encode_keys(layout, columns, len(columns[0]))


def identity(keys: EncodedKeys, row: int) -> tuple[bytes, bytes]:
    if len(keys.variable_offsets) == 1:
        return keys.words[row].tobytes(), b""
    start, end = keys.variable_offsets[row : row + 2]
    return keys.words[row].tobytes(), keys.variable_data[start:end].tobytes()


@pytest.mark.parametrize("name", COLUMNS)
def test_values_come_back_and_differ_exactly_where_they_differ(name: str) -> None:
    type_, values = COLUMNS[name]
    column = pa.array(values * 2, type_)
    keys = encoded([column])
    layout = key_layout([pa.field("c0", type_)])
    assert decode_keys(layout, keys.words, keys.variable_offsets, keys.variable_data)[0].equals(column)
    for left in range(len(column)):
        for right in range(len(column)):
            same = left % len(values) == right % len(values)
            assert (identity(keys, left) == identity(keys, right)) is same
            assert bool(keys.hashes[left] == keys.hashes[right]) is same


@pytest.mark.parametrize("name", COLUMNS)
def test_a_key_does_not_depend_on_slicing(name: str) -> None:
    type_, values = COLUMNS[name]
    column = pa.array([*values, *reversed(values)] * 9, type_)
    whole = encoded([column])
    part = encoded([column.slice(5, 11)])
    assert [identity(part, row) for row in range(len(part.hashes))] == [
        identity(whole, row + 5) for row in range(len(part.hashes))
    ]
    assert (part.hashes == whole.hashes[5:16]).all()


def test_zeros_are_one_and_all_nan_are_one() -> None:
    other_nan = np.array([0x7FF0000000000001], np.uint64).view(np.float64)[0]
    keys = encoded([pa.array([0.0, -0.0, math.nan, other_nan, None])])
    assert identity(keys, 0) == identity(keys, 1)
    assert identity(keys, 2) == identity(keys, 3)
    assert len(set(keys.hashes.tolist())) == 3
    singles = encoded([pa.array([0.0, -0.0], pa.float32())])
    assert singles.hashes.tolist() == keys.hashes[:2].tolist()


def test_bytes_of_two_columns_do_not_run_together() -> None:
    keys = encoded([pa.array(["ab", "a", "", None]), pa.array(["c", "bc", "abc", "abc"])])
    assert len({identity(keys, row) for row in range(4)}) == 4
    assert len(set(keys.hashes.tolist())) == 4


def test_the_hash_is_the_same_whether_or_not_columns_may_be_null() -> None:
    columns = [pa.array([1, 2, 3]), pa.array(["a", "", "abcdefghi"])]
    assert encoded(columns).hashes.tolist() == encoded(columns, nullable=False).hashes.tolist()
    assert encoded(columns[:1]).hashes.tolist() == encoded(columns[:1], nullable=False).hashes.tolist()


def test_the_hash_never_changes() -> None:
    """Stored streams are sharded by it: other numbers here would need a new format version."""
    assert encoded([pa.array([0, 1, -1, None])]).hashes.tolist() == GOLDEN_BIGINT
    assert encoded([pa.array(["", "a", "12345678", "123456789"])]).hashes.tolist() == GOLDEN_STRING
    assert encoded([pa.array([1.5]), pa.array([DECIMAL(7)], pa.decimal128(38, 0))]).hashes.tolist() == GOLDEN_MIXED


def test_shards_are_even_and_independent_of_the_low_bits() -> None:
    hashes = encoded([pa.array(np.arange(64_000))]).hashes
    shards = shard_of(hashes, 64)
    counts = np.bincount(shards, minlength=64)
    assert counts.min() > 850 and counts.max() < 1150
    low = hashes[shards == 3] & np.uint64(7)
    assert np.bincount(low.astype(np.int64), minlength=8).min() > 80
    assert shard_of(encoded([pa.array([1, 2])]).hashes, 1).tolist() == [0, 0]


def test_without_columns_there_is_one_key_in_shard_0() -> None:
    keys = encode_keys(key_layout([]), [], 3)
    assert keys.words.shape == (3, 1)
    assert shard_of(keys.hashes, 64).tolist() == [0, 0, 0]


def test_what_cannot_be_a_key_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedQuery, match="'tags' of type list"):
        key_layout([pa.field("tags", pa.list_(pa.int64()))])
