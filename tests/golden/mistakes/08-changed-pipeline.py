"""A pipeline that is changed on an old store

What is in the store was made by the old steps, and a replay would make something else of it.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
before = hf.Pipeline("retail", store="retail-store", shards=2)
before.source("north", "item string, price double, sold_at timestamp").filter("price > 1").named("dear")
before.create()
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 2").named("dear")  # it was 1 when the store was made
pipeline.run()
