"""The peers of `bench.wave`: the cheapest trigger of Structured Streaming with two Python tasks, and a stateful one.

Invariants:
    * Each trigger runs as soon as the one before has ended; its time is the one that Spark reports for it.
    * Checkpoints are Spark's own, on the local disk, with its default manager.

Where there are several ways to write the same trigger, each is measured and the fastest is the peer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.peers.session import progress_of, settings_of, sibling_session, start_session, stop

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.state import GroupState

ROWS_PER_TRIGGER: Final = 20
WARM_UP_TRIGGERS: Final = 8
POLL_S: Final = 1


def run_all(peers: list[dict[str, Any]], work: str) -> dict[str, Any]:
    """Measure each `{"name", "query", "state_store", "seconds"}` in turn; return figures by name."""
    spark = start_session("peers", Path(work))
    return {peer["name"]: run(spark, Path(work), **peer) for peer in peers}


def run(spark: SparkSession, work: Path, name: str, query: str, state_store: str, seconds: int) -> dict[str, Any]:
    """Let one query trigger as fast as it can for `seconds` after its warm-up; return its triggers' times."""
    session = sibling_session(spark, state_store)
    rows = session.readStream.format("rate-micro-batch").option("numPartitions", 2)
    writer = QUERIES[query](rows.option("rowsPerBatch", ROWS_PER_TRIGGER).load())
    checkpoint = str(work / f"{name}-{time.time_ns()}" / "spark_checkpoint")
    running = writer.option("checkpointLocation", checkpoint).start()
    try:
        while len(progress_of(running)) < WARM_UP_TRIGGERS and not running.awaitTermination(POLL_S):
            pass
        running.awaitTermination(seconds)
        triggers = progress_of(running)[WARM_UP_TRIGGERS:]
    finally:
        stop(running)
    return {
        "query": query,
        "settings": settings_of(state_store),
        "trigger_ms": [trigger["duration_ms"]["triggerExecution"] for trigger in triggers],
        "phases_ms": {
            phase: [trigger["duration_ms"].get(phase, 0) for trigger in triggers]
            for phase in ("addBatch", "walCommit", "commitOffsets", "queryPlanning")
        },
    }


def _two_arrow_tasks(rows: DataFrame) -> DataStreamWriter:
    """A Python task for each partition, by the cheapest way to one from a DataFrame."""

    def process(batch: DataFrame, number: int) -> None:
        batch.mapInArrow(_nothing, "value bigint").write.format("noop").mode("overwrite").save()

    return rows.writeStream.foreachBatch(process)


def _two_row_tasks(rows: DataFrame) -> DataStreamWriter:
    """A Python task for each partition, as most users write it."""

    def process(batch: DataFrame, number: int) -> None:
        batch.foreachPartition(_nothing_with_rows)

    return rows.writeStream.foreachBatch(process)


def _stateful_pandas(rows: DataFrame) -> DataStreamWriter:
    """Two keys whose state is a number that nobody changes."""
    from pyspark.sql import functions as F

    keyed = rows.select((F.col("value") % 2).alias("key")).groupBy("key")
    results = keyed.applyInPandasWithState(_nothing_with_state, "key bigint", "number bigint", "append", "NoTimeout")
    return results.writeStream.format("noop").outputMode("append")


def _stateful_rows(rows: DataFrame) -> DataStreamWriter:
    """The same through `transformWithState`."""
    from pyspark.sql import Row
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
    from pyspark.sql.types import LongType, StructField, StructType

    class Nothing(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.number = handle.getValueState("number", StructType([StructField("number", LongType())]))

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            for _ in rows:
                pass
            self.number.update((1,))
            yield from ()

        def close(self) -> None:
            pass

    keyed = rows.select((F.col("value") % 2).alias("key")).groupBy("key")
    results = keyed.transformWithState(Nothing(), "key bigint", "Append", "None")
    return results.writeStream.format("noop").outputMode("append")


def _nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def _nothing_with_rows(rows: Any) -> None:
    for _ in rows:
        pass


def _nothing_with_state(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    for _ in frames:
        pass
    state.update((1,))
    yield from ()


QUERIES = {
    "two_arrow_tasks": _two_arrow_tasks,
    "two_row_tasks": _two_row_tasks,
    "stateful_pandas": _stateful_pandas,
    "stateful_rows": _stateful_rows,
}
STATELESS: Final = ("two_arrow_tasks", "two_row_tasks")
STATEFUL: Final = ("stateful_pandas", "stateful_rows")
