"""Rows that cannot be computed: named and nothing lost, or put aside with the reason, wherever they are met."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.spark.flow import Flow

from holdfast.errors import BadRow, HoldfastError, SchemaMismatch, UserFunctionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id int, text string, divisor int"
GOOD = {"id": 1, "text": "10", "divisor": 2}
BAD = {"id": 2, "text": "ten", "divisor": 0}
ALSO_GOOD = {"id": 3, "text": "30", "divisor": 3}
SENT = [[GOOD], [GOOD, BAD, ALSO_GOOD], [ALSO_GOOD]]
PLACE = r"stream 'rows', shard \d+, bucket \d+, position [01]"


def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch(
            {"id": batch["id"], "number": pa.array([int(text) for text in batch["text"].to_pylist()])}
        )


def careful(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers = [int(text) if text.isdigit() else None for text in batch["text"].to_pylist()]
        yield pa.record_batch({"id": batch["id"], "number": pa.array(numbers, pa.int64())})


def refuse_two(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if 2 in batch["id"].to_pylist():
            raise ValueError("two is refused")
        yield batch


def wrong_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["text"])


def steps(F: Any, rows: Any, kind: str) -> Any:
    """Return a stream in which row 2 cannot be computed, and the others can."""
    if kind == "function":
        return rows.mapInArrow(parse, "id int, number bigint")
    computed = {"cast": F.col("text").cast("int"), "division": F.expr("10 div divisor")}
    if kind == "condition":
        return rows.filter("100 div divisor > 0").select("id", F.lit(1).alias("number"))
    return rows.select("id", computed[kind].alias("number"))


KINDS = {
    "function": (UserFunctionFailed, "function '.*' failed .*ValueError: invalid literal"),
    "cast": (BadRow, "'ten'|the text is not"),
    "division": (BadRow, "zero"),
    "condition": (BadRow, "zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_row_is_named_and_after_the_fix_nothing_is_lost(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA)
    steps(F, rows, kind).groupBy("id").agg(F.count("*").alias("rows")).named("result")
    flow.send("rows", SENT)
    error, told = KINDS[kind]
    with pytest.raises(error) as caught:
        flow.run()
    message = str(caught.value)
    assert re.search(told, message), message
    assert re.search(PLACE, message) and '{"id": 2, "text": "ten", "divisor": 0}' in message, message
    assert "Traceback" not in message and 'on_error="reject"' in message


def test_a_fixed_function_goes_on_where_the_pipeline_stopped(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)

    def run(function: Any) -> None:
        # The function's own name is part of what the pipeline is: a fix keeps it.
        function.__qualname__ = "to_number"
        again = Flow(tmp_path)
        rows = again.pipeline.source("rows", SCHEMA).mapInArrow(function, "id int, number bigint")
        rows.groupBy("id").agg(F.count("number").alias("n")).named("result")
        if function is parse:
            again.send("rows", SENT)
        again.run()

    with pytest.raises(UserFunctionFailed, match="to_number"):
        run(parse)
    run(careful)
    last = {row["id"]: row["n"] for row in flow.rows("result").to_pylist()}
    assert last == {1: 2, 2: 0, 3: 2}


@pytest.mark.parametrize("kind", KINDS)
def test_rejected_rows_are_put_aside_with_reason_place_and_content(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA, on_error="reject")
    steps(F, rows, kind).groupBy("id").agg(F.count("*").alias("rows")).named("result")
    flow.send("rows", SENT)
    flow.run()
    assert {row["id"]: row["rows"] for row in flow.rows("result").to_pylist()} == {1: 2, 3: 2}
    (reject,) = flow.rows("rows.rejects").to_pylist()
    assert re.search(PLACE, reject["origin"])
    assert reject["row"] == '{"id": 2, "text": "ten", "divisor": 0}'
    assert re.search(KINDS[kind][1].split(".*")[-1], reject["reason"])


def test_an_argument_of_an_aggregate_that_fails_is_a_bad_row_too(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA)
    rows.groupBy("id").agg(F.sum(F.expr("10 div divisor")).alias("total")).named("result")
    flow.send("rows", SENT)
    with pytest.raises(BadRow, match=PLACE):
        flow.run()


@pytest.mark.parametrize("function", [refuse_two, wrong_column])
def test_a_function_behind_the_aggregation_that_fails(spark: SparkSession, tmp_path: Path, function: Any) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA).groupBy("id").agg(F.count("*").alias("rows"))
    rows.mapInArrow(function, "id int, rows bigint").named("result")
    flow.send("rows", SENT)
    with pytest.raises(HoldfastError) as caught:
        flow.run()
    if function is wrong_column:
        assert isinstance(caught.value, (SchemaMismatch, UserFunctionFailed))
        assert "wrong_column" in str(caught.value) and "id" in str(caught.value)
    else:
        assert isinstance(caught.value, UserFunctionFailed)
        assert re.search(r"'refuse_two' failed on the row at .*two is refused.*\"id\": 2", str(caught.value))


@pytest.mark.parametrize(
    ("type_", "values", "function"),
    [
        ("bigint", [2**63 - 1, 1], "sum"),
        ("decimal(38,0)", ["9" * 38, "1"], "sum"),
        ("decimal(38,0)", ["9" * 38], "avg"),
    ],
)
def test_an_overflow_is_spark_s_error_with_ansi_and_spark_s_null_without(
    spark: SparkSession, tmp_path: Path, type_: str, values: list[Any], function: str
) -> None:
    from decimal import Decimal

    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    exact = [Decimal(value) if isinstance(value, str) else value for value in values]
    for enabled in (True, False):
        spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
        try:
            flow = Flow(tmp_path / str(enabled))
            rows = flow.pipeline.source("rows", f"id int, v {type_}")
            result = rows.groupBy("id").agg(getattr(F, function)("v").alias("made")).named("result")
            flow.send("rows", [[{"id": 1, "v": value} for value in exact]])
            if enabled:
                with pytest.raises(HoldfastError, match=r"does not fit .*cast"):
                    flow.run()
                with pytest.raises(PySparkException, match=r"OVERFLOW|OUT_OF_RANGE"):
                    result.toSpark().collect()
            else:
                flow.run()
                assert flow.rows("result").to_pylist() == result.toSpark().toArrow().to_pylist()
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")


def test_more_rejects_than_the_limit_stop_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA, on_error="reject", rejects_max=3)
    rows.mapInArrow(parse, "id int, number bigint").named("result")
    flow.send("rows", [[BAD], [GOOD, BAD], [BAD] * 2])
    with pytest.raises(
        BadRow, match=r"rows of source 'rows' were rejected, at most 3 are .*mend .*or raise rejects_max"
    ):
        flow.run()
