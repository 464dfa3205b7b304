"""Event-time windows and late rows, against Structured Streaming itself: a bucket of ours is a batch of its own."""

from __future__ import annotations

import datetime as dt
import io
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import Flow, same_rows, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = dt.datetime(2025, 3, 30, tzinfo=dt.UTC)
SCHEMA = "key string, value int, at timestamp"
BATCHES = 6


def batches(seed: int) -> list[pa.Table]:
    """Return rows whose time goes on by about 8 seconds a batch, with rows far behind and rows without a time."""
    chooser = random.Random(seed)
    made = []
    for number in range(BATCHES):
        times: list[Any] = []
        for _ in range(25):
            behind = chooser.choice([0, 0, 0, 0, 5, 12, 30])
            second = number * 8 + chooser.uniform(0, 8) - behind
            times.append(None if chooser.random() < 0.05 else START + dt.timedelta(seconds=round(second, 3)))
        made.append(
            pa.table(
                {
                    "key": [chooser.choice("abc") for _ in times],
                    "value": pa.array([chooser.randrange(100) for _ in times], pa.int32()),
                    "at": pa.array(times, pa.timestamp("us", tz="UTC")),
                }
            )
        )
    return made


def streamed(spark: SparkSession, folder: Path, tables: list[pa.Table], query: Any) -> list[Any]:
    """Return what Structured Streaming gives in append mode when each table is there for itself.

    After a batch with rows it runs one without, which closes what the watermark has passed. Only when the next rows are
    there before that one do they come to windows that have ended; here such rows are always late.
    """
    (folder / "files").mkdir()
    name = f"streamed_{folder.name}"
    running = (
        query(spark.readStream.schema(SCHEMA).parquet(str(folder / "files")))
        .writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .option("checkpointLocation", str(folder / "spark_checkpoint"))
        .start()
    )
    for number, table in enumerate(tables):
        sink = io.BytesIO()
        pq.write_table(table, sink)
        write_atomically(folder / f"files/{number:03d}.parquet", sink.getvalue())
        running.processAllAvailable()
    running.stop()
    rows: list[Any] = spark.table(name).toArrow().to_pylist()
    return rows


@pytest.mark.parametrize(
    ("seed", "delay", "window"),
    [
        (1, "0 seconds", ("10 seconds",)),
        (3, "10 seconds", ("7 seconds", "3 seconds", "-2 seconds")),
    ],
)
def test_windows_close_and_rows_are_late_as_in_structured_streaming(
    spark: SparkSession, tmp_path: Path, seed: int, delay: str, window: tuple[str, ...]
) -> None:
    from pyspark.sql import functions as F

    def query(rows: Any) -> Any:
        grouped = rows.withWatermark("at", delay).groupBy("key", F.window("at", *window))
        return grouped.agg(F.sum("value").alias("total"), F.count("*").alias("rows"))

    tables = batches(seed)
    flow = Flow(tmp_path)
    query(flow.pipeline.source("rows", SCHEMA, late="side")).named("result")
    flow.send("rows", tables)
    flow.run()
    ours = Counter(map(repr, flow.rows("result").to_pylist()))
    theirs = Counter(map(repr, streamed(spark, tmp_path, tables, query)))
    assert theirs and not theirs - ours, "a window that Spark closed is missing, or has other rows"
    highest = max(time for table in tables for time in table["at"].to_pylist() if time is not None)
    # Spark leaves open what the watermark has not passed; here the end of the input closes it.
    watermark = highest - dt.timedelta(seconds=int(delay.split()[0]))
    extra = [row for row in flow.rows("result").to_pylist() if repr(row) not in theirs]
    assert extra and all(row["window"]["end"] > watermark for row in extra)
    assert flow.rows("rows.late").num_rows > 0


def test_late_rows_are_kept_whole_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", SCHEMA, late="side")
    renamed = rows.filter("value >= 0").select(F.col("at").alias("moment"), F.upper("key").alias("key"), "value")
    grouped = renamed.withWatermark("moment", "1 second").groupBy("key", F.window("moment", "10 seconds"))
    grouped.agg(F.sum("value").alias("total")).named("result")

    def row(key: str, value: int, second: int) -> dict[str, Any]:
        return {"key": key, "value": value, "at": START + dt.timedelta(seconds=second)}

    flow.send("rows", [[row("a", 1, 0)], [row("a", 2, 30)], [row("a", 4, 1), row("b", -1, 1), row("b", 8, 29)]])
    flow.run()
    assert flow.rows("rows.late").to_pylist() == [row("a", 4, 1)]
    totals = [(found["key"], found["total"]) for found in flow.rows("result").to_pylist()]
    assert totals == [("A", 1), ("B", 8), ("A", 2)]


def test_windows_over_a_time_without_zone(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    rows = flow.pipeline.source("rows", "key string, at timestamp_ntz")
    result = rows.withWatermark("at", "1 hour").groupBy(F.window("at", "1 day"), "key").count().named("result")
    times = [dt.datetime(2025, 3, 30, hour) for hour in range(24)] + [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)]
    flow.send("rows", [[{"key": f"k{n % 2}", "at": time} for n, time in enumerate(times)]])
    flow.run()
    same_rows(flow.rows("result"), result.toSpark().toArrow())


def test_the_slower_source_holds_windows_open(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    slow, fast = (flow.pipeline.source(name, SCHEMA).withWatermark("at", "0 seconds") for name in ("slow", "fast"))
    result = slow.union(fast).groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("rows")).named("result")

    def rows(*seconds: int) -> list[dict[str, Any]]:
        return [{"key": "k", "value": 1, "at": START + dt.timedelta(seconds=second)} for second in seconds]

    # What the fast source has in its second bucket is past the window of the slow one's third.
    flow.send("fast", [rows(1, 2), rows(100)])
    flow.send("slow", [rows(3), rows(4), rows(5), rows(200)])
    flow.run()
    same_rows(flow.rows("result"), result.toSpark().toArrow())
