"""The examples run as their first lines say, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.connect.consumer import Consumer

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WAIT_S = 120.0


@contextmanager
def running(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in the folder until the block ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def sales_of(store: str, shop: str) -> list[dict[str, Any]]:
    """Return every sale of a shop that is in the log in a complete bucket."""
    with Consumer(store, shop) as sales:
        tables = iter(lambda: sales.poll(0.0), None)
        return [row for table in tables for row in table.to_pylist()]


@pytest.mark.timeout(180)
def test_two_shops_and_a_watcher(tmp_path: Path) -> None:
    store = str(tmp_path / "retail-store")
    (tmp_path / "in" / "south").mkdir(parents=True)
    with (
        running(tmp_path, "-m", "holdfast.cli.main", "run", str(EXAMPLES / "retail.py")) as pipeline,
        running(tmp_path, str(EXAMPLES / "send.py"), "600"),
        running(tmp_path, str(EXAMPLES / "watch.py")) as watcher,
    ):
        assert watcher.stdout is not None
        printed = watcher.stdout.readline()
        with Consumer(store, "averages") as averages:
            table = averages.poll(WAIT_S)
        pipeline.terminate()
        out, errors = pipeline.communicate(timeout=WAIT_S)
        assert (pipeline.returncode, out) == (0, ""), errors
    assert table is not None and printed.split()[3] == table["item"][0].as_py()
    sales = sales_of(store, "north") + sales_of(store, "south")
    for row in table.to_pylist():
        begin, end = row["window"]["start"], row["window"]["end"]
        prices = [sale["price"] for sale in sales if sale["item"] == row["item"] and begin <= sale["sold_at"] < end]
        assert row["sales"] == len(prices)
        assert row["average"] == pytest.approx(sum(prices) / len(prices))


@pytest.mark.timeout(180)
def test_fifteen_operators_over_hashtags(tmp_path: Path) -> None:
    store = str(tmp_path / "hashtags-store")
    example = str(EXAMPLES / "hashtags.py")
    with running(tmp_path, example) as pipeline, running(tmp_path, example, "tweets", "600"):
        for operator in ("tags", "counts_20s", "agreed", "peaks", "agreed_spread", "top", "race", "rising_spread"):
            with Consumer(store, operator, wait="2 minutes") as results:
                table = results.poll(WAIT_S)
                assert table is not None and table.num_rows, operator
        with Consumer(store, "tags") as tags, Consumer(store, "counts_5s") as counts:
            table, counted = tags.poll(WAIT_S), counts.poll(WAIT_S)
        pipeline.terminate()
        _, errors = pipeline.communicate(timeout=WAIT_S)
        assert pipeline.returncode == 0, errors
    assert table is not None and counted is not None
    # The first window that ends has the tweets of its last second alone.
    end = counted["end"][0].as_py()
    before = [row["tag"] for row in table.to_pylist() if row["at"] < end]
    tag, n = counted["tag"][0].as_py(), counted["n"][0].as_py()
    assert 0 < before.count(tag) <= n
