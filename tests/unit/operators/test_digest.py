"""The digest of a bucket's rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import UnsupportedQuery
from holdfast.operators.digest import digest_rows

WINDOW = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("number", pa.int64())])
GOLDEN = 7547343342025890077


def batch(values: list[Any], type_: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, type_)], names=["value"])


def digest(values: list[Any], type_: pa.DataType) -> int:
    return digest_rows(batch(values, type_), [len(values)])[0]


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.int64(), [0, 1, None, -1]),
        (pa.bool_(), [True, False, None]),
        (pa.float64(), [0.0, -0.0, float("nan"), None, 1.5]),
        (pa.string(), ["", "a", "a\x00", "b", None, "longer than eight bytes"]),
        (pa.binary(), [b"", b"\x00", None]),
        (pa.decimal128(38, 2), [1, -1, 0, None]),
        (WINDOW, [None, {"start": None, "number": None}, {"start": 1, "number": 0}, {"start": 0, "number": 1}]),
        (pa.list_(pa.int64()), [None, [], [None], [0], [0, 0]]),
        (pa.map_(pa.string(), pa.int64()), [None, [], [("a", 1)], [("a", None)]]),
    ],
)
def test_different_rows_and_different_orders_differ(type_: pa.DataType, values: list[Any]) -> None:
    assert len({digest([value], type_) for value in values}) == len(values)
    assert digest(values, type_) != digest(values[::-1], type_)
    assert digest(values, type_) != digest(values[:-1], type_)


def test_slices_and_chunks_have_the_digest_of_their_rows() -> None:
    rows: list[Any] = [
        {"number": n, "text": None if n % 3 else f"row {n}", "window": {"start": n, "number": n}, "list": [n, None]}
        for n in range(40)
    ]
    schema = pa.schema(
        [("number", pa.int16()), ("text", pa.string()), ("window", WINDOW), ("list", pa.list_(pa.int8()))]
    )
    whole = pa.RecordBatch.from_pylist(rows, schema=schema)
    parts = pa.concat_batches(
        [pa.RecordBatch.from_pylist(rows[a:b], schema=schema) for a, b in ((0, 3), (3, 30), (30, 40))]
    )
    assert digest_rows(whole, [7, 7, 25, 40]) == digest_rows(parts, [7, 7, 25, 40])
    assert digest_rows(whole.slice(7, 18), [18])[0] == digest_rows(whole, [7, 25])[1]
    assert digest_rows(whole, [7, 7])[1] == 0


def test_the_digest_never_changes() -> None:
    assert digest([1, None, 3], pa.int64()) == GOLDEN


def test_a_type_that_has_no_digest_is_refused() -> None:
    with pytest.raises(UnsupportedQuery, match="union"):
        digest_rows(
            pa.RecordBatch.from_arrays(
                [pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])], names=["value"]
            ),
            [1],
        )
