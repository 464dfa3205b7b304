"""A function that gives other columns than it said

The schema given to `mapInArrow` is a promise: names, types and their order.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")


# The mistake:
def in_cents(batches):
    for batch in batches:
        yield batch.select(["item"])


north.mapInArrow(in_cents, "item string, cents bigint").named("cents")
pipeline.create()
with hf.Producer("retail-store", "north") as producer:
    producer.send([{"item": "apple", "price": 0.8}, {"item": None, "price": 1.2}])
pipeline.run(available_now=True)
