"""The pipeline of `test_kafka`: a Kafka topic comes in through Structured Streaming, `totals` comes out.

    python kafka_pipeline.py FOLDER KIND --broker ADDRESS [options]; --help lists them

KIND is `time` (windows of event time) or `running` (aggregates without end). While FOLDER/raise is there, the query's
Python functions raise.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from tests.components.jars import jars_of

import holdfast as hf
from holdfast.node.options import NodeOptions
from holdfast.spark import launch

TOPIC = "sales"
STEP_US = 200
"""Of event time, from one number to the next."""
TRIMS = NodeOptions(trim_every_us=200_000, retain_us=1, segment_life_us=500_000)
"""Trims and new segments all the time: what they race with is what is tested."""
SCHEMA = "number bigint, name string, at timestamp"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("kind", choices=["time", "running"])
    parser.add_argument("--broker", required=True)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--trims", action="store_true", help="trim the query's stream all the time")
    parser.add_argument("--plain", help="in the end, put what Spark alone makes of the logged rows into this file")
    return parser.parse_args()


def pipeline_of(arguments: argparse.Namespace) -> tuple[hf.Pipeline, hf.Stream]:
    spark = hf.session("kafka", **{"spark.master": "local[2]", "spark.jars": ",".join(map(str, jars_of("connector")))})
    pipeline = hf.Pipeline("chaos", store=f"{arguments.folder}/store", shards=4, bucket="100 milliseconds")
    read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", arguments.broker)
    # A broker that is away is noticed in seconds, so that queries die of it and not only wait.
    read = read.option("kafka.default.api.timeout.ms", "5000").option("kafka.request.timeout.ms", "4000")
    read = read.option("subscribe", TOPIC).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 20_000)
    number = F.col("value").cast("string").cast("bigint")
    frame = read.load().select(
        number.alias("number"),
        F.concat(F.lit("name "), F.pmod(number, F.lit(97))).alias("name"),
        F.timestamp_micros(F.lit(1_760_000_000_000_000) + number * STEP_US).alias("at"),
    )
    rows = pipeline.source("sales", frame.mapInArrow(raising_while(f"{arguments.folder}/raise"), SCHEMA))
    if arguments.kind == "time":
        # Partitions and retries of the producer bring rows out of order, but not by so much.
        windows = rows.withWatermark("at", "20 seconds").groupBy("name", F.window("at", "10 seconds", "5 seconds"))
    else:
        windows = rows.groupBy("name")
    totals = windows.agg(F.sum("number").alias("total"), F.count("*").alias("rows"), F.max("number").alias("last"))
    out = totals.named("totals").protect(checkpoint=hf.snapshot(every="1 second"))
    out.to(hf.parquet(f"{arguments.folder}/totals"))
    return pipeline, out


def raising_while(path: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that passes rows on, and raises while a file is there."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if os.path.exists(path):
                raise ValueError("told to raise")
            yield batch

    return check


def main() -> None:
    arguments = parsed()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    pipeline, out = pipeline_of(arguments)
    options = TRIMS if arguments.trims else NodeOptions()
    launch.run(launch.start(pipeline, available_now=arguments.available_now, options=options))
    if arguments.plain:
        pq.write_table(out.toSpark().toArrow(), arguments.plain)


if __name__ == "__main__":
    main()
