"""`transform`: any row-wise function from DataFrame to DataFrame, as a stage, against the same as one Spark batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import START_US, Flow, same_rows, texts, threads_of_ours

import holdfast as hf
from holdfast.errors import HoldfastError, UserFunctionFailed
from holdfast.log.inspect import read_ledger
from holdfast.log.store import open_store
from holdfast.node.options import NodeOptions
from holdfast.spark import launch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = "item string, price double, n int, notes array<string>, at timestamp"
ITEMS = ["apple", "bread", "cheese", "dates", None]


def sales(first: int, count: int, seed: int) -> pa.Table:
    chooser = random.Random(seed)
    return pa.table(
        {
            "item": pa.array([chooser.choice(ITEMS) for _ in range(count)]),
            "price": pa.array([chooser.choice([1.5, -0.0, float("nan"), None, 7.25]) for _ in range(count)]),
            "n": pa.array(range(first, first + count), pa.int32()),
            "notes": pa.array([[f"{chooser.randrange(5)}" for _ in range(chooser.randrange(4))] for _ in range(count)]),
            "at": pa.array([START_US + (first + row) * 250_000 for row in range(count)], pa.timestamp("us", tz="UTC")),
        }
    )


def batches(seed: int, first: int = 0, count: int = 12) -> list[pa.Table]:
    chooser = random.Random(seed)
    found = []
    for _ in range(count):
        found.append(sales(first, chooser.randrange(1, 40), seed + first))
        first += found[-1].num_rows
    return found


def exploded(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where("n % 7 != 0").select("item", "n", F.posexplode_outer("notes").alias("place", "note"), "at")


def joined(rows: DataFrame, how: str = "left") -> DataFrame:
    # An item has several names, and one name has no item.
    names = [("apple", "Apfel"), ("apple", "pomme"), ("apple", "mela"), ("bread", "Brot"), ("eggs", "Eier")]
    table = rows.sparkSession.createDataFrame(names, "item string, name string")
    return rows.join(table, "item", how)


def upper(text: str | None) -> str | None:
    return None if text is None else text.upper()


def with_udf(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("loud", F.udf(upper, "string", useArrow=False)("item")).withColumn(
        "hash", F.xxhash64("item", "n")
    )


def ranked(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Number the rows of a call: what comes out says how many rows the function was shown together."""
    for frame in frames:
        yield pd.DataFrame({"n": frame["n"], "place": range(len(frame)), "of": len(frame)})


def over_batches(rows: DataFrame) -> DataFrame:
    return rows.where("n % 2 = 0").mapInPandas(ranked, "n int, place long, of long").where("place < 9")


def centred(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    @F.pandas_udf("double")  # type: ignore[call-overload]
    def centre(column: pd.Series) -> pd.Series:
        return column - column.mean()

    return rows.select("n", centre("n").alias("centred"))


def united(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select("item", "n", F.lit("all").alias("kind")).union(
        rows.where("n % 3 = 0").select("item", F.col("n") * 2, F.lit("third"))
    )


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str] | None]] = {
    "exploded": (exploded, None),
    "joined": (joined, None),
    "semi": (lambda rows: joined(rows, "left_semi"), None),
    "with_udf": (with_udf, None),
    "united": (united, ["kind", "n"]),
    "sorted": (exploded, ["note", "n"]),
    "over_batches": (over_batches, None),
    "centred": (centred, None),
    "empty": (lambda rows: rows.where("false"), None),
}
SEES_BATCHES = ("over_batches", "centred", "again")


def build(flow: Flow) -> dict[str, hf.Stream]:
    from pyspark.sql import functions as F

    source = flow.pipeline.source("sales", SALES)
    streams = {name: source.transform(f, order_by=by).named(name) for name, (f, by) in FUNCTIONS.items()}
    # Its key is a column of the source, which the function leaves as it is: so the source is sharded by it.
    # Frames of a stage hold many buckets.
    streams["again"] = streams["exploded"].transform(over_batches).named("again")
    streams["exploded"].groupBy("item").agg(F.count("*").alias("rows"), F.max("note")).named("counts")
    return streams


def run(flow: Flow, rows_max: int) -> None:
    """Take what is there in jobs of at most about so many rows."""
    options = NodeOptions(job_rows_min=1, wave_rows_max=rows_max)
    launch.run(launch.start(flow.pipeline, available_now=True, options=options))


def digests(flow: Flow, stream: str) -> dict[tuple[int, int], tuple[int, int]]:
    return read_ledger(open_store(f"{flow.store}/flow"), stream).digests(stream)


