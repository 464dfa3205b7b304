"""A column that is not there

Spark checks each step at the line where it is written, and says which columns there are.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.select("item", "prise").named("prices")
