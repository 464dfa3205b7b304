"""The pipeline that the chaos tests kill: count windows, event-time windows or a running sum, from two inputs.

    python pipeline_under_test.py FOLDER KIND [--available-now]

`sent` is fed by a Producer, `dropped` by files.
"""

from __future__ import annotations

import logging
import sys

from pyspark.sql import functions as F

import holdfast as hf

SCHEMA = "key bigint, name string, value bigint, at timestamp"


def main(folder: str, kind: str, available_now: bool) -> None:
    logging.basicConfig(level=logging.WARNING)
    hf.session("chaos", **{"spark.master": "local[2]"})
    pipeline = hf.Pipeline("chaos", store=f"{folder}/store", shards=4, bucket="100 milliseconds")
    sent = pipeline.source("sent", SCHEMA)
    dropped = pipeline.source("dropped", hf.files(f"{folder}/dropped", format="parquet", schema=SCHEMA))
    union = sent.unionByName(dropped)
    total = [F.sum("value").alias("total"), F.count("*").alias("rows"), F.max("name").alias("last_name")]
    if kind == "count":
        grouped = union.groupBy("key", hf.count_window(10))
    elif kind == "time":
        grouped = union.withWatermark("at", "5 seconds").groupBy("name", F.window("at", "10 seconds", "5 seconds"))
    else:
        grouped = union.groupBy("key")
    totals = grouped.agg(*total).named("totals").protect(checkpoint=hf.snapshot(every="1 second"))
    totals.to(hf.parquet(f"{folder}/totals"))
    pipeline.run(available_now=available_now)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--available-now" in sys.argv)
