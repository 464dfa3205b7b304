"""A union of streams with other columns

`union` goes by the place of the columns, and so does its message. With `unionByName` and a `select` on each side before, it
is plain what goes where.

    holdfast run program.py
"""

from pyspark.sql import functions as F

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
south = pipeline.source("south", "item string, price double")
north.union(south).named("sales")
