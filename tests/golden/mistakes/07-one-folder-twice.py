"""Two sinks in one folder

Two sinks would take each other's files for their own.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
dear = north.filter("price > 1").named("dear")
cheap = north.filter("price <= 1").named("cheap")
dear.to(hf.parquet("out"))
cheap.to(hf.parquet("out"))
