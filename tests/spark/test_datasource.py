"""Streams read by Spark itself: `spark.read` and `spark.readStream` of the format `holdfast`, on real Spark."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.flow import START_US, WIDTH_US, Flow

import holdfast as hf

FIRST_BUCKET = START_US // WIDTH_US
SALES = "item string, price double"
BATCHES = [
    pa.table({"item": ["pear", "plum", "fig"], "price": [1.0, 2.0, 3.0]}),
    pa.table({"item": ["pear", "kiwi"], "price": [4.0, 5.0]}),
    pa.table({"item": ["plum", "fig", "kiwi", "pear"], "price": [6.0, 7.0, 8.0, 9.0]}),
]
ROWS = Counter((row["item"], row["price"]) for batch in BATCHES for row in batch.to_pylist())


@pytest.fixture(scope="module")
def flow(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    made = Flow(tmp_path_factory.mktemp("datasource"), shards=3)
    sales = made.pipeline.source("sales", SALES)
    totals = sales.groupBy("item").agg(F.sum("price").alias("total"), F.count("*").alias("sales"))
    totals.named("totals")
    made.send("sales", BATCHES)
    made.run()
    return made


def load(spark: SparkSession, flow: Flow, stream: str, **options: str) -> Any:
    return spark.read.format("holdfast").options(**options).load(f"{flow.store}/{stream}")


def counted(frame: Any) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def test_a_source_and_a_stage_have_the_rows_that_a_consumer_gets(spark: SparkSession, flow: Flow) -> None:
    assert counted(load(spark, flow, "sales")) == ROWS
    totals = flow.rows("totals")
    assert counted(load(spark, flow, "totals")) == Counter(tuple(row.values()) for row in totals.to_pylist())
    assert load(spark, flow, "flow/totals").schema.simpleString() == "struct<item:string,total:double,sales:bigint>"


def test_rows_of_many_shards_are_spread_over_partitions_once(spark: SparkSession, flow: Flow) -> None:
    frame = load(spark, flow, "sales").withColumn("partition", F.spark_partition_id())
    places = {(row.item, row.partition) for row in frame.collect()}
    assert len({partition for _, partition in places}) > 1
    assert len(places) == len({item for item, _ in places})


def test_the_view_changes_gives_each_row_its_identity(spark: SparkSession, flow: Flow) -> None:
    with hf.Consumer(flow.store, "totals", view="changes") as consumer:
        expected = [row for table in consumer for row in table.to_pylist()]
    found = load(spark, flow, "totals", view="changes").collect()
    assert {(row["_id"]["bucket"], row["_id"]["shard"], row["_id"]["position"]) for row in expected} == {
        (row["_id"].bucket, row["_id"].shard, row["_id"].position) for row in found
    }
    assert {row["_type"] for row in found} == {"STABLE"}


def test_columns_and_buckets_can_be_chosen(spark: SparkSession, flow: Flow) -> None:
    one = load(
        spark, flow, "sales", columns="price", startingBucket=str(FIRST_BUCKET + 1), endingBucket=str(FIRST_BUCKET + 2)
    )
    assert one.columns == ["price"]
    assert sorted(row.price for row in one.collect()) == [4.0, 5.0]


def test_a_streaming_query_takes_every_row_once_across_a_restart(
    spark: SparkSession, flow: Flow, tmp_path: Path
) -> None:
    def run(limit: str) -> list[int]:
        stream = spark.readStream.format("holdfast").option("maxRowsPerTrigger", limit).option("consumer", "again")
        query = (
            stream.load(f"{flow.store}/sales")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "spark_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    assert run("3") == [3, 2, 4]
    flow.send("sales", [pa.table({"item": ["fig"], "price": [10.0]})], bucket=100)
    assert run("3") == [1]
    assert counted(spark.read.parquet(str(tmp_path / "out"))) == ROWS + Counter({("fig", 10.0): 1})
    with hf.Consumer(flow.store, "sales", name="again") as consumer:
        assert consumer.position > FIRST_BUCKET + 2, "the query's place is stored as a consumer's"


@pytest.mark.parametrize(
    ("stream", "options", "message"),
    [
        ("nowhere", {}, "has no stream 'nowhere'. Check the name, .*There are: flow/sales"),
        ("sales", {"view": "all"}, "view 'all' is not known"),
        ("sales", {"columns": "item,prize"}, "columns asks for 'prize'"),
        ("sales", {"startingBucket": "first"}, "startingBucket is 'first'"),
        ("sales", {"maxRowsPerTrigger": "0"}, "must be at least 1"),
        ("sales", {"buckets": "1"}, "has no option 'buckets'"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, flow: Flow, stream: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message) as caught:
        load(spark, flow, stream, **options)
    assert "Traceback" not in str(caught.value) and "holdfast/" not in str(caught.value)


def test_writing_is_refused_with_advice(spark: SparkSession, flow: Flow) -> None:
    with pytest.raises(PySparkException, match=r"pipeline\.source\(name, frame\)") as caught:
        load(spark, flow, "sales").write.format("holdfast").mode("append").save(f"{flow.store}/sales")
    assert "Traceback" not in str(caught.value)
