"""Grouping keys of every type, end to end, against Spark's own groupBy over the same logged rows."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.flow import Flow, same_rows

from holdfast.errors import UnsupportedQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEGABYTE = 1 << 20
NINES = (9,) * 38
MOMENTS = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), dt.datetime(9999, 12, 31, 23, 59, 59)]
KEYS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, -1, 0, 127],
    "smallint": [-(2**15), 0, 2**15 - 1],
    "int": [-(2**31), 0, 2**31 - 1],
    "bigint": [-(2**63), -1, 0, 2**63 - 1],
    "float": [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 1e-45, 3.4e38],
    "double": [0.0, -0.0, float("nan"), -float("nan"), float("inf"), -float("inf"), 5e-324, 1e308],
    "decimal(1,0)": [Decimal(-9), Decimal(0), Decimal(9)],
    "decimal(18,6)": [Decimal(10**18 - 1).scaleb(-6), Decimal("0.000001"), Decimal(0)],
    "decimal(38,0)": [Decimal((0, NINES, 0)), Decimal((1, NINES, 0)), Decimal(2**64), Decimal(2**64 + 1), Decimal(0)],
    "decimal(38,38)": [Decimal((0, NINES, -38)), Decimal((1, NINES, -38)), Decimal((0, (1,), -38)), Decimal(0)],
    "string": ["", "a", "A", "a ", "é", "e\u0301", "\x00", "\U0001f600", "x" * MEGABYTE, "x" * (MEGABYTE - 1) + "y"],
    "binary": [b"", b"\x00", b"\x00\x00", b"\xff", b"y" * MEGABYTE],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS],
    "timestamp_ntz": MOMENTS,
    "interval day to second": [dt.timedelta(0), dt.timedelta(days=-3, microseconds=1), dt.timedelta(days=10_000)],
    "struct<x:int,y:string>": [{"x": 1, "y": ""}, {"x": None, "y": None}, {"x": 1, "y": None}],
    "struct<d:double,s:struct<f:float,b:binary>>": [
        {"d": -0.0, "s": {"f": float("nan"), "b": b""}},
        {"d": 0.0, "s": {"f": float("nan"), "b": b""}},
        {"d": 0.0, "s": None},
        {"d": None, "s": {"f": None, "b": None}},
    ],
}
ROWS = 120


def columns() -> str:
    return ", ".join(f"k{number} {type_}" for number, type_ in enumerate(KEYS))


def table(schema: pa.Schema, seed: int) -> pa.Table:
    chooser = random.Random(seed)
    made = {
        f"k{number}": [None if chooser.random() < 0.1 else chooser.choice(values) for _ in range(ROWS)]
        for number, values in enumerate(KEYS.values())
    }
    made["n"] = list(range(ROWS))
    made["at"] = [dt.datetime(2025, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n // 8) for n in range(ROWS)]
    return pa.table({field.name: pa.array(made[field.name], field.type) for field in schema})


def test_a_key_of_any_type_groups_as_spark_groups(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    from holdfast.spark.types import arrow_schema

    flow = Flow(tmp_path)
    source = flow.pipeline.source("rows", f"{columns()}, n int, at timestamp")
    timed = source.withWatermark("at", "1 hour")
    window = F.window("at", "10 seconds")
    results = {
        f"by{number}": timed.groupBy(f"k{number}", window)
        .agg(F.count("*").alias("rows"), F.sum("n").alias("total"), F.first("n").alias("first"))
        .named(f"by{number}")
        for number in range(len(KEYS))
    }
    several = timed.groupBy("k11", "k6", "k9", "k12", window).agg(F.count("*").alias("rows")).named("several")
    results["several"] = several
    # A key that is computed is not what rows were sharded by when they were logged.
    results["computed"] = timed.groupBy(F.upper("k11").alias("up"), window).count().named("computed")
    results["none"] = timed.groupBy(window).count().named("none")
    flow.send("rows", [table(arrow_schema(source.schema), seed) for seed in range(2)])
    flow.run()
    for name, result in results.items():
        same_rows(flow.rows(name), result.toSpark().toArrow())


def test_a_type_that_cannot_be_a_key_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    source = Flow(tmp_path).pipeline.source(
        "rows", "list array<int>, pairs map<string,int>, inner struct<l:array<int>>"
    )
    for key in ("list", "pairs", "inner"):
        with pytest.raises((UnsupportedQuery, AnalysisException), match=key):
            source.groupBy(key).count().named("result")


@pytest.mark.parametrize("type_", ["interval year to month", "variant", "timestamp_ltz array"])
def test_a_type_that_no_stream_holds_is_refused_by_column(spark: SparkSession, type_: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"interval year|variant|timestamp_ltz"):
        Flow(tmp_path).pipeline.source("rows", f"id int, odd {type_}")
