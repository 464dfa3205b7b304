"""A Python function in a column

`mapInArrow` runs your function over whole batches; see [windows and aggregates](windows.md).

    holdfast run program.py
"""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
shout = F.udf(lambda text: text.upper() + "!")
north.withColumn("item", shout("item")).named("loud")