def test_every_function_gives_sparks_rows_and_the_same_digests_in_any_grouping(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, many = Flow(tmp_path / "one", shards=3), Flow(tmp_path / "many", shards=3)
    streams = build(one)
    build(many)
    (counts,) = (stage for stage in one.pipeline.topology()[0].stages if stage.name == "counts")
    assert counts.sharded, "a column that a transform leaves alone is traced through it"
    sent = batches(1)
    for part, bucket in ((sent[:5], 0), (sent[5:6], 50), (sent[6:], 100)):
        one.send("sales", part, bucket)
        many.send("sales", part, bucket)
        run(many, 50)
    run(one, 1_000_000)
    for name in (*streams, "counts"):
        found = one.rows(name)
        assert texts(found) == texts(many.rows(name)), f"{name}: the order is that of the log"
        assert digests(one, name) == digests(many, name), name
        assert (found.num_rows == 0) == (name == "empty"), name
        if name not in ("counts", *SEES_BATCHES):
            same_rows(found, streams[name].toSpark().toArrow())
    assert len({shard for shard, _ in digests(one, "joined")}) > 1
    # What a function over batches is shown are the rows of one bucket and shard.
    most = max(row["of"] for row in one.rows("over_batches").to_pylist())
    assert 1 < most < 40
    assert not threads_of_ours()


def test_rows_that_are_ordered_by_a_column_keep_their_buckets(spark: SparkSession, tmp_path: Path) -> None:
    one, many = Flow(tmp_path / "one", shards=2), Flow(tmp_path / "many", shards=2)
    for flow in (one, many):
        source = flow.pipeline.source("sales", SALES, tuple_time="at")
        source.transform(joined).named("rows")
        source.transform(over_batches).named("batches")
    for first in (0, 30, 60):
        for flow in (one, many):
            flow.send("sales", [sales(first, 12, first), sales(first + 12, 8, first)])
        run(many, 5)
    run(one, 1_000_000)
    for name in ("rows", "batches"):
        assert texts(one.rows(name)) == texts(many.rows(name))
        assert digests(one, name) == digests(many, name)
    assert {row["of"] for row in one.rows("batches").to_pylist()} == {1}, "each row is in a bucket of its own"


def live_flow(folder: Path) -> Flow:
    """Return a pipeline in which a transform reads a stage, and stages and a sink read a transform."""
    from pyspark.sql import functions as F

    flow = Flow(folder, shards=2)
    source = flow.pipeline.source("sales", SALES)
    notes = source.transform(exploded).withColumn("n", F.col("n") + 1).where("note is not null").named("notes")
    totals = (
        notes.withWatermark("at", "1 second")
        .groupBy("item", F.window("at", "5 seconds"))
        .agg(F.count("*").alias("notes"), F.sum("n").alias("n"))
        .select("item", "window.end", "notes", "n")
        .named("totals")
    )
    named = totals.transform(joined, "inner").select("item", "name", "notes", "n", "end").named("named")
    named.to(hf.parquet(str(folder / "out")))
    return flow


def test_stages_sinks_and_consumers_follow_while_it_runs_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    flow = live_flow(tmp_path)
    flow.pipeline.create()
    with hf.Producer(flow.store, "sales") as producer, hf.Consumer(flow.store, "notes") as consumer:
        first = 0
        for life in range(2):
            handle = flow.pipeline.start()
            try:
                for number in range(3):
                    producer.send(sales(first, 40, seed=10 * life + number))
                    first += 40
                    table = consumer.poll(60.0)
                    assert table is not None and max(table["n"].to_pylist()) > first - 40, handle.exception()
            finally:
                handle.stop()
            assert handle.exception() is None
    flow.run()
    source = flow.pipeline.logged_input("sales")
    notes = exploded(source).withColumn("n", F.col("n") + 1).where("note is not null")
    same_rows(flow.rows("notes"), notes.toArrow())
    totals = notes.groupBy("item", F.window("at", "5 seconds")).agg(F.count("*").alias("notes"), F.sum("n").alias("n"))
    named = joined(totals.select("item", "window.end", "notes", "n"), "inner")
    expected = named.select("item", "name", "notes", "n", "end").toArrow()
    same_rows(flow.rows("named"), expected)
    same_rows(pq.read_table(tmp_path / "out").select(expected.column_names), expected)
    assert not threads_of_ours()


STOPPED = r"'broken'.*'parts'.*ZeroDivisionError.*test_transform.py:\d+\)"


def broken(rows: DataFrame) -> DataFrame:
    return rows.select("item", "n", hundredths("n"))


def hundredths(column: str) -> Any:
    from pyspark.sql import functions as F

    def divided(value: Any) -> Any:
        return 100 // (value - 7)

    return F.udf(divided, "int", useArrow=False)(column).alias("part")


def test_an_error_of_the_function_stops_with_its_line_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path, shards=2)
    flow.pipeline.source("sales", SALES).transform(broken).named("parts")
    flow.send("sales", [sales(20, 5, 1)])
    flow.run()
    before = digests(flow, "parts")
    flow.send("sales", [sales(0, 10, 2), sales(30, 10, 3)], bucket=50)
    for _ in range(2):
        with pytest.raises(UserFunctionFailed, match=STOPPED):
            flow.run()
    assert before and digests(flow, "parts") == before
    mended = hf.Pipeline("flow", store=flow.store, shards=2, bucket="100 milliseconds")

    def safe(rows: DataFrame) -> DataFrame:
        return broken(rows.where("n != 7"))

    safe.__qualname__ = "broken"
    mended.source("sales", SALES).transform(safe).named("parts")
    mended.run(available_now=True)
    assert sorted(flow.rows("parts")["n"].to_pylist()) == [*range(7), 8, 9, *range(20, 25), *range(30, 40)]
    assert not threads_of_ours()


