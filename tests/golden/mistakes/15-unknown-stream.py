"""A consumer of a stream that is not there

Sources, named streams and what went to the side (`north.late`, `north.rejects`) can be read.

    python program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
north.filter("price > 1").named("dear")
pipeline.create()

# The mistake:
with hf.Consumer("retail-store", "daer", wait="1 second") as consumer:
    for table in consumer:
        print(table)
