"""The peer of `bench.latency`: files dropped into a folder, read by Structured Streaming as fast as it triggers.

Invariants:
    * A tuple's result is seen when `foreachBatch` holds its row in Python; the batch's own commit comes after that and
      is not counted, nor is any way from there to another process.
    * Tuples sent before the query was warm are not counted.

The file source is the only durable source that Spark has without another system beside it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bench import process
from bench.peers.session import progress_of, settings_of, sibling_session, start_session, stop
from bench.sender import SPARK_SCHEMA, now_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LAST_BATCH_LIMIT_S: Final = 5.0


def run(
    work: str,
    tuples_per_second: int,
    batches_per_second: int,
    keys: int,
    seconds: float,
    warm_up_s: float,
    file_format: str,
) -> dict[str, Any]:
    """Send for `seconds` after a warm-up; return the latencies' percentiles, in ms, and the triggers' times."""
    folder = Path(work, f"latency-{time.time_ns()}")
    source = folder / "source"
    source.mkdir(parents=True)
    arrivals = Arrivals()
    session = sibling_session(start_session("latency", Path(work)), "in_memory")
    rows = session.readStream.schema(SPARK_SCHEMA).format(file_format).load(str(source))
    writer = rows.where("value >= 0").select("key", "value", "sent_us").writeStream.foreachBatch(arrivals.take)
    running = writer.option("checkpointLocation", str(folder / "spark_checkpoint")).start()
    counted_from_us = now_us() + int(warm_up_s * 1e6)
    options: dict[str, Any] = {
        "tuples_per_second": tuples_per_second,
        "batches_per_second": batches_per_second,
        "keys": keys,
    }
    options |= {"folder": str(source), "file_format": file_format, "seconds": seconds + warm_up_s}
    sent = process.run("bench.sender:send_to_folder", options, seconds + warm_up_s + 20)
    arrivals.wait_until_tuples(sent.get("tuples_sent", 0), LAST_BATCH_LIMIT_S)
    triggers = progress_of(running)
    stop(running)
    figures = percentiles_ms(*arrivals.since(counted_from_us))
    figures["trigger_ms"] = [trigger["duration_ms"]["triggerExecution"] for trigger in triggers]
    figures["sender"] = sent
    figures["settings"] = settings_of("in_memory") | {"format": file_format}
    return figures


class Arrivals:
    """When each tuple was sent, and when its result was seen."""

    def __init__(self) -> None:
        self._sent_us: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._seen_us: list[int] = []
        self._tuples = 0
        self._changed = threading.Condition()

    def take(self, batch: DataFrame, number: int) -> None:
        """Be the function of `foreachBatch`."""
        self.add(batch.toArrow()["sent_us"].to_numpy())

    def add(self, sent_us: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Note that the results of tuples sent at these times have just been seen."""
        with self._changed:
            self._seen_us.append(now_us())
            self._sent_us.append(sent_us)
            self._tuples += len(sent_us)
            self._changed.notify_all()

    def wait_until_tuples(self, tuples: int, limit_s: float) -> bool:
        """Return when so many tuples have been seen; False when the limit came first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._tuples >= tuples, limit_s)

    def since(self, sent_from_us: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
        """Return the latencies, in microseconds, of tuples sent from then on, and how many tuples were seen in all."""
        with self._changed:
            late = [seen - sent[sent >= sent_from_us] for sent, seen in zip(self._sent_us, self._seen_us, strict=True)]
            return np.concatenate(late or [np.empty(0, np.int64)]), self._tuples


def percentiles_ms(latency_us: np.ndarray[Any, np.dtype[np.int64]], tuples_seen: int) -> dict[str, Any]:
    """Return p50, p90, p99 and the highest, in ms."""
    figures: dict[str, Any] = {"tuples_counted": len(latency_us), "tuples_seen": tuples_seen}
    if len(latency_us):
        p50, p90, p99 = np.percentile(latency_us, [50, 90, 99]) / 1000
        figures |= {"p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "highest_ms": float(latency_us.max()) / 1000}
    return figures
