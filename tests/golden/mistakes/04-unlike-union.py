"""A union of streams with other columns

`union` goes by the place of the columns. Bring both sides to the same columns with `select`, or use
`unionByName(south, allowMissingColumns=True)`, which fills what is missing with nulls.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
south = pipeline.source("south", "item string, price double")
north.union(south).named("sales")