def refused(rows: hf.Stream, F: Any, spark: SparkSession) -> dict[str, Callable[[], Any]]:
    from pyspark.sql import Window

    table = spark.range(3).selectExpr("cast(id as int) as n", "id as more")
    stream = spark.readStream.format("rate").load().selectExpr("cast(value as int) as n")
    made = rows.transform(exploded)
    return {
        "Aggregate.*groupBy on the stream behind": lambda: rows.transform(lambda f: f.groupBy("item").count()),
        "Deduplicate": lambda: rows.transform(lambda f: f.dropDuplicates(["item"])),
        r"Sort.*order_by=\[...\]": lambda: rows.transform(lambda f: f.orderBy("n")),
        "Limit.*filter by": lambda: rows.transform(lambda f: f.limit(3)),
        "Window.*F.window": lambda: rows.transform(
            lambda f: f.withColumn("r", F.row_number().over(Window.partitionBy("item").orderBy("n")))
        ),
        "Sample.*hash": lambda: rows.transform(lambda f: f.sample(0.5)),
        "FlatMapGroupsInPandas": lambda: rows.transform(
            lambda f: f.groupBy("item").applyInPandas(lambda frame: frame, "item string")
        ),
        "Repartition": lambda: rows.transform(lambda f: f.repartition(3)),
        r"rand\(.*xxhash64": lambda: rows.transform(lambda f: f.withColumn("r", F.rand())),
        r"(?i)monotonically_increasing_id\(\)": lambda: rows.transform(
            lambda f: f.withColumn("r", F.monotonically_increasing_id() + 1)
        ),
        r"(?i)spark_partition_id\(\)": lambda: rows.transform(lambda f: f.where(F.spark_partition_id() == 0)),
        r"current_timestamp\(\).*when the job runs": lambda: rows.transform(
            lambda f: f.withColumn("now", F.date_format(F.current_timestamp(), "HH"))
        ),
        r"current_date\(": lambda: rows.transform(lambda f: f.withColumn("today", F.current_date())),
        "uuid": lambda: rows.transform(lambda f: f.withColumn("id", F.expr("uuid()"))),
        "which of its own rows": lambda: rows.transform(lambda f: f.join(f.select("n"), "n")),
        "without a partner": lambda: rows.transform(lambda f: f.join(table, "n", "full")),
        "union.*order_by": lambda: rows.transform(lambda f: f.union(f)),
        "belong to no bucket": lambda: rows.transform(lambda f: f.select("n", F.lit(1).cast("bigint")).union(table)),
        "a streaming DataFrame": lambda: rows.transform(lambda f: f.join(stream, "n")),
        "runs a Spark job on its rows itself": lambda: rows.transform(lambda f: f.limit(f.count())),
        "gave a int": lambda: rows.transform(lambda f: 3),  # type: ignore[arg-type,return-value]
        "is none": lambda: rows.transform("exploded"),  # type: ignore[arg-type]
        "not made of the stream's rows": lambda: rows.transform(lambda f: table),
        "order_by has 'nothing'": lambda: rows.transform(exploded, order_by="nothing"),
        "groupBy behind transform": lambda: made.groupBy("item"),
        "withWatermark behind transform": lambda: made.withWatermark("at", "1 second"),
        "union behind transform": lambda: made.union(made),
        "and this is a union": lambda: rows.union(rows.where("n > 1")).transform(exploded),
        "and this is aggregated": lambda: rows.groupBy("item").count().transform(exploded),
        "is dropped or renamed": lambda: rows.transform(exploded, order_by="n").drop("n").named("x"),
        "another transform stands behind": lambda: (
            rows.transform(exploded, order_by="n").transform(lambda f: f.where("n > 1")).named("x")
        ),
        "UNRESOLVED_COLUMN": lambda: rows.transform(lambda f: f.select("no")),
    }


def test_what_depends_on_the_grouping_is_refused_at_the_users_line(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    rows = hf.Pipeline("wrong", store=str(tmp_path)).source("sales", SALES)
    for told, call in refused(rows, F, spark).items():
        with pytest.raises(Exception, match=told) as caught:
            call()
        assert "test_transform.py:" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])]), told


def test_rows_that_spark_was_told_to_keep_are_refused_when_the_pipeline_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(tmp_path, shards=2)
    kept: list[DataFrame] = []

    def cached(rows: DataFrame) -> DataFrame:
        kept.append(rows.where("n > 1").cache())
        return kept[-1].mapInPandas(ranked, "n int, place long, of long")

    flow.pipeline.source("sales", SALES).transform(cached).named("kept")
    flow.send("sales", [sales(0, 5, 1)])
    try:
        with pytest.raises(HoldfastError, match="cache"):
            flow.run()
    finally:
        for frame in kept:
            frame.unpersist()
