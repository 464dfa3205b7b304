"""Two streams of one name

A name is the folder of a stream. Give the second one a name of its own.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 1").named("sales")
north.filter("price <= 1").named("sales")
