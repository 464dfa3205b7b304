"""holdfast's side of `bench.latency`: a `Producer`, a pipeline that passes rows on, a `Consumer`; three processes.

Invariants:
    * A tuple's result is seen when the consumer's own process holds its row, after the row is committed and durable.
    * Tuples sent before the pipeline was warm are not counted.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from bench import process
from bench.peers.latency import LAST_BATCH_LIMIT_S, Arrivals, percentiles_ms
from bench.peers.session import CORES
from bench.sender import SPARK_SCHEMA, now_us
from bench.supervisor import Supervisor, lines_of, mark

START_LIMIT_S: Final = 40.0
POLL_S: Final = 0.05


def serve(store: str, bucket: str, marks: str) -> None:
    """Be the pipeline's process, until killed."""
    import holdfast as hf

    hf.session("latency", **{"spark.master": f"local[{CORES}]"})
    pipeline = hf.Pipeline("latency", store=store, bucket=bucket)
    source = pipeline.source("tuples", SPARK_SCHEMA)
    source.where("value >= 0").select("key", "value", "sent_us").named("passed")
    running = pipeline.start()
    mark(Path(marks), "started")
    running.awaitTermination()


def run(
    work: str,
    bucket: str,
    tuples_per_second: int,
    batches_per_second: int,
    keys: int,
    seconds: float,
    warm_up_s: float,
) -> dict[str, Any]:
    """Send for `seconds` after a warm-up; return the latencies' percentiles, in ms."""
    folder = Path(work, f"latency-{time.time_ns()}")
    folder.mkdir(parents=True)
    store, marks = str(folder / "store"), folder / "marks"
    command = process.command_of(
        "bench.ours.latency:serve", {"store": store, "bucket": bucket, "marks": str(marks)}, folder / "ended"
    )
    supervisor = Supervisor(command, folder)
    supervisor.start()
    try:
        wait_until_marked(supervisor, marks)
        arrivals = Arrivals()
        threading.Thread(target=consume, args=(store, arrivals), daemon=True).start()
        counted_from_us = now_us() + int(warm_up_s * 1e6)
        options: dict[str, Any] = {
            "tuples_per_second": tuples_per_second,
            "batches_per_second": batches_per_second,
            "keys": keys,
        }
        options |= {"store": store, "stream": "tuples", "seconds": seconds + warm_up_s}
        sent = process.run("bench.sender:send_to_stream", options, seconds + warm_up_s + 20)
        arrivals.wait_until_tuples(sent.get("tuples_sent", 0), LAST_BATCH_LIMIT_S)
    finally:
        supervisor.stop()
    return percentiles_ms(*arrivals.since(counted_from_us)) | {"sender": sent, "bucket": bucket}


def consume(store: str, arrivals: Arrivals) -> None:
    """Note every row that comes out of the pipeline; its thread ends with the process."""
    import holdfast as hf

    for table in hf.Consumer(store, "passed", view="stable"):
        arrivals.add(table["sent_us"].to_numpy())


def wait_until_marked(supervisor: Supervisor, marks: Path) -> None:
    """Return when the pipeline has started."""
    limit_s = time.monotonic() + START_LIMIT_S
    while not lines_of(marks):
        supervisor.check_alive()
        if time.monotonic() > limit_s:
            raise TimeoutError(f"the pipeline did not start within {START_LIMIT_S:.0f} s; see {supervisor.log}")
        time.sleep(POLL_S)
