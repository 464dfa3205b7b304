"""The pipeline of the demo: the average price of each item in each ten seconds, from two shops.

    python -m holdfast.demo.retail FOLDER [--available-now | --create | --compare]

`north` is fed by a `Producer`, `south` by files that appear in a folder.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import holdfast as hf
from holdfast.demo.sales import NAME, SCHEMA_TEXT

if TYPE_CHECKING:
    from holdfast.pipeline.pipeline import Pipeline
    from holdfast.pipeline.stream import Stream


def retail(folder: str) -> tuple[Pipeline, Stream]:
    """Return the pipeline, and the stream of averages."""
    from pyspark.sql import functions as F

    hf.session(NAME, **{"spark.master": "local[2]"})
    pipeline = hf.Pipeline(NAME, store=f"{folder}/store", bucket="200 milliseconds")
    north = pipeline.source("north", SCHEMA_TEXT)
    south = pipeline.source("south", hf.files(f"{folder}/south", format="parquet", schema=SCHEMA_TEXT))
    averages = (
        north.unionByName(south)
        .withWatermark("sold_at", "2 seconds")
        .groupBy("item", F.window("sold_at", "10 seconds"))
        .agg(F.avg("price").alias("average"), F.count("*").alias("sales"))
        .named("averages")
        .protect(checkpoint=hf.snapshot(every="3 seconds"))
    )
    averages.to(hf.parquet(f"{folder}/averages"))
    return pipeline, averages


def main(arguments: list[str]) -> None:
    folder = arguments[0]
    pipeline, averages = retail(folder)
    if "--compare" in arguments:
        rows = averages.toSpark().toArrow().to_pylist()
        print(json.dumps(rows, default=str), flush=True)
        return
    if "--create" in arguments:
        pipeline.create()
        return
    pipeline.run(available_now="--available-now" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
