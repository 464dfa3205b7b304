"""A stream that Spark cannot find

The path is that of the store, with the stream behind it: `retail-store/averages`.

    holdfast run program.py
"""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
north.filter("price > 1").named("dear")
pipeline.create()

# The mistake:
spark = hf.session("report")
spark.read.format("holdfast").load("retail-store/averages").show()
