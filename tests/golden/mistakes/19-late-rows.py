"""Results that lack rows: they came late

A row that comes when its window has closed is counted, and left out. A longer delay in `withWatermark` waits for it;
`late="side"` keeps it in `north.late`.

    holdfast status retail-store
"""

import datetime

from pyspark.sql import functions as F
from tests.spark.flow import HandClock

import holdfast as hf

pipeline = hf.Pipeline("retail", store="retail-store", shards=2)
north = pipeline.source("north", "item string, price double, sold_at timestamp")
noon, clock = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC), HandClock()


def send(minute: int) -> None:
    """Send a sale; each a second after the one before."""
    with hf.Producer("retail-store", "north", clock=clock) as producer:
        producer.send([{"item": "apple", "price": 0.8, "sold_at": noon + datetime.timedelta(minutes=minute)}])
    clock.at_us += 1_000_000


# The mistake:
windows = north.withWatermark("sold_at", "2 seconds").groupBy("item", F.window("sold_at", "10 seconds"))
windows.count().named("sales")
pipeline.create()
for minute in (0, 1, 2, 0):
    send(minute)  # a sale at that minute past noon; the last one comes two minutes late
pipeline.run(available_now=True)
