"""A producer for a source that is not there

The pipeline's folder is made at its first start, or by `pipeline.create()`; from then on a producer finds it.

    python program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
north.filter("price > 1").named("dear")
pipeline.create()

# The mistake:
with hf.Producer("retail-store", "noth", wait="1 second") as producer:
    producer.send([{"item": "apple", "price": 0.8}])
