"""The other side of `bench.transform`: the same function over Parquet files, as one batch job that writes Parquet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench.data import SPARK_SCHEMA
from bench.ours.transform import spread
from bench.peers.session import PROCESS


def run(folder: str, tuples: int, work: str, cores: int) -> dict[str, Any]:
    """Run the job twice; the second one is warm."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("transform")
    for key, value in (PROCESS | {"spark.local.dir": f"{work}/local"}).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    seconds = 0.0
    for number in range(2):
        begun = time.perf_counter()
        rows = spread(spark.read.schema(SPARK_SCHEMA).parquet(folder))
        rows.write.parquet(str(Path(work, f"batch-{cores}-{time.time_ns()}-{number}")))
        seconds = time.perf_counter() - begun
    return {"rows_per_second": tuples / seconds, "seconds": seconds}
