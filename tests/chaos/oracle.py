"""What has to come out, computed from what went in, without any of our kernels."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

STEP = datetime.timedelta(seconds=5)
SIZE = datetime.timedelta(seconds=10)


def expected_rows(kind: str, tables: list[pa.Table]) -> Any:
    """Return, for `time`, the rows counted; for `count`, rows per key and the total; for `running`, the last row per key."""
    table = pa.concat_tables(tables)
    if kind == "time":
        return _windows(table)
    grouped = table.group_by("key").aggregate([("value", "sum"), ("value", "count")]).to_pylist()
    if kind == "count":
        return Counter({row["key"]: row["value_count"] for row in grouped}), sum(row["value_sum"] for row in grouped)
    return {row["key"]: (row["value_sum"], row["value_count"]) for row in grouped}


def _windows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    seconds = pa.compute.divide(table.column("at").cast(pa.int64()), pa.scalar(STEP // datetime.timedelta(microseconds=1)))
    steps = table.append_column("step", seconds).group_by(["name", "step"]).aggregate([("value", "sum"), ("value", "count")])
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in steps.to_pylist():
        for start in (row["step"], row["step"] - 1):
            total, rows = found.get((row["name"], start), (0, 0))
            found[row["name"], start] = (total + row["value_sum"], rows + row["value_count"])
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return Counter(
        (name, epoch + start * STEP, total, rows, name) for (name, start), (total, rows) in found.items()
    )


def replayed_digests_differ(folder: Path) -> bool:
    """Compute the stage again from the log, with a fresh state, and compare every (shard, bucket)."""
    command = [sys.executable, "-m", "holdfast.testing.replay", str(folder / "store" / "chaos"), "totals"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done.returncode != 0
