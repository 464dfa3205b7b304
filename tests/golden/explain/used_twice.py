"""A streaming DataFrame, a function of the user's, one stream that three stages read, every kind of checkpoint."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import functions as F

import holdfast as hf


def without_spaces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


spark = hf.session("used-twice")
pipeline = hf.Pipeline("used-twice", store="/data/store", shards=8)
ticks = pipeline.source("ticks", spark.readStream.format("rate").load(), tuple_time="timestamp")
clean = ticks.mapInArrow(without_spaces, "timestamp timestamp, value bigint").named("clean")
totals = clean.groupBy((F.col("value") % 10).alias("digit")).agg(F.sum("value").alias("total")).named("totals")
tens = clean.groupBy(hf.count_window(10, slide=5)).agg(F.max("value").alias("highest")).named("tens")
minutes = (
    ticks.withWatermark("timestamp", "0 seconds")
    .groupBy("value", F.window("timestamp", "1 minute", "30 seconds"))
    .count()
    .where("count > 1 AND value IS NOT NULL")
    .named("minutes")
)
totals.protect(checkpoint=None).to(hf.console(rows=5))
tens.protect(checkpoint=hf.snapshot(every="1 minute")).to(hf.parquet("/data/out/tens"))
minutes.to(hf.console())

handle = pipeline.start()
handle.awaitTermination()
