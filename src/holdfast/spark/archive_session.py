"""A short session that loads the classes a node needs, for the class archive (see `jvm`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def exercise() -> None:
    """Run what a node runs at its start: a session, an analysed query, jobs over a standing RDD with an accumulator."""
    from pyspark.sql import functions as F

    from holdfast.spark.session import session

    spark = session("holdfast-class-archive", **{"spark.master": "local[1]"})
    context = spark.sparkContext
    total = context.accumulator(0)

    def work(rows: Iterable[int]) -> Iterator[int]:
        total.add(len(list(rows)))
        return iter(())

    standing = context.parallelize([0], 1).mapPartitions(work)
    for number in range(3):
        context.setLocalProperty("holdfast.order", str(number))
        standing._jrdd.countAsync().get()
    frame = spark.createDataFrame([], "item string, price double, sold_at timestamp")
    grouped = frame.groupBy("item", F.window("sold_at", "10 seconds")).agg(F.avg("price").alias("average"))
    grouped._jdf.queryExecution().analyzed().aggregateExpressions().mkString()
    grouped._jdf.queryExecution().logical().toString()
    frame.unionByName(frame).select("item").where("item > 'a'").schema.json()
    spark.stop()
