"""Two sources in one stage, one sink."""

from pyspark.sql import functions as F

import holdfast as hf

SALE = "item string, price double, sold_at timestamp"

pipeline = hf.Pipeline("retail", store="/data/store", shards=2)
north = pipeline.source("north", SALE)
south = pipeline.source("south", hf.files("/data/in/south", format="csv", schema=SALE, header=True), on_error="reject")
averages = (
    north.unionByName(south)
    .withWatermark("sold_at", "2 seconds")
    .groupBy("item", F.window("sold_at", "10 seconds"))
    .agg(F.avg("price").alias("average"), F.count("*").alias("sales"))
    .named("averages")
)
averages.to(hf.parquet("/data/out/averages"))

if __name__ == "__main__":
    pipeline.run()
