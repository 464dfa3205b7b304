"""holdfast's side of `bench.windows`: count windows (W1) and running groups (W2) from the same Parquet files.

Invariants:
    * The rate counts everything from `start` to the end of the pipeline: finding files, logging the tuples, closing
      what is open at the end, the last sync.
    * Results are in the log, durable, and snapshots are on.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.data import SPARK_SCHEMA
from bench.peers.count_windows import WINDOW_SIZE
from bench.peers.session import CORES

if TYPE_CHECKING:
    from holdfast import Stream


def run_all(runs: list[dict[str, Any]], work: str) -> dict[str, Any]:
    """Measure each of `runs` in one session, after one file's worth of the first to warm up; results by name."""
    import holdfast as hf

    hf.session("windows", **{"spark.master": f"local[{CORES}]"})
    first = runs[0]
    warm_up = {**first, "name": "warm-up", "input_folder": _one_file(Path(first["input_folder"]), Path(work))}
    run(Path(work), **warm_up)
    return {figures["name"]: run(Path(work), **figures) for figures in runs}


def run(work: Path, name: str, query: str, input_folder: str, tuples: int, bucket: str, limit_s: int) -> dict[str, Any]:
    """Run one pipeline over all files and return its figures."""
    import holdfast as hf

    store = work / f"{name}-{time.time_ns()}"
    pipeline = hf.Pipeline(store.name, store=str(store), bucket=bucket)
    source = pipeline.source("tuples", hf.files(input_folder, format="parquet", schema=SPARK_SCHEMA))
    _results(source, query).named("results")
    started_s = time.monotonic()
    running = pipeline.start(available_now=True)
    finished = running.awaitTermination(limit_s)
    wall_s = time.monotonic() - started_s
    progress = running.recentProgress
    running.stop()
    return {
        "finished": bool(finished),
        "tuples_per_second": tuples / wall_s if finished else None,
        "tuples_counted": tuples,
        "seconds_wall": wall_s,
        "bucket": bucket,
        "milliseconds_by_phase": phases_ms(progress),
        "store_bytes": sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
    }


def _results(source: Stream, query: str) -> Stream:
    from pyspark.sql import functions as F

    import holdfast as hf

    value = F.col("value")
    if query == "groups":
        return source.groupBy("key").agg(F.count(value).alias("tuples"), F.min(value), F.max(value))
    return source.groupBy("key", hf.count_window(WINDOW_SIZE)).agg(F.avg(value).alias("average"))


def phases_ms(progress: list[dict[str, Any]]) -> dict[str, float]:
    """Return where the slots' time went, summed over all waves (two slots: twice the wall time at most)."""
    spent: Counter[str] = Counter()
    for wave in progress:
        for phase, milliseconds in wave["durationMs"].items():
            spent[phase] += milliseconds
    return dict(spent)


def _one_file(folder: Path, work: Path) -> str:
    few = work / "warm-up-files"
    few.mkdir(parents=True, exist_ok=True)
    file = min(folder.glob("*.parquet"))
    if not (few / file.name).exists():
        (few / file.name).hardlink_to(file)
    return str(few)
