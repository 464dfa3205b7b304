"""Kill -9 of node, worker and daemon under load, at random moments; at the end every row is there, once, and right."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.feed import Feed, rows_in
from tests.chaos.oracle import expected_rows, replayed_digests_differ
from tests.chaos.processes import NodeProcess

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]
START_S = 90.0


def wait_for_rows(consumer: Consumer, node: NodeProcess) -> None:
    """Wait for a new result; a node that ended instead has failed the test."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        table = consumer.poll(1.0)
        if table is not None and table.num_rows:
            return
        assert node.process.poll() is None, node.said()
    raise AssertionError(f"no result within {START_S} s: {node.said()}")


def kill_one(target: str, node: NodeProcess) -> bool:
    """Kill a process of the kind; False if there is none at this moment."""
    if target == "node":
        node.kill()
        return True
    found = node.workers() if target == "worker" else node.managers()
    for pid in found[:1]:
        os.kill(pid, signal.SIGKILL)
    return bool(found)


@pytest.mark.parametrize(
    ("kind", "seed", "targets"),
    [
        ("count", 1, ["worker", "node", "daemon", "node", "worker", "daemon", "worker"]),
        ("time", 2, ["daemon", "worker", "node", "worker", "node", "daemon", "node"]),
        ("running", 3, ["node", "worker", "daemon", "worker", "node", "node"]),
    ],
)
def test_nothing_is_lost_doubled_or_changed(tmp_path: Path, kind: str, seed: int, targets: list[str]) -> None:
    rng = random.Random(seed)
    feed = Feed(tmp_path, seed)
    node = NodeProcess(tmp_path, kind)
    try:
        with Consumer(f"{tmp_path}/store", "totals", wait="120 seconds") as consumer:
            wait_for_rows(consumer, node)
            for target in targets:
                # A random moment under load, so that no point of a wave is spared.
                time.sleep(rng.uniform(0.2, 2.0))
                assert kill_one(target, node), f"there is no {target} to kill: {node.said()}"
                if target == "node":
                    node = NodeProcess(tmp_path, kind)
                    if rng.random() < 0.5:
                        time.sleep(rng.uniform(0.5, 5.0))
                        node.kill()
                        node = NodeProcess(tmp_path, kind)
                while consumer.poll() is not None:
                    continue
                wait_for_rows(consumer, node)
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(60) == 0, node.said()
        feed.finish()
        last = node = NodeProcess(tmp_path, kind, available_now=True)
        assert last.process.wait(120) == 0, last.said()
    finally:
        node.end()
        feed.leave()
    rows = rows_in(tmp_path)
    expected = expected_rows(kind, feed.tables())
    if kind == "time":
        found = Counter((row["name"], row["window"]["start"], row["total"], row["rows"], row["last_name"]) for row in rows)
        assert found == expected
    elif kind == "count":
        # Which tuples share a window depends on how the inputs were merged; every tuple is in exactly one.
        assert Counter({key: sum(r["rows"] for r in rows if r["key"] == key) for key in range(500)}) == expected[0]
        assert sum(row["total"] for row in rows) == expected[1]
        assert len({(row["key"], row["window"]["number"]) for row in rows}) == len(rows)
        assert all(row["rows"] == 10 for row in rows if (row["key"], row["window"]["number"] + 1) in
                   {(r["key"], r["window"]["number"]) for r in rows})
    else:
        final = {row["key"]: (row["total"], row["rows"]) for row in rows}
        assert final == expected
    assert not replayed_digests_differ(tmp_path)
