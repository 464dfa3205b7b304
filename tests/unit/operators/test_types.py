"""Spark's types as text and as Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UnsupportedQuery
from holdfast.operators.types import arrow_type, spark_type

ATOMS = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"),
    *("date", "timestamp", "timestamp_ntz", "void"),
]
names = st.text(st.sampled_from("ab:,<>`( )日"), min_size=1, max_size=6)
types = st.recursive(
    st.sampled_from([*(arrow_type(atom) for atom in ATOMS), pa.decimal128(38, 18), pa.decimal128(1, 0)]),
    lambda inner: st.one_of(
        st.lists(st.tuples(names, inner), max_size=3, unique_by=lambda field: field[0]).map(pa.struct),
        inner.map(pa.list_),
        inner.map(lambda item: pa.map_(pa.string(), item)),
    ),
    max_leaves=6,
)


@given(types)
def test_a_type_comes_back_from_its_text(arrow: pa.DataType) -> None:
    assert arrow_type(spark_type(arrow)) == arrow


def test_a_timestamp_is_utc_and_one_without_a_zone_is_not() -> None:
    assert arrow_type("timestamp") == pa.timestamp("us", tz="UTC")
    assert arrow_type("timestamp_ntz") == pa.timestamp("us")
    assert arrow_type("interval day to second") == pa.duration("us")


def test_sparks_own_text_of_a_struct_is_read() -> None:
    expected = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    assert arrow_type("struct<start:timestamp,n:bigint>") == expected


@pytest.mark.parametrize("text", ["variant", "string collate UTF8_LCASE", "struct<a:int", "struct<a int>", "int,", ""])
def test_what_a_stream_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedQuery):
        arrow_type(text)
