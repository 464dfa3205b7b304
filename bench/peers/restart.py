"""The peer of `bench.restart`: count windows over 90,000 keys in Structured Streaming, with RocksDB checkpoints.

Invariants:
    * The query is `count_windows.by_key_group`, the fastest form there is; its state is 64 values.
    * A result counts as seen when `foreachBatch` holds it in Python; each time is a line of a file, with the writer's
      process, so that a supervisor can tell the first result of a new life.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.peers.count_windows import by_key_group
from bench.peers.gateway import Gateway, jvm_command
from bench.peers.session import sibling_session, start_session
from bench.sender import SPARK_SCHEMA
from bench.supervisor import mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

MEMORY: Final = "2g"
TRAINING_LIMIT_S: Final = 60.0


def serve(work: str, source: str, results: str, marks: str, archive: str | None = None) -> None:
    """Be one life of the peer's process: go on from the checkpoint until killed."""
    mark(Path(marks), "process")
    if archive is not None:
        Gateway(_command(Path(archive)), [f"-XX:SharedArchiveFile={archive}"]).start()
        mark(Path(marks), "jvm")
    query = _start(Path(work), Path(source), Path(results), Path(marks))
    mark(Path(marks), "query")
    query.awaitTermination()


def make_archive(work: str, source: str, archive: str) -> dict[str, Any]:
    """Run the query over what is in `source` once, and keep the classes that it loaded."""
    started_s = time.monotonic()
    command = jvm_command(MEMORY)
    _command_file(Path(archive)).write_text(json.dumps(command))
    gateway = Gateway(command, [f"-XX:ArchiveClassesAtExit={archive}"])
    gateway.start()
    query = _start(Path(work, "training"), Path(source), Path(work, "training-results"))
    query.processAllAvailable()
    query.stop()
    gateway.stop()
    return {"size_bytes": Path(archive).stat().st_size, "seconds": time.monotonic() - started_s}


def _command_file(archive: Path) -> Path:
    return archive.with_suffix(".command.json")


def _command(archive: Path) -> list[str]:
    command: list[str] = json.loads(_command_file(archive).read_text())
    return command


def _start(work: Path, source: Path, results: Path, marks: Path | None = None) -> StreamingQuery:
    spark = start_session("restart", work, {"spark.driver.memory": MEMORY})
    if marks is not None:
        mark(marks, "session")
    session = sibling_session(spark, "rocksdb")
    tuples = session.readStream.schema(SPARK_SCHEMA).parquet(str(source))
    noted = results.open("a", buffering=1)

    def note(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow().num_rows
        if rows:
            noted.write(json.dumps({"seen_us": time.time_ns() // 1000, "process": os.getpid(), "rows": rows}) + "\n")

    writer = by_key_group(tuples.select("key", "value")).writeStream.foreachBatch(note)
    return writer.option("checkpointLocation", str(work / "spark_checkpoint")).outputMode("append").start()
