"""Rows from outside get the stream's types, or the error names column, expected and found."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.connect.conform import table_of
from holdfast.errors import SchemaMismatch

UTC = datetime.UTC
SCHEMA = pa.schema([("item", pa.string()), ("price", pa.float64()), ("count", pa.int32())])
AT = pa.schema([("at", pa.timestamp("us", tz="UTC"))])


def test_rows_as_dicts_arrow_and_pandas_become_the_same_table() -> None:
    rows = [{"count": 1, "item": "a", "price": 1.5}, {"item": "b", "price": 2, "count": None}]
    expected = pa.table({"item": ["a", "b"], "price": [1.5, 2.0], "count": pa.array([1, None], pa.int32())})
    frame = pd.DataFrame({"price": [1.5, 2.0], "item": ["a", "b"], "count": pd.array([1, None], "Int64")})
    loose = pa.table({"price": [1.5, 2.0], "count": [1, None], "item": pa.array(["a", "b"]).dictionary_encode()})
    for given in (rows, iter(rows), frame, loose, loose.to_batches()[0]):
        table = table_of(given, SCHEMA, "stream sales")
        assert table.equals(expected) and table.schema.equals(SCHEMA)


def test_a_key_that_a_dict_lacks_is_null_and_nan_stays_nan() -> None:
    (row,) = table_of([{"price": math.nan}], SCHEMA, "stream sales").to_pylist()
    assert row["item"] is None and math.isnan(row["price"])
    (row,) = table_of(pd.DataFrame({"item": ["a"], "price": [math.nan], "count": [1]}), SCHEMA, "s").to_pylist()
    assert row["price"] is None


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"item": "a", "prize": 1.0}], "unknown columns 'prize'"),
        ([{"item": "a", "price": "cheap"}], "column 'price': expected double"),
        ([{"item": "a", "count": 2**40}], "column 'count': expected int32"),
        ([{"count": 1}, {"count": 1.0}], r"column 'count': expected int32, found the float 1\.0"),
        ([{"count": True}], "column 'count': expected int32, found the bool True"),
        ([{"price": False}], "column 'price': expected double, found the bool False"),
        ([{"item": 5}], "column 'item': expected string, found the int 5"),
        ([{"item": b"a"}], "column 'item': expected string, found the bytes"),
        (pa.table({"item": ["a"], "price": [1.0]}), "missing 'count'"),
        (pa.table({"item": ["a"], "price": ["1"], "count": [1]}), "column 'price': expected double, found string"),
        (pa.table({"item": ["a"], "price": [1.0], "count": [2**40]}), "column 'count': a value"),
        (pa.table({"item": ["a"], "price": [1.0], "count": [1.5]}), "column 'count': expected int32, found double"),
        ({"item": "a"}, "cannot read rows from dict"),
        ("text", "cannot read rows from str"),
        ([1, 2], "row 0 is int"),
        (7, "cannot read rows from int"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(rows: Any, text: str) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        table_of(rows, SCHEMA, "stream sales")


def test_values_inside_of_values_are_checked_too() -> None:
    inner = pa.struct([("n", pa.int32()), ("raw", pa.binary())])
    schema = pa.schema([("one", inner), ("many", pa.list_(inner)), ("exact", pa.decimal128(5, 2))])
    good = {"one": {"n": 1}, "many": [{"n": np.int8(2), "raw": b"x"}, None], "exact": 3}
    (row,) = table_of([good], schema, "s").to_pylist()
    assert row == {"one": {"n": 1, "raw": None}, "many": [{"n": 2, "raw": b"x"}, None], "exact": Decimal("3.00")}
    wrong = {
        "column 'one': unknown field 'm'": {"one": {"m": 1}},
        "column 'one', field 'n': expected int32, found the float": {"one": {"n": 1.5}},
        "column 'many', field 'raw': expected binary, found the str": {"many": [{"raw": "x"}]},
        "column 'many': expected a list, found the dict": {"many": {"n": 1}},
        "column 'exact': expected decimal128.5, 2., found the float": {"exact": 1.25},
    }
    for told, values in wrong.items():
        with pytest.raises(SchemaMismatch, match=told):
            table_of([values], schema, "s")


def test_repeated_columns_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["item", "item"])
    with pytest.raises(SchemaMismatch, match="repeated 'item'"):
        table_of(table, pa.schema([("item", pa.string())]), "stream sales")


def test_a_time_without_a_zone_is_in_the_sessions_zone() -> None:
    naive = datetime.datetime(2024, 7, 1, 12)
    aware = datetime.datetime(2024, 7, 1, 12, tzinfo=UTC)
    for given in (naive, aware):
        rows = [{"at": given}]
        frame = pd.DataFrame({"at": [given]})
        expected = aware if given.tzinfo else datetime.datetime(2024, 7, 1, 10, tzinfo=UTC)
        for each in (rows, frame, pa.table({"at": [given]})):
            assert table_of(each, AT, "s", "Europe/Berlin").to_pylist() == [{"at": expected}]


def test_time_below_a_microsecond_is_cut() -> None:
    table = pa.table({"at": pa.array([1_000_000_001_999], pa.timestamp("ns", tz="UTC"))})
    assert table_of(table, AT, "s").column("at").cast(pa.int64()).to_pylist() == [1_000_000_001]


def test_a_null_where_the_schema_has_none_names_the_row() -> None:
    schema = pa.schema([pa.field("item", pa.string(), nullable=False)])
    with pytest.raises(SchemaMismatch, match="'item' is null in row 1"):
        table_of([{"item": "a"}, {}], schema, "stream sales")
    assert table_of([{"item": "a"}], schema, "stream sales").schema.equals(schema)


def test_nested_values_keep_their_shape() -> None:
    schema = pa.schema([("who", pa.struct([("name", pa.string()), ("age", pa.int64())]))])
    found = pa.table(
        {"who": pa.array([{"name": "x", "age": 3}], pa.struct([("name", pa.string()), ("age", pa.int8())]))}
    )
    assert table_of(found, schema, "s").to_pylist() == [{"who": {"name": "x", "age": 3}}]
    wrong = pa.table({"who": [{"name": "x", "years": 3}]})
    with pytest.raises(SchemaMismatch, match="'who'"):
        table_of(wrong, schema, "s")


def test_no_rows_at_all_are_an_empty_table() -> None:
    assert table_of([], SCHEMA, "s").num_rows == 0
