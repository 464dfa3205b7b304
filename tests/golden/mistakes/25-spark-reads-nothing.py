"""A stream that Spark cannot find

The path is that of the store, with the stream behind it: `retail-store/averages`.

    holdfast run program.py
"""

import pathlib

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
north.filter("price > 1").named("dear")
pipeline.create()
store = pathlib.Path("retail-store").resolve()

# The mistake:
spark = hf.session("report")
spark.read.format("holdfast").load(f"{store}/averages").show()
