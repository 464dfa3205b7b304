"""SIGSTOP of workers for longer than a wave may take: what they do after that changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, rows_in
from tests.chaos.processes import NodeProcess, wait_until

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
LATE = "did not answer in time"


def freeze_until_late(node: NodeProcess, workers: list[int]) -> None:
    """Stop the workers where they stand, until the node has given up on one of them."""
    said = node.said().count(LATE)
    node.signal_all(workers, signal.SIGSTOP)
    wait_until(lambda: node.said().count(LATE) > said or not node.lives, "waiting for the deadline")
    assert node.lives, node.said()


@pytest.mark.parametrize(("kind", "seed", "wakes"), [("count", 31, [True, False, True]), ("running", 32, [True, True])])
def test_a_frozen_worker_is_abandoned(tmp_path: Path, kind: str, seed: int, wakes: list[bool]) -> None:
    with arena_in(tmp_path, seed) as arena:
        feed = Feed(tmp_path, seed)
        node = arena.start(kind, "--deadline-s", "4")
        try:
            with Consumer(arena.store, "totals", wait="120 seconds") as consumer:
                arena.wait_for_rows(consumer, node)
                for wake in wakes:
                    arena.pause(0.2, 1.0)
                    frozen = node.workers()
                    freeze_until_late(node, frozen)
                    if wake:
                        # They go on where they stood, beside whoever has their work now.
                        node.signal_all(frozen, signal.SIGCONT)
                    arena.wait_for_rows(consumer, node)
            # The end does not wait for a worker that hangs longer than a wave does.
            node.signal_all(node.workers(), signal.SIGSTOP)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end(kind)
        check_rows(kind, rows_in(tmp_path), feed.tables())
        check_digests(tmp_path, seed, feed.tables())
