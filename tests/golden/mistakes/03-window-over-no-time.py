"""A window over a column that is no time

Text is no time: declare the column as a timestamp, or cast it in a step before.

    holdfast run program.py
"""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.groupBy(F.window("item", "10 seconds")).count().named("sales")
