"""Looking at a stream as at a DataFrame

A stream goes on for ever, so nothing can be collected of it. There are three ways to look at it.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 1").show()
