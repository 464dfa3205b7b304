"""A function that raises

The row is named, and nothing is lost: mend the function and start again. With `on_error="reject"` the row goes into
`north.rejects` and the rest goes on.

    holdfast run program.py
"""

import pyarrow as pa

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")


# The mistake:
def loud(batches):
    for batch in batches:
        items = [item.upper() for item in batch["item"].to_pylist()]
        yield batch.set_column(0, "item", pa.array(items))


north.mapInArrow(loud, "item string, price double, sold_at timestamp").named("loud")
pipeline.create()
with hf.Producer("retail-store", "north") as producer:
    producer.send([{"item": "apple", "price": 0.8}, {"item": None, "price": 1.2}])
pipeline.run(available_now=True)
