"""holdfast's side of `bench.windows`: count windows (W1) and running groups (W2) from the same Parquet files.

Invariants:
    * The rate counts everything from `start` to the end of the pipeline: finding files, logging the tuples, closing
      what is open at the end, the last sync.
    * Results are in the log, durable, and snapshots are on.
    * Results are read back after the time is taken, and counted against the files: a fast wrong answer is no
      measurement.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as parquet

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
    warm_up = {**first, "name": "warm-up", "input_folder": one_file(Path(first["input_folder"]), Path(work))}
    run(Path(work), **warm_up)
    return {figures["name"]: run(Path(work), **figures) for figures in runs}


def run(
    work: Path,
    name: str,
    query: str,
    input_folder: str,
    tuples: int,
    bucket: str,
    limit_s: int,
    shards: int | None = None,
) -> dict[str, Any]:
    """Run one pipeline over all files and return its figures."""
    import holdfast as hf

    store = work / f"{name}-{time.time_ns()}"
    pipeline = hf.Pipeline(store.name, store=str(store), bucket=bucket, shards=shards)
    source = pipeline.source("tuples", hf.files(input_folder, format="parquet", schema=SPARK_SCHEMA))
    _results(source, query).named("results")
    started_s = time.monotonic()
    running = pipeline.start(available_now=True)
    finished = running.awaitTermination(limit_s)
    wall_s = time.monotonic() - started_s
    progress = running.recentProgress
    running.stop()
    if finished:
        check_results(str(store), query, input_folder)
    return {
        "finished": bool(finished),
        "tuples_per_second": tuples / wall_s if finished else None,
        "tuples_counted": tuples,
        "seconds_wall": wall_s,
        "bucket": bucket,
        "milliseconds_by_phase": phases_ms(progress),
        "tuples_in_phases": sum(report["numInputRows"] for report in progress),
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
    """Return where the slots' time went, summed over all reports (two slots: twice the wall time at most)."""
    spent: Counter[str] = Counter()
    for report in progress:
        for phase, milliseconds in report["durationMs"].items():
            # A total is the sum of the other phases.
            if not phase.endswith("total"):
                spent[phase] += milliseconds
    return dict(spent)


def check_results(store: str, query: str, input_folder: str) -> None:
    """Raise if the results in the log are not as many as the files ask for."""
    import holdfast as hf

    keys = parquet.read_table(input_folder, columns=["key"])["key"].to_numpy()
    wanted = np.bincount(keys)
    found = np.zeros(len(wanted), np.int64)
    for table in hf.Consumer(store, "results"):
        key = table["key"].to_numpy()
        if query == "groups":
            np.maximum.at(found, key, table["tuples"].to_numpy())
        else:
            np.add.at(found, key, 1)
    # A key's last window closes at the end, full or not.
    expected = wanted if query == "groups" else -(-wanted // WINDOW_SIZE)
    if not np.array_equal(found, expected):
        raise ValueError(
            f"{query} in {store}: {int((found != expected).sum())} of {len(expected)} keys have wrong results: "
            f"{int(found.sum())} in all, expected {int(expected.sum())}"
        )


def one_file(folder: Path, work: Path) -> str:
    """Return a folder with the first of the files, which is enough to warm up."""
    few = work / "warm-up-files"
    few.mkdir(parents=True, exist_ok=True)
    file = min(folder.glob("*.parquet"))
    if not (few / file.name).exists():
        (few / file.name).hardlink_to(file)
    return str(few)
