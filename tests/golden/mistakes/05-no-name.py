"""A sink on a stream without a name

Only a stream with a name is kept, so only that can be sent somewhere.

    holdfast run program.py
"""

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

# The mistake:
north.filter("price > 1").to(hf.parquet("out/dear"))
