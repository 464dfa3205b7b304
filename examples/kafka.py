"""Sales from a Kafka topic: how many of each item, and for how much, in each ten seconds."""

import os

from pyspark.sql import functions as F

import holdfast as hf

spark = hf.session("sales", **{"spark.jars": os.environ["KAFKA_JARS"]})
pipeline = hf.Pipeline("sales", store="sales-store")

messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ.get("KAFKA", "localhost:9092"))
    .option("subscribe", "sales")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 1_000_000)
    .load()
)
SALE = "item string, price double, sold_at timestamp"
rows = messages.select(F.from_json(F.col("value").cast("string"), SALE).alias("sale")).select("sale.*")

sales = pipeline.source("sales", rows)
windows = sales.withWatermark("sold_at", "10 seconds").groupBy("item", F.window("sold_at", "10 seconds"))
totals = windows.agg(F.count("*").alias("sales"), F.sum("price").alias("total")).named("totals")
totals.to(hf.parquet("out/totals"))

if __name__ == "__main__":
    pipeline.run()
