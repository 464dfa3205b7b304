"""A file with a row that cannot be read

Nothing is skipped silently. Mend the file and start again, or let such rows go to `south.rejects` with
`on_error="reject"`.

    holdfast run program.py
"""

import pathlib

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")

pathlib.Path("in").mkdir()
pathlib.Path("in/monday.csv").write_text("item,price\napple,0.80\npear,cheap\n")

# The mistake:
south = pipeline.source("south", hf.files("in", format="csv", schema="item string, price double", header=True))
south.filter("price > 1").named("dear")
pipeline.run(available_now=True)
