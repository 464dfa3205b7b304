"""holdfast's side of `bench.topology --debs`: the fifteen operators of `examples/hashtags.py` at a steady rate.

Invariants:
    * A result's latency begins with the newest tweet, or end of a window, that is in it, and ends when a `Consumer` of
      another process holds its row: committed and durable.
    * What is outside of operators is all of the slots' time but for bringing rows together and folding them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench import process
from bench.arrivals import Arrivals, count_all_while_sending
from bench.ours.latency import wait_until_marked
from bench.peers.session import CORES
from bench.sender import Rhythm, now_us, send_at
from bench.supervisor import Supervisor, lines_of, mark
from bench.words import SCHEMA as WORDS_SCHEMA

OPERATORS: Final = (
    *("tags", "counts_5s", "counts_10s", "counts_4s", "counts_20s"),
    *("volume", "agreed", "spread", "busiest", "rising"),
    *("peaks", "agreed_spread", "top", "race", "rising_spread"),
)
OF_OPERATORS: Final = ("order", "kernel")


def serve(store: str, bucket: str, marks: str, progress: str) -> None:
    """Be the pipeline's process, until killed."""
    import holdfast as hf

    hf.session("hashtags", **{"spark.master": f"local[{CORES}]"})
    pipeline = hf.Pipeline("hashtags", store=store, bucket=bucket)
    _example().build(pipeline)

    class Noting(hf.Listener):
        def onQueryProgress(self, event: Any) -> None:
            _note(progress, event.progress)

    pipeline.addListener(Noting())
    running = pipeline.start()
    mark(Path(marks), "started")
    running.awaitTermination()


def _note(progress: str, report: dict[str, Any]) -> None:
    with open(progress, "a") as file:
        file.write(json.dumps({"at_us": now_us(), "durationMs": report["durationMs"]}) + "\n")


def _example() -> Any:
    folder = str(process.ROOT / "examples")
    sys.path.insert(0, folder)
    # A function of an imported module travels by its name: Spark's workers have to find the module too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    import hashtags  # type: ignore[import-not-found]

    return hashtags


def send(store: str, tuples_per_second: int, batches_per_second: int, seconds: float) -> dict[str, Any]:
    """Be the sending process."""
    import holdfast as hf

    example = _example()
    rhythm = Rhythm(tuples_per_second, batches_per_second, 1)
    texts = [example.tweets(rhythm.tuples_per_batch) for _ in range(200)]
    made = (texts[number % len(texts)] for number in range(1 << 30))
    kind = WORDS_SCHEMA.field("at").type

    def stamp(table: pa.Table, sent_us: int) -> pa.Table:
        return table.set_column(1, "at", pa.array([sent_us] * table.num_rows, kind))

    with hf.Producer(store, "tweets") as producer:
        return send_at(rhythm, producer.send, seconds, made, stamp)


def run(work: str, rhythm: dict[str, int], bucket: str, seconds: float, warm_up_s: float) -> dict[str, Any]:
    """Return percentiles of each operator's latency, and where the slots' time went."""
    folder = Path(work, f"hashtags-{time.time_ns()}")
    folder.mkdir(parents=True)
    store, marks, progress = str(folder / "store"), folder / "marks", folder / "progress"
    options = {"store": store, "bucket": bucket, "marks": str(marks), "progress": str(progress)}
    supervisor = Supervisor(process.command_of("bench.ours.hashtags:serve", options, folder / "ended"), folder)
    supervisor.start()
    try:
        wait_until_marked(supervisor, marks)
        arrivals = {name: Arrivals() for name in OPERATORS}
        for name, some in arrivals.items():
            threading.Thread(target=_consume, args=(store, name, some), daemon=True).start()
        sending = {**rhythm, "store": store}
        begun_us = now_us() + int(warm_up_s * 1e6)
        queries = count_all_while_sending(arrivals, "bench.ours.hashtags:send", sending, folder, warm_up_s, seconds)
    finally:
        supervisor.stop()
    spent: Counter[str] = Counter()
    for report in lines_of(progress):
        if report["at_us"] >= begun_us:
            spent.update({name: ms for name, ms in report["durationMs"].items() if not name.endswith("total")})
    outside = 1 - sum(spent[name] for name in OF_OPERATORS) / sum(spent.values()) if spent else None
    return {"queries": queries, "outside_of_operators": outside, "milliseconds_by_phase": spent, "bucket": bucket}


def _consume(store: str, name: str, arrivals: Arrivals) -> None:
    import holdfast as hf

    for table in hf.Consumer(store, name):
        newest = table["at" if name == "tags" else "newest"]
        arrivals.add(newest.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy())
