"""A program that forgets to run

Declaring a pipeline starts nothing.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 1").named("dear").to(hf.console())
