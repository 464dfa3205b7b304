"""A consumer that was away for too long

What a named consumer has not read is kept for a week from its last `commit`, or as long as its `lease=` says.

    python program.py
"""

from tests.spark.flow import HandClock

import holdfast as hf
from holdfast.connect.catalog import locate
from holdfast.log.stream_log import StreamLog
from holdfast.model import Trimmed

pipeline = hf.Pipeline("retail", store="retail-store", shards=2, bucket="1 second")
north = pipeline.source("north", "item string, price double")
north.filter("price > 0").named("sales")
pipeline.create()
with hf.Producer("retail-store", "north", clock=HandClock()) as producer:
    producer.send([{"item": "apple", "price": 0.8}])
pipeline.run(available_now=True)
with hf.Consumer("retail-store", "sales", name="report") as consumer:
    place = consumer.position
located = locate("retail-store", "sales")
with StreamLog.open(located.store, ["sales"], "weeks-later", shards=2, bucket_width_us=1_000_000) as log:
    log.commit([Trimmed("sales", 1_760_000_700)])

# The mistake:
with hf.Consumer("retail-store", "sales", name="report") as consumer:  # after two weeks of holidays
    for table in consumer:
        print(table)
