"""What a Stream can say, run end to end and compared row for row with the very same query as Spark batch."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.flow import START_US, WIDTH_US, Flow, same_rows

import holdfast as hf
from holdfast.errors import BadRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEFT = "item string, price double, count int, at timestamp, cost decimal(10,2), pair struct<a:int,b:string>"
RIGHT = "count bigint, item string, at timestamp, extra boolean"


def tripled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give each row three times, whatever the batches are."""
    for batch in batches:
        rows = pa.array([row for row in range(batch.num_rows) for _ in range(3)])
        yield batch.take(rows)


def dropped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave every other item out, and name a column anew."""
    for batch in batches:
        kept = batch.filter(pc.not_equal(batch["item"], "b"))
        yield pa.record_batch({"thing": kept["item"], "n": pc.cast(kept["rows"], pa.int32())})


def left_rows(seed: int, count: int = 80) -> pa.Table:
    chooser = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chooser.random() < 0.1 else value

    moments = [maybe(START_US + chooser.randrange(60_000_000)) for _ in range(count)]
    return pa.table(
        {
            "item": pa.array([maybe(chooser.choice(["a", "b", "c", ""])) for _ in range(count)]),
            "price": pa.array([maybe(chooser.uniform(-10, 10)) for _ in range(count)]),
            "count": pa.array([maybe(chooser.randrange(-3, 4)) for _ in range(count)], pa.int32()),
            "at": pa.array(moments, pa.timestamp("us", tz="UTC")),
            "cost": pa.array(
                [maybe(Decimal(chooser.randrange(10_000)) / 4) for _ in range(count)], pa.decimal128(10, 2)
            ),
            "pair": pa.array([maybe({"a": maybe(chooser.randrange(3)), "b": "x"}) for _ in range(count)]),
        }
    )


def right_rows(seed: int) -> pa.Table:
    rows = left_rows(seed).select(["count", "item", "at"])
    return rows.append_column("extra", pa.array([n % 3 == 0 for n in range(rows.num_rows)]))


Build = Callable[[Any, Any, Any], Any]
ROW_WISE: dict[str, Build] = {
    "same": lambda left, right, F: left.select("*"),
    "steps": lambda left, right, F: (
        left.filter("price > 0").withColumn("tax", F.col("cost") * 2).withColumnRenamed("item", "thing").drop("count")
    ),
    "columns": lambda left, right, F: left.withColumns({"up": F.upper("item"), "day": F.to_date("at")}).where(
        "up != 'A'"
    ),
    "nested": lambda left, right, F: left.select("pair.a", F.struct("item", "count").alias("both"), "pair"),
    "by_place": lambda left, right, F: left.select("count", "item").union(right.select("count", "item")),
    "by_name": lambda left, right, F: left.unionByName(right, allowMissingColumns=True),
    "mapped": lambda left, right, F: left.select("item", "count").mapInArrow(tripled, "item string, count int"),
}
GROUPED: dict[str, Build] = {
    "tumbling": lambda left, right, F: left.groupBy("item", F.window("at", "10 seconds")).agg(
        F.avg("price").alias("mean"), F.count("*").alias("rows")
    ),
    "sliding": lambda left, right, F: (
        left.groupBy(F.window("at", "20 seconds", "7 seconds", "-3 seconds").alias("w"), "item")
        .agg(F.sum("cost"), F.min("price"), F.max("pair.b"))
        .select("item", "w.start", F.col("sum(cost)").alias("cost"), "min(price)")
    ),
    "computed": lambda left, right, F: (
        left.groupBy((F.col("count") % 2).alias("odd"), F.length("item"), F.window("at", "1 minute"))
        .agg(
            (F.sum("price") / F.count("price") + 1).alias("mean"), F.stddev("price"), F.first("item", ignorenulls=True)
        )
        .where("mean is not null")
    ),
    "several": lambda left, right, F: (
        left.select("item", "at", F.col("count").cast("bigint").alias("count"))
        .unionByName(right.drop("extra"))
        .groupBy("item", F.window("at", "15 seconds"))
        .agg(F.sum("count").alias("total"), F.max("count").alias("most"), F.count("count").alias("known"))
    ),
    "behind": lambda left, right, F: (
        left.groupBy("item", F.window("at", "10 seconds"))
        .agg(F.count("*").alias("rows"))
        .select("item", "rows")
        .mapInArrow(dropped, "thing string, n int")
    ),
    "before": lambda left, right, F: (
        right.select("item", "count", "at")
        .groupBy(F.window("at", "10 seconds"), "count")
        .agg(F.max("item"), F.last("item"))
    ),
}


def test_every_query_gives_sparks_rows(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path, shards=3)
    left, right = flow.pipeline.source("left", LEFT), flow.pipeline.source("right", RIGHT)
    timed = left.withWatermark("at", "1 hour"), right.withWatermark("at", "1 hour")
    results = {name: build(left, right, F).named(name) for name, build in ROW_WISE.items()}
    results |= {name: build(*timed, F).named(name) for name, build in GROUPED.items()}
    flow.send("left", [left_rows(seed) for seed in range(3)])
    flow.send("right", [right_rows(seed) for seed in range(10, 12)])
    flow.run()
    for name, result in results.items():
        # Names, types and nullability are Spark's too, in `schema` and in what is stored.
        expected = result.toSpark()
        assert result.schema == expected.schema, name
        assert result.columns == expected.columns
        found = flow.rows(name)
        assert found.num_rows > 0, name
        same_rows(found, expected.toArrow())


def test_a_source_that_is_ordered_by_a_column(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    source = flow.pipeline.source("rows", "key string, value int, at timestamp", tuple_time="at")
    grouped = source.withWatermark("at", "0 seconds").groupBy("key", F.window("at", "1 second"))
    result = grouped.agg(F.sum("value").alias("total"), F.first("value").alias("first")).named("result")
    flow.pipeline.create()

    def rows(*steps: int) -> list[dict[str, Any]]:
        start = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
        return [
            {"key": "ab"[step % 2], "value": step, "at": start + dt.timedelta(microseconds=step * WIDTH_US)}
            for step in steps
        ]

    with hf.Producer(flow.store, "rows") as producer:
        # Within a send rows may have any order; from send to send time goes on.
        producer.send(rows(5, 3, 9, 0, 7))
        producer.send(rows(40, 11, 33, 12))
        with pytest.raises(BadRow, match=r"row 1 has 'at' = .* before the boundary .*sort the rows"):
            producer.send(rows(50, 2))
        producer.boundary(dt.datetime(2025, 1, 1, 1, tzinfo=dt.UTC))
    flow.run()
    same_rows(flow.rows("result").drop_columns("first"), result.toSpark().drop("first").toArrow())
    firsts = {(row["key"], row["window"]["start"].second): row["first"] for row in flow.rows("result").to_pylist()}
    assert firsts == {("a", 0): 0, ("b", 0): 3, ("b", 1): 11, ("a", 1): 12, ("b", 3): 33, ("a", 4): 40}


def test_count_windows_of_a_key_that_decides_the_shard_do_not_depend_on_shards(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    found = []
    for shards in (1, 5):
        flow = Flow(tmp_path / str(shards), shards)
        left = flow.pipeline.source("left", LEFT)
        grouped = left.groupBy("item", hf.count_window(4))
        grouped.agg(F.sum("cost"), F.first("price"), F.last("at"), F.avg("price")).named("result")
        flow.send("left", [left_rows(seed) for seed in range(3)])
        flow.run()
        found.append(flow.rows("result"))
    assert found[0].num_rows > 10
    same_rows(*found)


def test_reals_of_two_sources_differ_from_sparks_in_the_last_digits_at_most(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Here rows are folded in the order of the union, while Spark adds up what it has folded of each source."""
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    sources = [flow.pipeline.source(name, LEFT).withWatermark("at", "1 hour") for name in ("left", "right")]
    grouped = sources[0].union(sources[1]).groupBy(F.window("at", "10 seconds"))
    result = grouped.agg(F.sum("price"), F.avg("price"), F.stddev("price"), F.var_pop("cost")).named("result")
    flow.send("left", [left_rows(seed) for seed in range(3)])
    flow.send("right", [left_rows(seed) for seed in range(3, 6)])
    flow.run()
    ours, theirs = (
        {row.pop("window")["start"]: row for row in table.to_pylist()}
        for table in (flow.rows("result"), result.toSpark().toArrow())
    )
    assert ours.keys() == theirs.keys()
    for start, row in theirs.items():
        assert ours[start] == pytest.approx(row, rel=1e-13)
