"""A node that runs real waves as fast as they go, on two slots, and is weighed again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions as F
from tests.soak.weight import Weigher, too_heavy

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.node.options import NodeOptions
from holdfast.spark import launch
from holdfast.spark.session import session

OPTIONS: Final = NodeOptions(retain_us=5_000_000, trim_every_us=1_000_000)
QUIET_S: Final = 3.0
"""Spark's threads that watch over a task look every two seconds whether it is over."""
FIRST_WAVES: Final = 1000


class Counts(hf.Listener):
    """A listener as users have them: it costs what it costs."""

    def __init__(self) -> None:
        self.reports = 0

    def onQueryProgress(self, event: Any) -> None:
        self.reports += 1


def pipeline_of(folder: Path) -> hf.Pipeline:
    """Return a pipeline with windows of both kinds, a stage behind a stage, and sinks; all its state stays small."""
    pipeline = hf.Pipeline("life", store=str(folder / "store"), shards=2, bucket="5 milliseconds")
    rows = pipeline.source("sent", "key bigint, value bigint, at timestamp")
    timed = rows.withWatermark("at", "100 milliseconds").groupBy("key", F.window("at", "500 milliseconds"))
    sums = timed.agg(F.sum("value").alias("total")).named("sums").protect(checkpoint=hf.snapshot(every="2 seconds"))
    tens = rows.groupBy("key", hf.count_window(10)).agg(F.count("*").alias("rows")).named("tens")
    tens = tens.protect(checkpoint=hf.snapshot(every="2 seconds"))
    sums.to(hf.parquet(str(folder / "sums")))
    tens.to(hf.parquet(str(folder / "tens")))
    return pipeline


def live(folder: Path, waves: int, steps: int) -> list[str]:
    """Run so many waves, weigh the node at 1,000 and then `steps` times; return what has grown too heavy."""
    states = folder / "states"
    states.mkdir()
    os.environ["HOLDFAST_STATE_DIR"] = str(states)
    spark = session("life", **{"spark.master": "local[2]"})
    pipeline = pipeline_of(folder)
    pipeline.addListener(Counts())
    handle = launch.start(pipeline, options=OPTIONS, metrics_port=0)
    weigher = Weigher(spark, folder / "store", states)
    weights: list[tuple[int, dict[str, int]]] = []
    feeder = subprocess.Popen([sys.executable, "-m", "tests.soak.feeder", pipeline.store, "sent"])
    try:
        for step in range(steps + 1):
            until = FIRST_WAVES + (waves - FIRST_WAVES) * step // steps
            while handle.statistics().waves < until:
                assert not handle.awaitTermination(0.5) and feeder.poll() is None
                urllib.request.urlopen(str(handle.metrics_url), timeout=30).close()
            feeder.send_signal(signal.SIGSTOP)
            wait_until_quiet(handle)
            weights.append((handle.statistics().waves, weigher.weigh(ledger_of(handle))))
            print(f"{weights[-1][0]:,} waves: {weights[-1][1]}", flush=True)
            feeder.send_signal(signal.SIGCONT)
    finally:
        feeder.send_signal(signal.SIGCONT)
        feeder.terminate()
        feeder.wait()
        handle.stop()
    return too_heavy(weights)


def wait_until_quiet(handle: Any) -> None:
    """Return when no wave has run for some time."""
    waves = -1
    while waves != handle.statistics().waves:
        waves = handle.statistics().waves
        assert not handle.awaitTermination(QUIET_S)


def ledger_of(handle: Any) -> Any:
    """Return what the node itself knows of its streams."""
    return handle.request_stop.__self__._decider.situation.ledger


if __name__ == "__main__":
    try:
        grown = live(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except HoldfastError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit("\n".join(grown) or 0)
