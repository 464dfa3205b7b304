"""Streaming DataFrames as sources: rows of a real query, logged once, whatever comes again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.flow import write_atomically

import holdfast as hf
from holdfast.cli.status import command as status_command
from holdfast.connect.query_state import read_query_state
from holdfast.errors import Misconfigured, PipelineFailed, StoreUnfit
from holdfast.log.local_store import LocalStore
from holdfast.log.reconcile import segment_paths

SALE = "item string, price double, sold_at timestamp"
SCHEMA = pa.schema([("item", pa.string()), ("price", pa.float64()), ("sold_at", pa.timestamp("us", "UTC"))])
START_US = 1_760_000_000_000_000
LIMIT_S = 60


def sales(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    rows = [
        {"item": f"item {n % 7}", "price": float(n), "sold_at": 1_760_000_000_000_000 + n * 100_000} for n in numbers
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def drop(folder: Path, name: str, table: pa.Table) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_atomically(folder / f"{name}.parquet", sink.getvalue().to_pybytes())
    # Spark takes files in the order of their times, and in none where these are equal.
    os.utime(folder / f"{name}.parquet", (1_700_000_000 + int(name),) * 2)


def stream_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SALE).option("maxFilesPerTrigger", "1").parquet(str(folder))


def build(spark: SparkSession, folder: Path, **options: Any) -> hf.Pipeline:
    pipeline = hf.Pipeline("shop", store=str(folder / "store"), shards=2, bucket="100 milliseconds")
    # What Spark does before the rows are logged is part of the source.
    frame = stream_of(spark, folder / "in").where("price >= 0").withColumn("item", F.upper("item"))
    source = pipeline.source("sales", frame, **options)
    totals = source.withWatermark("sold_at", "1 second").groupBy("item", F.window("sold_at", "5 seconds"))
    totals.agg(F.sum("price").alias("total"), F.count("*").alias("sales")).named("totals")
    return pipeline


def rows_of(folder: Path, stream: str) -> Counter[str]:
    with hf.Consumer(str(folder / "store"), stream) as consumer:
        return Counter(repr(row) for table in consumer for row in table.to_pylist())


def expected(folder: Path) -> Counter[str]:
    table = pa.concat_tables(pq.read_table(file) for file in sorted((folder / "in").glob("*.parquet")))
    return Counter(repr(row | {"item": row["item"].upper()}) for row in table.to_pylist() if row["price"] >= 0)


def logged(spark: SparkSession, folder: Path) -> Counter[str]:
    found = spark.read.format("holdfast").load(f"{folder}/store/sales").toArrow()
    return Counter(repr(row) for row in found.cast(SCHEMA).to_pylist())


def test_what_is_there_is_logged_and_aggregated_as_spark_does_it(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        drop(tmp_path / "in", f"{number}", sales(number * 100, 100))
    pipeline = build(spark, tmp_path)
    pipeline.run(available_now=True)
    assert logged(spark, tmp_path) == expected(tmp_path)
    frame = spark.read.schema(SALE).parquet(str(tmp_path / "in")).withColumn("item", F.upper("item"))
    oracle = frame.groupBy("item", F.window("sold_at", "5 seconds")).agg(
        F.sum("price").alias("total"), F.count("*").alias("sales")
    )
    assert rows_of(tmp_path, "totals") == Counter(repr(row) for row in oracle.toArrow().to_pylist())


def test_a_run_goes_on_behind_the_last_batch(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "0", sales(0, 50))
    build(spark, tmp_path).run(available_now=True)
    drop(tmp_path / "in", "1", sales(50, 50))
    build(spark, tmp_path).run(available_now=True)
    assert logged(spark, tmp_path) == expected(tmp_path)


def test_a_batch_that_spark_repeats_is_logged_once(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "0", sales(0, 50))
    build(spark, tmp_path).run(available_now=True)
    # As after a crash between our commit and Spark's: the batch is planned, and not marked as done.
    commits = tmp_path / "store" / "shop" / "ingest" / "sales" / "spark_checkpoint" / "commits"
    (commits / "0").unlink()
    (commits / ".0.crc").unlink(missing_ok=True)
    drop(tmp_path / "in", "1", sales(50, 50))
    build(spark, tmp_path).run(available_now=True)
    assert logged(spark, tmp_path) == expected(tmp_path)


def test_another_querys_stream_is_not_taken_over_unless_asked(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "0", sales(0, 50))
    build(spark, tmp_path).run(available_now=True)
    shutil.rmtree(tmp_path / "store" / "shop" / "ingest")
    with pytest.raises(StoreUnfit, match=r"spark_checkpoint is new.*adopt=True"):
        build(spark, tmp_path).run(available_now=True)
    shutil.rmtree(tmp_path / "store" / "shop" / "ingest")
    (tmp_path / "in" / "0.parquet").unlink()
    drop(tmp_path / "in", "1", sales(50, 50))
    build(spark, tmp_path, adopt=True).run(available_now=True)
    assert logged(spark, tmp_path).total() == 100


def test_a_live_query_moves_the_boundary_while_it_is_idle_and_is_started_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    drop(tmp_path / "in", "0", sales(0, 200))
    handle = build(spark, tmp_path).start()
    try:
        with hf.Consumer(str(tmp_path / "store"), "totals", wait="30 seconds") as consumer:
            # Windows close in a bucket that is complete only because the idle query moves the boundary.
            first = consumer.poll(LIMIT_S)
            assert first is not None and first.num_rows
            broken = next(query for query in spark.streams.active if query.name == "holdfast-shop-sales")
            broken.stop()
            drop(tmp_path / "in", "1", sales(200, 200))
            second = consumer.poll(LIMIT_S)
            assert second is not None and second.num_rows
    finally:
        handle.stop()
    assert handle.exception() is None
    assert not [query for query in spark.streams.active if query.name == "holdfast-shop-sales"]
    assert logged(spark, tmp_path) == expected(tmp_path)


def test_a_query_that_dies_is_named_by_status_until_it_looks_again(spark: SparkSession, tmp_path: Path) -> None:
    drop(tmp_path / "in", "0", sales(0, 100))
    write_atomically(tmp_path / "in" / "1.parquet", b"not a file of this kind")
    handle = build(spark, tmp_path).start()
    store = LocalStore(tmp_path / "store" / "shop")
    try:

        def wait_for(phase: str, deaths: int) -> None:
            deadline = time.monotonic() + LIMIT_S
            while (found := read_query_state(store, "sales")) is None or found.phase != phase or found.deaths < deaths:
                assert time.monotonic() < deadline, found
                time.sleep(0.05)

        wait_for("dead", 2)
        ran = CliRunner().invoke(status_command, [str(tmp_path / "store"), "--json"])
        (shown,) = [json.loads(line) for line in ran.output.splitlines()]
        query = next(each for each in shown["streams"] if each["name"] == "sales")["query"]
        assert (query["phase"], query["deaths"]) == ("dead", 2) and "1.parquet" in query["cause"]
        assert 0 < query["since_us"] < query["next_try_us"]
        assert "the query of sales is down since" in shown["problems"][0] and "1.parquet" in shown["problems"][0]
        assert "1.parquet" in CliRunner().invoke(status_command, [str(tmp_path / "store")]).output
        drop(tmp_path / "in", "1", sales(100, 100))
        wait_for("running", 0)
        with hf.Consumer(str(tmp_path / "store"), "totals", wait="30 seconds") as consumer:
            assert consumer.poll(LIMIT_S) is not None
        said = json.loads(CliRunner().invoke(status_command, [str(tmp_path / "store"), "--json"]).output)
        assert not [problem for problem in said["problems"] if "is down" in problem]
    finally:
        handle.stop()
    assert handle.exception() is None
    stopped = read_query_state(store, "sales")
    assert stopped is not None and stopped.phase == "stopped"
    assert logged(spark, tmp_path) == expected(tmp_path)


def test_what_a_run_cannot_take_is_told_with_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_atomically(tmp_path / "in" / "0.parquet", b"not a file of this kind")
    with pytest.raises(PipelineFailed, match=r"the query of source 'sales' has ended: .*0\.parquet"):
        build(spark, tmp_path).run(available_now=True)


def test_two_sources_of_one_pipeline_go_on_with_their_segments(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("shops", store=str(tmp_path / "store"), shards=2, bucket="100 milliseconds")
    sources = []
    for name in ("north", "south"):
        for number in range(3):
            drop(tmp_path / name, f"{number}", sales(number * 10, 10))
        sources.append(pipeline.source(name, stream_of(spark, tmp_path / name)))
    sources[0].unionByName(sources[1]).groupBy("item").agg(F.count("*").alias("sales")).named("totals")
    handle = pipeline.start()
    try:
        with hf.Consumer(str(tmp_path / "store"), "totals", wait="30 seconds") as consumer:
            counted: dict[str, int] = {}
            while sum(counted.values()) < 60:
                table = consumer.poll(LIMIT_S)
                assert table is not None, counted
                counted |= {row["item"]: row["sales"] for row in table.to_pylist()}
    finally:
        handle.stop()
    store = LocalStore(tmp_path / "store" / "shops")
    for name in ("north", "south"):
        # Batches of one file each, and never more segments than there are processes.
        assert len(list(segment_paths(store, name))) <= 2


def test_a_batch_frame_is_refused_with_advice(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("shop", store=str(tmp_path / "store"))
    with pytest.raises(Misconfigured, match=r"spark\.readStream"):
        pipeline.source("sales", spark.range(3).toDF("number"))
