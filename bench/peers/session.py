"""The Spark session of every peer: Structured Streaming as a careful user would set it up on this machine.

Invariants:
    * No setting here makes a peer slower than Spark's default would; each one that differs says why.
    * `settings_of` is part of every result, so that a reader can see what was measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CORES: Final = 2

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
IN_MEMORY: Final = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"

STATE_STORES: Final[Mapping[str, Mapping[str, str]]] = {
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Otherwise every put is preceded by a get, for a number in the progress report.
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    },
    "in_memory": {"spark.sql.streaming.stateStore.providerClass": IN_MEMORY},
}

STREAMING: Final[Mapping[str, str]] = {
    # One state partition for each core: more would only add tasks to every trigger.
    "spark.sql.shuffle.partitions": str(CORES),
    # A trigger without data would add its time and do nothing.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    # Larger Arrow batches: fewer calls into Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "200000",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "5s",
}

PROCESS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "6g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Cheaper for every Python task than a TCP connection.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
}


def settings_of(state_store: str) -> dict[str, str]:
    """Return the settings of a streaming query with that state store."""
    return {**STREAMING, **STATE_STORES[state_store]}


def start_session(name: str, work: Path, extra: Mapping[str, str] | None = None) -> SparkSession:
    """Start the only Spark session of this process, its files below `work`."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").appName(name)
    folders = {"spark.local.dir": str(work / "local"), "spark.sql.warehouse.dir": str(work / "warehouse")}
    for key, value in {**PROCESS, **folders, **(extra or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def sibling_session(spark: SparkSession, state_store: str) -> SparkSession:
    """Return a session on the same JVM whose SQL settings are its own."""
    sibling = spark.newSession()
    for key, value in settings_of(state_store).items():
        sibling.conf.set(key, value)
    return sibling


def stop(query: StreamingQuery) -> None:
    """Stop a query; one that does not end in time is left to the end of this process."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with contextlib.suppress(PySparkException, Py4JJavaError):
        query.stop()


def progress_of(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return (batch, input rows, time by phase in ms) of every finished trigger that had data."""
    finished = []
    for progress in query.recentProgress:
        duration_ms = dict(progress["durationMs"])
        if "addBatch" in duration_ms:
            finished.append(
                {
                    "batch": int(progress["batchId"]),
                    "rows": int(progress["numInputRows"]),
                    "duration_ms": {key: int(value) for key, value in duration_ms.items()},
                }
            )
    return finished
