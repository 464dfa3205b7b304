"""Kill -9 of node, JVM, worker and daemon under load, at random moments: every row comes out once, and right."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.chaos.arena import Arena, arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, counted, rows_in
from tests.chaos.processes import NodeProcess, is_alive, wait_until
from tests.chaos.tally import Tally

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def kill_one(target: str, node: NodeProcess) -> None:
    """Kill a process of the kind, as soon as there is one."""
    find = {"jvm": node.jvms, "worker": node.workers, "daemon": node.managers}[target]
    wait_until(lambda: find() or not node.lives, f"waiting for a {target}")
    found = find()
    assert found, f"there is no {target} to kill: {node.said()}"
    orphans = node.workers() if target == "daemon" else []
    os.kill(found[0], signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, orphans)), "waiting for the workers to die with their daemon")


def start_again(arena: Arena, kind: str) -> NodeProcess:
    """Start the node; half of the time it is killed once more while it starts."""
    node = arena.start(kind)
    if arena.rng.random() < 0.5:
        arena.pause(0.5, 6.0)
        print("killed again during the restart")
        node.kill()
        node = arena.start(kind)
    return node


@pytest.mark.parametrize(
    ("kind", "seed", "targets"),
    [
        ("count", 1, ["worker", "node", "daemon", "jvm", "worker", "node", "daemon"]),
        ("time", 2, ["daemon", "worker", "node", "jvm", "node", "worker", "node"]),
        ("running", 3, ["node", "worker", "daemon", "node", "jvm", "worker"]),
    ],
)
def test_nothing_is_lost_doubled_or_changed(tmp_path: Path, kind: str, seed: int, targets: list[str]) -> None:
    with arena_in(tmp_path, seed) as arena:
        feed = Feed(tmp_path, seed)
        node = arena.start(kind)
        tally = Tally(arena.store)
        try:
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
                for target in targets:
                    arena.pause(0.2, 2.0)
                    print(f"killing the {target}")
                    if target == "node":
                        node.kill()
                    else:
                        kill_one(target, node)
                    if target == "jvm":
                        # The node cannot go on without it, and says so.
                        assert node.ended() == 1, node.said()
                        assert "start the pipeline again" in node.said()
                    if target in ("node", "jvm"):
                        node = start_again(arena, kind)
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
        check_digests(tmp_path, seed, feed.tables())
