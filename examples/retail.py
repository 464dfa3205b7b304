"""The average price of each item in each ten seconds, from two shops: one sends rows, one drops Parquet files."""

from pyspark.sql import functions as F

import holdfast as hf

SALE = "item string, price double, sold_at timestamp"

spark = hf.session("retail")
pipeline = hf.Pipeline("retail", store="retail-store", bucket="200 milliseconds")
north = pipeline.source("north", SALE)
south = pipeline.source("south", hf.files("in/south", format="parquet", schema=SALE))
averages = (
    north.unionByName(south)
    .withWatermark("sold_at", "2 seconds")
    .groupBy("item", F.window("sold_at", "10 seconds"))
    .agg(F.avg("price").alias("average"), F.count("*").alias("sales"))
    .named("averages")
    .protect(checkpoint=hf.snapshot(every="10 seconds"))
)
averages.to(hf.parquet("out/averages"))

if __name__ == "__main__":
    pipeline.run()
