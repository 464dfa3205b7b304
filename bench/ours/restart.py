"""holdfast's side of `bench.restart`: count windows over 90,000 keys, with snapshots and state in memory.

Invariants:
    * A result is new when the last tuple of its window was logged after the kill: no result that had been committed
      before can be taken for one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from bench.peers.count_windows import WINDOW_SIZE
from bench.peers.session import CORES
from bench.sender import SPARK_SCHEMA, now_us
from bench.supervisor import mark

POLL_S: Final = 0.02


def serve(store: str, marks: str) -> None:
    """Be one life of the pipeline's process: go on from the store until killed."""
    mark(Path(marks), "process")
    from pyspark.sql import functions as F

    import holdfast as hf

    hf.session("restart", **{"spark.master": f"local[{CORES}]"})
    mark(Path(marks), "session")
    pipeline = hf.Pipeline("restart", store=store, bucket="50 milliseconds")
    tuples = pipeline.source("tuples", SPARK_SCHEMA)
    windows = tuples.groupBy("key", hf.count_window(WINDOW_SIZE))
    windows.agg(F.avg("value").alias("average")).named("averages")
    running = pipeline.start()
    mark(Path(marks), "query")
    running.awaitTermination()


class Results:
    """Follows the results in a thread of its own, and knows the newest tuple_time that closed a window, and when."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._seen: list[tuple[int, int]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self) -> None:
        """Begin, until `close`."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following: the store is about to go."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as compute

        import holdfast as hf

        consumer = hf.Consumer(self._store, "averages", view="stable")
        while not self._stopping.is_set():
            # A short wait each time: what is measured is not how a consumer is told of a new writer.
            table = consumer.poll(POLL_S)
            if table is None or not table.num_rows:
                continue
            seen_us = now_us()
            ends = compute.struct_field(table["window"], "end").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            with self._changed:
                self._seen.append((compute.max(ends).as_py(), seen_us))
                self._changed.notify_all()

    def wait_until_newer(self, logged_us: int, limit_s: float) -> int | None:
        """Return when the first result with a tuple logged after that was seen; None when the limit came first."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._newer(logged_us)), limit_s)
            return min(self._newer(logged_us), default=None)

    def _newer(self, logged_us: int) -> list[int]:
        return [seen_us for end_us, seen_us in self._seen if end_us > logged_us]
