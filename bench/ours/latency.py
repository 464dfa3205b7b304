"""holdfast's side of `bench.latency`: a `Producer`, a pipeline that passes rows on, a `Consumer`; three processes.

Invariants:
    * A tuple's result is seen when the consumer's own process holds its row, after the row is committed and durable.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

from bench import process
from bench.arrivals import Arrivals, count_while_sending
from bench.peers.session import CORES
from bench.sender import SPARK_SCHEMA
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


def run(work: str, bucket: str, rhythm: dict[str, int], seconds: float, warm_up_s: float) -> dict[str, Any]:
    """Return the percentiles of the latencies of `seconds`, in ms."""
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
        options = {**rhythm, "store": store, "stream": "tuples"}
        figures = count_while_sending(arrivals, "bench.sender:send_to_stream", options, folder, warm_up_s, seconds)
    finally:
        supervisor.stop()
    return figures | {"bucket": bucket}


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
