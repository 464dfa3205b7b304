"""The peer of `bench.latency`: files dropped into a folder, read by Structured Streaming as fast as it triggers.

Invariants:
    * A tuple's result is seen when `foreachBatch` holds its row in Python; the batch's own commit comes after that and
      is not counted, nor is any way from there to another process.

The file source is the only durable source that Spark has without another system beside it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arrivals import Arrivals, count_while_sending
from bench.peers.session import progress_of, settings_of, sibling_session, start_session, stop
from bench.sender import SPARK_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run(work: str, rhythm: dict[str, int], seconds: float, warm_up_s: float, file_format: str) -> dict[str, Any]:
    """Return the percentiles of the latencies of `seconds`, in ms, and the triggers' times."""
    folder = Path(work, f"latency-{time.time_ns()}")
    source = folder / "source"
    source.mkdir(parents=True)
    arrivals = Arrivals()

    def take(batch: DataFrame, number: int) -> None:
        arrivals.add(batch.toArrow()["sent_us"].to_numpy())

    session = sibling_session(start_session("latency", Path(work)), "in_memory")
    rows = session.readStream.schema(SPARK_SCHEMA).format(file_format).load(str(source))
    writer = rows.where("value >= 0").select("key", "value", "sent_us").writeStream.foreachBatch(take)
    running = writer.option("checkpointLocation", str(folder / "spark_checkpoint")).start()
    options = {**rhythm, "folder": str(source), "file_format": file_format}
    figures = count_while_sending(arrivals, "bench.sender:send_to_folder", options, folder, warm_up_s, seconds)
    triggers = progress_of(running)
    stop(running)
    figures["trigger_ms"] = [trigger["duration_ms"]["triggerExecution"] for trigger in triggers]
    figures["settings"] = settings_of("in_memory") | {"format": file_format}
    return figures
