"""Half an hour of kills and freezes under load: every row comes out once, and nobody grows heavier.

SOAK_MINUTES says how long, SOAK_SEED which moments; the seed is printed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.chaos.arena import Arena, arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, counted, rows_in
from tests.chaos.processes import NodeProcess
from tests.chaos.tally import Tally
from tests.chaos.test_kill import kill_one

from holdfast.connect.consumer import Consumer

MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SEED = int(os.environ.get("SOAK_SEED", "1"))
pytestmark = [pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 1800)]
QUIET_S = 60.0
"""How long a node is left alone before it is disturbed: its weight is taken at the beginning and at the end of that."""
GROWTH_MAX_KB = 200_000
DESCRIPTORS_MAX = 300


def memory_kb(pids: list[int]) -> int:
    """Return the resident memory of some processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1])
    return total


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def watch(arena: Arena, node: NodeProcess, consumer: Consumer, tally: Tally) -> None:
    """Leave a node alone for a while; it may not grow in it."""
    arena.wait_for_rows(consumer, node)
    everybody = [node.process.pid, *node.jvms()]
    before_kb = memory_kb(everybody)
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        arena.wait_for_rows(consumer, node)
        tally.take(dies=False)
    grown_kb = memory_kb(everybody) - before_kb
    assert grown_kb < GROWTH_MAX_KB, f"{grown_kb} KB more within {QUIET_S} s"
    assert all(descriptors(pid) < DESCRIPTORS_MAX for pid in [node.process.pid, *node.workers()])


@pytest.mark.parametrize("kind", ["count", "time", "running"])
def test_nothing_is_lost_or_grows_in_a_long_time(tmp_path: Path, kind: str) -> None:
    with arena_in(tmp_path, SEED) as arena:
        feed = Feed(tmp_path, SEED, pace_s=1.0)
        node = arena.start(kind, "--deadline-s", "10")
        tally = Tally(arena.store)
        until = time.monotonic() + MINUTES * 60 / 3
        try:
            with Consumer(arena.store, "totals") as consumer:
                while time.monotonic() < until:
                    watch(arena, node, consumer, tally)
                    for _ in range(4):
                        target = arena.rng.choice(["node", "jvm", "worker", "daemon", "freeze"])
                        arena.pause(0.2, 5.0)
                        print(f"{target}")
                        if target == "freeze":
                            node.signal_all(node.workers(), signal.SIGSTOP)
                        elif target == "node":
                            node.kill()
                        else:
                            kill_one(target, node)
                        if target == "jvm":
                            assert node.ended() == 1, node.said()
                        if not node.lives:
                            node = arena.start(kind, "--deadline-s", "10")
                        arena.wait_for_rows(consumer, node)
                        tally.take(dies=arena.rng.random() < 0.3)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end(kind)
        tally.take(dies=False)
        tally.close()
        rows = rows_in(tmp_path)
        check_rows(kind, rows, feed.tables())
        assert counted(tally.rows) == counted(rows)
        check_digests(tmp_path, SEED, feed.tables())
