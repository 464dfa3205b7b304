"""Kill -9 of the node and of its workers while three stages, each by another key, feed each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, counted, rows_in
from tests.chaos.tally import Tally
from tests.chaos.test_kill import kill_one, start_again

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("seed", "targets"), [(11, ["worker", "node", "worker", "node"])])
def test_results_of_results_of_results_are_those_of_the_input(tmp_path: Path, seed: int, targets: list[str]) -> None:
    with arena_in(tmp_path, seed) as arena:
        feed = Feed(tmp_path, seed, pace_s=0.1)
        node = arena.start("chain")
        tally = Tally(arena.store)
        try:
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
                for target in targets:
                    arena.pause(0.1, 1.0)
                    print(f"killing the {target}")
                    if target == "node":
                        node.kill()
                        node = start_again(arena, "chain")
                    else:
                        kill_one(target, node)
                    arena.wait_for_rows(consumer, node)
                    tally.take(dies=arena.rng.random() < 0.3)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end("chain")
        tally.take(dies=False)
        tally.close()
        rows = rows_in(tmp_path)
        check_rows("chain", rows, feed.tables())
        assert counted(tally.rows) == counted(rows)
        check_digests(tmp_path, seed, feed.tables(), ["keys", "names", "totals"])
