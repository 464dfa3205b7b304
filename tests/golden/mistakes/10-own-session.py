"""A Spark session of one's own

`hf.session` makes an ordinary session with what is needed; `hf.settings()` has the same for a builder of your own.

    holdfast run program.py
"""

# The mistake:
from pyspark.sql import SparkSession

import holdfast as hf

spark = SparkSession.builder.master("local[1]").getOrCreate()
pipeline = hf.Pipeline("retail", store="retail-store")
pipeline.source("north", "item string, price double").filter("price > 1").named("dear")
pipeline.run()
