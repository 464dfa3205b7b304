"""holdfast's side of `bench.executor_loss`: a running aggregate on a cluster, with snapshots."""

from __future__ import annotations

from bench.sender import SPARK_SCHEMA


def serve(store: str, master: str) -> None:
    """Run until ended."""
    from pyspark.sql import functions as F

    import holdfast as hf

    hf.session("executor-loss", **{"spark.master": master, "spark.executor.memory": "800m"})
    pipeline = hf.Pipeline("loss", store=store, bucket="100 milliseconds", shards=12)
    tuples = pipeline.source("tuples", SPARK_SCHEMA)
    totals = tuples.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max("sent_us"))
    totals.named("totals").protect(checkpoint=hf.snapshot(every="5 seconds"))
    pipeline.run()
