"""The peer of `bench.executor_loss`: the same running aggregate in Structured Streaming, with RocksDB."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers.session import settings_of
from bench.sender import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 3


def serve(work: str, source: str, results: str, settings: dict[str, str]) -> None:
    """Run until ended; every trigger that is done is a line in `results`."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    builder = SparkSession.builder.appName("executor-loss")
    chosen = settings_of("rocksdb") | {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.executor.memory": "800m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # As ours has them: a lost executor is noticed as soon.
        "spark.executor.heartbeatInterval": "500ms",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "3000",
        "spark.network.timeoutInterval": "500ms",
        "spark.executor.removeDelayOnDisconnection": "100ms",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
    }
    for name, value in (chosen | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tuples = spark.readStream.schema(SPARK_SCHEMA).parquet(source)
    totals = tuples.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"), F.max("sent_us"))

    def done(rows: DataFrame, batch: int) -> None:
        count = rows.count()
        with Path(results).open("a") as file:
            file.write(json.dumps({"batch": batch, "rows": count, "at_s": time.time()}) + "\n")

    query = totals.writeStream.outputMode("update").foreachBatch(done)
    query.option("checkpointLocation", f"{work}/checkpoint").start().awaitTermination()
