"""holdfast's side of `bench.ingest`: a streaming DataFrame into the log, and a Kafka topic through a pipeline.

Invariants:
    * What is counted is durable: every batch is synced and in the journal when Spark calls it done.
    * Rows are sorted by shard on their way, as a stage with keys wants them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.peers.ingest import figures_of, files_of, topic_of
from bench.peers.session import CORES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import holdfast as hf


def session_of(jars: str) -> SparkSession:
    import holdfast as hf

    more = {"spark.jars": jars} if jars else {}
    settings = {"spark.sql.streaming.numRecentProgressUpdates": "100000", "spark.driver.memory": "6g", **more}
    return hf.session("ingest", **{"spark.master": f"local[{CORES}]", **settings})


def run_files(work: str, input_folder: str, files_per_trigger: int, limit_s: float) -> dict[str, Any]:
    """Log all files, after one run to warm up."""
    import holdfast as hf

    spark = session_of("")
    figures: dict[str, Any] = {}
    for name in ("warm-up", "files"):
        pipeline = hf.Pipeline(name, store=f"{work}/ours-{time.time_ns()}", shards=CORES)
        source = pipeline.source("tuples", files_of(spark, input_folder, files_per_trigger))
        source.groupBy("key", hf.count_window(10)).count().named("counts")
        figures = take(pipeline)
    return figures


def take(pipeline: hf.Pipeline) -> dict[str, Any]:
    """Run the pipeline's only query over what is there; the stage behind it does not run."""
    import msgspec

    from holdfast.clock import WallClock
    from holdfast.connect.catalog import locate
    from holdfast.node.slot import SlotSetup
    from holdfast.spark import launch
    from holdfast.spark.ingest import Ingest

    store, catalog, _ = launch.create(pipeline)
    setup = SlotSetup(catalog.pipeline_id, store.url, msgspec.json.encode(catalog.topology), "")
    (source,) = catalog.topology.sources
    located = locate(store.url, source.name)
    query = pipeline.queries[source.name]
    ingest = Ingest(query.frame, located, setup, launch.node_name("query"), False, WallClock())
    started_s = time.monotonic()
    try:
        ingest.take_what_is_there()
        wall_s = time.monotonic() - started_s
        assert ingest.query is not None
        return figures_of(ingest.query, wall_s)
    finally:
        ingest.close()


def run_kafka(work: str, address: str, topic: str, messages: int, per_trigger: int, jars: str) -> dict[str, Any]:
    """Bring a topic through a pipeline into Parquet files; the time is that from start to end."""
    import pyarrow.parquet as parquet

    import holdfast as hf

    spark = session_of(jars)
    folder = Path(work, f"ours-{time.time_ns()}")
    pipeline = hf.Pipeline("kafka", store=str(folder / "store"), shards=CORES)
    rows = topic_of(spark, address, topic, per_trigger).selectExpr("CAST(value AS STRING) AS value", "offset")
    passed = pipeline.source("messages", rows).select("value", "offset").named("passed")
    passed.to(hf.parquet(str(folder / "out")))
    started_s = time.monotonic()
    pipeline.run(available_now=True)
    wall_s = time.monotonic() - started_s
    found = sum(parquet.read_metadata(file).num_rows for file in (folder / "out").glob("*.parquet"))
    if found != messages:
        raise ValueError(f"{found} of {messages} messages came out")
    return {"messages_per_second": messages / wall_s, "seconds_wall": wall_s, "messages": messages}
