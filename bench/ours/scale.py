"""holdfast's side of `bench.scale`: count windows (W1) on some number of slots, units, executors and keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.ours import windows


def run_one(
    work: str, input_folder: str, tuples: int, keys: int, cores: int, executors: int, units: int, limit_s: int
) -> dict[str, Any]:
    """Run W1 in a session of its own, after one file's worth to warm up; with `executors`, on a cluster of so many."""
    if not executors:
        return _measure(work, input_folder, tuples, keys, f"local[{cores}]", units, limit_s)
    from holdfast.spark.cluster import Cluster

    with Cluster.start(executors) as cluster:
        return _measure(work, input_folder, tuples, keys, cluster.url, units, limit_s)


def _measure(
    work: str, input_folder: str, tuples: int, keys: int, master: str, units: int, limit_s: int
) -> dict[str, Any]:
    import holdfast as hf

    spark = hf.session("scale", **{"spark.master": master})
    folder = Path(work)
    common = {"query": "count_windows", "bucket": "200 milliseconds", "limit_s": limit_s, "shards": units}
    warm_up = windows.one_file(Path(input_folder), folder)
    windows.run(folder, name="warm-up", input_folder=warm_up, tuples=tuples, **common)
    before = _bytes_in(os.environ["HOLDFAST_STATE_DIR"])
    figures = windows.run(folder, name="scale", input_folder=input_folder, tuples=tuples, **common)
    figures["state_bytes_per_key"] = (_bytes_in(os.environ["HOLDFAST_STATE_DIR"]) - before) / keys
    spark.stop()
    return figures


def _bytes_in(folder: str) -> int:
    """Return what the files in a folder take, not how long they say they are."""
    return sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file())
