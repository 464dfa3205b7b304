"""The pipeline that the chaos tests disturb: `sent` is fed by a Producer, `dropped` by files, `totals` comes out.

    python pipeline_under_test.py FOLDER KIND [options]; --help lists them

KIND is the window: `count`, `time` or `running`; or `chain`, three stages of time windows, each by another key.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.finalizer import ThreadSafeFinalizer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.node.options import NodeOptions
from holdfast.spark import launch
from holdfast.spark.waves import Waves

SCHEMA = "key bigint, name string, value bigint, at timestamp"
POISON = 1_000_000
"""A value that the user's function does not expect."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("kind", choices=["count", "time", "running", "chain"])
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--function", choices=["none", "strict", "mended"], default="none", help="the user's function")
    parser.add_argument("--transform", choices=["none", "rows", "batches"], default="none", help="what jobs do")
    parser.add_argument("--on-error", default="stop")
    parser.add_argument("--deadline-s", type=float, default=120.0, help="how long a wave may take")
    parser.add_argument("--conf", action="append", default=["spark.master=local[2]"], help="a setting of the session")
    parser.add_argument("--own-job", action="store_true", help="a job of the user's own keeps every core busy")
    parser.add_argument("--measures", help="append what the process holds, once a second, to this file")
    return parser.parse_args()


def strict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The user's function as it was written first."""
    for batch in batches:
        if pc.any(pc.equal(batch.column("value"), POISON)).as_py():
            raise ValueError(f"what is {POISON}?")
        yield batch


def mended(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The user's function after the user has thought about it: such a value counts as nothing."""
    for batch in batches:
        position = batch.schema.get_field_index("value")
        values = batch.column(position)
        values = pc.if_else(pc.equal(values, POISON), pa.scalar(0, pa.int64()), values)
        yield batch.set_column(position, batch.schema.field(position), values)


def checked_by_rows(rows: DataFrame) -> DataFrame:
    """Give back what came, the long way round: every row twice, each with its partner of a table, and one kept."""
    table = rows.sparkSession.range(50).selectExpr("id as key", "id * 2 as twice")
    doubled = rows.withColumn("copy", F.explode(F.array(F.lit(0), F.lit(1)))).join(table, "key", "left")
    return doubled.where("copy = 1").select("key", "name", "value", "at")


def checked_by_batches(rows: DataFrame) -> DataFrame:
    """Give back what came, through a function over batches."""
    return rows.mapInArrow(mended, SCHEMA)


CHECKS = {"rows": checked_by_rows, "batches": checked_by_batches}


def pipeline_of(arguments: argparse.Namespace) -> hf.Pipeline:
    folder = arguments.folder
    pipeline = hf.Pipeline("chaos", store=f"{folder}/store", shards=4, bucket="100 milliseconds")
    sent = pipeline.source("sent", SCHEMA, on_error=arguments.on_error)
    files = hf.files(f"{folder}/dropped", format="parquet", schema=SCHEMA)
    dropped = pipeline.source("dropped", files, on_error=arguments.on_error)
    if arguments.transform != "none":
        sent = sent.transform(CHECKS[arguments.transform]).named("sent_checked")
        dropped = dropped.transform(CHECKS[arguments.transform]).named("dropped_checked")
    rows = sent.unionByName(dropped)
    if arguments.function != "none":
        # One name, whatever the code: a function that is mended belongs to the same pipeline.
        rows = rows.mapInArrow(named(mended if arguments.function == "mended" else strict), SCHEMA)
    if arguments.kind == "chain":
        chain(rows).to(hf.parquet(f"{folder}/totals"))
        return pipeline
    if arguments.kind == "count":
        grouped = rows.groupBy("key", hf.count_window(10))
    elif arguments.kind == "time":
        grouped = rows.withWatermark("at", "5 seconds").groupBy("name", F.window("at", "10 seconds", "5 seconds"))
    else:
        grouped = rows.groupBy("key")
    total = [F.sum("value").alias("total"), F.count("*").alias("rows"), F.max("name").alias("last_name")]
    totals = grouped.agg(*total).named("totals").protect(checkpoint=hf.snapshot(every="1 second"))
    totals.to(hf.parquet(f"{folder}/totals"))
    return pipeline


def chain(rows: hf.Stream) -> hf.Stream:
    """Return sums by key and name, of these by name, and of these over all names."""
    every = hf.snapshot(every="1 second")
    keys = (
        rows.withWatermark("at", "5 seconds")
        .groupBy("key", "name", F.window("at", "2 seconds"))
        .agg(F.sum("value").alias("total"), F.count("*").alias("rows"))
        .select("key", "name", "window.start", "total", "rows")
        .named("keys")
        .protect(checkpoint=every)
    )
    names = (
        keys.withWatermark("start", "0 seconds")
        .groupBy("name", F.window("start", "4 seconds"))
        .agg(F.sum("total").alias("total"), F.sum("rows").alias("rows"), F.count("*").alias("keys"))
        .select("name", "window.start", "total", "rows", "keys")
        .named("names")
        .protect(checkpoint=every)
    )
    return (
        names.withWatermark("start", "0 seconds")
        .groupBy(F.window("start", "8 seconds"))
        .agg(F.sum("total").alias("total"), F.sum("rows").alias("rows"), F.sum("keys").alias("keys"))
        .named("totals")
        .protect(checkpoint=every)
    )


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    function.__qualname__ = function.__name__ = "check"
    return function


class Measuring(hf.Listener):
    """Appends what this process holds to a file, about once a second while there is work."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waves = 0

    def onQueryProgress(self, event: Any) -> None:
        self._waves += event.progress["waves"]
        self._measure()

    def onQueryIdle(self, event: Any) -> None:
        self._measure()

    def _measure(self) -> None:
        gc.collect()
        measures = {
            "waves": self._waves,
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "java_objects": len(ThreadSafeFinalizer.finalizers),
            "under_way": sum(each.under_way for each in gc.get_objects() if isinstance(each, Waves)),
        }
        with open(self._path, "a") as file:
            file.write(json.dumps(measures) + "\n")


def keep_busy(spark: Any) -> None:
    """Run jobs that have more tasks than there are cores, one after the other."""
    while True:
        spark.sparkContext.parallelize(range(12), 12).map(busy).sum()


def busy(number: int) -> int:
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        number += 1
    return number


def main() -> None:
    arguments = parsed()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    spark = hf.session("chaos", **dict(each.split("=", 1) for each in arguments.conf))
    options = NodeOptions(wave_deadline_us=int(arguments.deadline_s * 1e6))
    pipeline = pipeline_of(arguments)
    if arguments.measures:
        pipeline.addListener(Measuring(arguments.measures))
    handle = launch.start(pipeline, available_now=arguments.available_now, options=options)
    if arguments.own_job:
        threading.Thread(target=keep_busy, args=(spark,), daemon=True).start()
    launch.run(handle)


if __name__ == "__main__":
    main()
