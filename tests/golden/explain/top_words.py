"""Two stages with other keys, late rows on the side."""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("top-words", store="/data/store", shards=4, bucket="50 milliseconds")
words = pipeline.source("words", "word string, at timestamp", late="side")
counts = (
    words.filter(F.length("word") > 2)
    .withColumn("word", F.lower("word"))
    .withWatermark("at", "2 seconds")
    .groupBy("word", F.window("at", "10 seconds"))
    .agg(F.count("*").alias("n"))
    .select("word", "window.end", "n")
    .named("counts")
)
tops = (
    counts.withWatermark("end", "0 seconds")
    .groupBy("n", F.window("end", "1 minute"))
    .agg(F.count("*").alias("words"), F.max("word").alias("one_of_them"))
    .named("tops")
)
counts.to(hf.parquet("/data/out/counts"))
tops.to(hf.parquet("/data/out/tops", every="10 seconds"))

pipeline.run()
