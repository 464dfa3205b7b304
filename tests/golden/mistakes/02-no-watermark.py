"""A window without a watermark

Nobody could say when a window is over. `withWatermark` says how much later a row may come than the newest one seen.

    holdfast run program.py
"""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.groupBy("item", F.window("sold_at", "10 seconds")).count().named("sales")
