"""Rows that do not fit the source

A value is only changed where nothing of it can be lost. Nothing of this `send` was taken.

    python program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
north.filter("price > 1").named("dear")
pipeline.create()

# The mistake:
with hf.Producer("retail-store", "north") as producer:
    producer.send([{"item": "apple", "price": "80 cents"}])
