"""One pipeline, started twice

A stream has one writer. If the other one was meant to be dead: it is not.

    holdfast run program.py
"""

import holdfast as hf

running = hf.Pipeline("retail", store="retail-store", shards=2)
running.source("north", "item string, price double, sold_at timestamp").filter("price > 1").named("dear")
running.start()
pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 1").named("dear")
pipeline.run()  # it runs already, in another terminal
