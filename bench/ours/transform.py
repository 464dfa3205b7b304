"""holdfast's side of `bench.transform`: the jobs over rows that are in the log, and what waits beside them.

Invariants:
    * A job's time is the node's own: from the order to all receipts of its tasks, as in `durationMs`.
    * What a result waits for is measured by a reader of it, from the send on.
    * Throughput is that of jobs alone, over a backlog, without reading the source.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as parquet

from bench.data import SPARK_SCHEMA
from bench.peers.session import CORES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    import holdfast as hf

BATCH_ROWS: Final = 100_000
LIVE_ROWS: Final = 100
LIVE_EVERY_S: Final = 0.1
WARM_UP_REPORTS: Final = 2
LIMIT_S: Final = 60.0


def spread(rows: DataFrame) -> DataFrame:
    """Return what both sides compute: each row by itself, some of them twice, some not at all."""
    from pyspark.sql import functions as F

    kept = rows.where("key % 10 != 0").withColumn("root", F.sqrt("value"))
    named = kept.withColumn("name", F.concat(F.lit("key "), F.col("key")))
    return named.withColumn(
        "part", F.explode(F.when(F.col("key") % 4 == 0, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0))))
    )


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give back what came: the cost is that of a job for each bucket."""
    return batches


def over_batches(rows: DataFrame) -> DataFrame:
    return rows.mapInArrow(same, SPARK_SCHEMA)


def run(folder: str, tuples: int, work: str, seconds: float) -> dict[str, Any]:
    """Measure a backlog, then small jobs of both kinds, then what waits beside jobs."""
    import holdfast as hf

    hf.session("transform", **{"spark.master": f"local[{CORES}]"})
    store = str(Path(work, f"ours-{time.time_ns()}"))

    def pipeline(name: str) -> hf.Pipeline:
        return hf.Pipeline(name, store, shards=CORES, bucket="50 milliseconds")

    return {
        "rows_per_second": backlog(pipeline("backlog"), folder, tuples),
        "job_ms": job_ms(pipeline("live"), spread, seconds),
        "job_over_batches_ms": job_ms(pipeline("batches"), over_batches, seconds),
        "result_ms": result_ms(pipeline("alone"), False, seconds),
        "result_beside_jobs_ms": result_ms(pipeline("beside"), True, seconds),
    }


def backlog(pipeline: hf.Pipeline, folder: str, tuples: int) -> float:
    """Return how many rows a second the jobs take of what is in the log."""
    import holdfast as hf

    pipeline.source("tuples", SPARK_SCHEMA).transform(spread).named("spread")
    pipeline.create()
    with hf.Producer(pipeline.store, "backlog/tuples") as producer:
        for file in sorted(Path(folder).glob("*.parquet")):
            for batch in parquet.ParquetFile(file).iter_batches(BATCH_ROWS):
                producer.send(pa.Table.from_batches([batch]))
    reports: list[dict[str, Any]] = []
    handle = pipeline.start(available_now=True)
    handle.onProgress(reports.append)
    handle.awaitTermination()
    rows = sum(report["numInputRows"] for report in reports)
    assert rows == tuples, f"{rows} of {tuples} rows were seen"
    # The first jobs start processes and find out how many rows a job may have.
    warm = [report for report in reports if report["durationMs"].get("total")][WARM_UP_REPORTS:]
    rows = sum(report["numInputRows"] for report in warm)
    return 1000 * rows / sum(report["durationMs"]["total"] for report in warm)


def job_ms(pipeline: hf.Pipeline, function: Any, seconds: float) -> float:
    """Return the mean time of an order over a trickle of rows, once the first ones are done."""
    import holdfast as hf

    pipeline.source("tuples", SPARK_SCHEMA).transform(function).named("made")
    pipeline.create()
    reports: list[dict[str, Any]] = []
    handle = pipeline.start()
    handle.onProgress(reports.append)
    with hf.Producer(pipeline.store, f"{pipeline.name}/tuples") as producer:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            producer.send(few_rows())
            time.sleep(LIVE_EVERY_S)
    handle.stop()
    warm = reports[WARM_UP_REPORTS:-1]
    return sum(report["durationMs"].get("total", 0.0) for report in warm) / sum(report["waves"] for report in warm)


def result_ms(pipeline: hf.Pipeline, with_jobs: bool, seconds: float) -> float:
    """Return the median time from a send to the result of an ordinary stage, alone or beside a transform."""
    from pyspark.sql import functions as F

    import holdfast as hf

    source = pipeline.source("tuples", SPARK_SCHEMA)
    source.groupBy("key").agg(F.count("*").alias("n")).named("counts")
    if with_jobs:
        source.transform(spread).named("made")
    pipeline.create()
    times_ms: list[float] = []
    handle = pipeline.start()
    with (
        hf.Producer(pipeline.store, f"{pipeline.name}/tuples") as producer,
        hf.Consumer(pipeline.store, f"{pipeline.name}/counts") as consumer,
    ):
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            begun = time.perf_counter()
            producer.send(few_rows())
            assert consumer.poll(LIMIT_S) is not None, "no result"
            times_ms.append((time.perf_counter() - begun) * 1000)
    handle.stop()
    return statistics.median(times_ms[len(times_ms) // 4 :])


def few_rows() -> pa.Table:
    """Return the rows of one send; all of their keys are in one bucket, so a result is one table."""
    return pa.table({"key": pa.array(range(LIVE_ROWS)), "value": pa.array([1.0] * LIVE_ROWS)})
