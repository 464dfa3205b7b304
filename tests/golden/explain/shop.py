"""Six stages: unions of stages and sources, lines that pass stages by."""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("shop", store="/data/store", shards=4)
ROW = "customer string, item string, amount decimal(10,2), at timestamp"
orders = pipeline.source("orders", ROW, late="side")
returns = pipeline.source("returns", hf.files("/data/in/returns", format="json", schema=ROW))
clicks = pipeline.source("clicks", "customer string, page string, at timestamp")

clean = orders.filter("amount > 0").named("clean")
bookings = clean.unionByName(returns.withColumn("amount", (-F.col("amount")).cast("decimal(10,2)"))).named("bookings")
hour = F.window("at", "1 hour")
by_item = bookings.withWatermark("at", "1 minute").groupBy("item", hour).agg(F.sum("amount").alias("amount"))
items = by_item.select("item", F.col("window.end").alias("at"), "amount").named("items")
by_customer = bookings.withWatermark("at", "1 minute").groupBy("customer", hour).agg(F.sum("amount").alias("amount"))
customers = by_customer.select("customer", F.col("window.end").alias("at"), "amount").named("customers")
visits = clicks.groupBy("customer").agg(F.count("page").alias("pages"), F.last("page").alias("last")).named("visits")
board = (
    items.select(F.col("item").alias("what"), "at", "amount")
    .union(customers.select("customer", "at", "amount"))
    .withWatermark("at", "0 seconds")
    .groupBy("what", F.window("at", "1 day"))
    .agg(F.sum("amount").alias("amount"))
    .named("board")
)
clean.to(hf.parquet("/data/out/clean"))
items.to(hf.parquet("/data/out/items"))
visits.to(hf.console())
board.to(hf.parquet("/data/out/board"))
board.to(hf.console())
