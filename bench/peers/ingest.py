"""The peers of `bench.ingest`: the same streaming DataFrame into Parquet files, and Kafka to Kafka, by Spark alone.

Invariants:
    * Both sides have the same source, triggers and checkpoints on the same disk.
    * A rate counts the time inside triggers after the first, in which the JVM compiles.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data import SPARK_SCHEMA
from bench.peers.session import CORES, progress_of, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HISTORY = {"spark.sql.streaming.numRecentProgressUpdates": "100000", "spark.sql.shuffle.partitions": str(CORES)}


def files_of(spark: SparkSession, folder: str, per_trigger: int) -> DataFrame:
    return spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", per_trigger).parquet(folder)


def topic_of(spark: SparkSession, address: str, topic: str, per_trigger: int) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", topic)
    return reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_trigger).load()


def run_files(work: str, input_folder: str, files_per_trigger: int, limit_s: float) -> dict[str, Any]:
    """Write all files' rows as Parquet, after one run to warm up."""
    spark = start_session("ingest", Path(work), HISTORY)
    figures: dict[str, Any] = {}
    for _ in ("warm-up", "files"):
        folder = Path(work, f"peer-{time.time_ns()}")
        writer = files_of(spark, input_folder, files_per_trigger).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(folder / "spark_checkpoint"))
        started_s = time.monotonic()
        query = writer.trigger(availableNow=True).start(str(folder / "out"))
        if not query.awaitTermination(int(limit_s)):
            return {"failed": f"not done after {limit_s:.0f} s"}
        figures = figures_of(query, time.monotonic() - started_s)
    return figures


def run_kafka(work: str, address: str, topic: str, messages: int, per_trigger: int, jars: str) -> dict[str, Any]:
    """Copy a topic to another one; the time is that from start to end."""
    spark = start_session("ingest", Path(work), HISTORY | {"spark.jars": jars})
    writer = topic_of(spark, address, topic, per_trigger).select("value").writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", address).option("topic", f"{topic}-copy-{time.time_ns()}")
    writer = writer.option("checkpointLocation", str(Path(work, f"peer-{time.time_ns()}")))
    started_s = time.monotonic()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    wall_s = time.monotonic() - started_s
    found = sum(trigger["rows"] for trigger in progress_of(query))
    if found != messages:
        raise ValueError(f"{found} of {messages} messages were read")
    return {"messages_per_second": messages / wall_s, "seconds_wall": wall_s, "messages": messages}


def figures_of(query: StreamingQuery, wall_s: float) -> dict[str, Any]:
    """Return the rate of a query's triggers after the first."""
    triggers = progress_of(query)
    counted = triggers[1:] or triggers
    spent_s = sum(trigger["duration_ms"]["triggerExecution"] for trigger in counted) / 1000
    rows = sum(trigger["rows"] for trigger in counted)
    phases = sorted({phase for trigger in counted for phase in trigger["duration_ms"]})
    return {
        "rows_per_second": rows / spent_s,
        "rows_counted": rows,
        "seconds_wall": wall_s,
        "milliseconds_by_phase": {
            phase: sum(trigger["duration_ms"].get(phase, 0) for trigger in counted) for phase in phases
        },
    }
