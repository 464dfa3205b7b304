"""Kill -9 of node, JVM and workers while Spark runs the jobs of a transform: every row comes out once, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, counted, rows_in
from tests.chaos.tally import Tally
from tests.chaos.test_kill import kill_one

from holdfast.connect.consumer import Consumer
from holdfast.log.inspect import read_ledger
from holdfast.log.store import open_store

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
TARGETS = ["worker", "node", "jvm", "worker", "node"]


@pytest.mark.parametrize(("transform", "seed"), [("rows", 11), ("batches", 12)])
def test_a_job_that_is_killed_at_any_moment_counts_once_or_not_at_all(
    tmp_path: Path, transform: str, seed: int
) -> None:
    with arena_in(tmp_path, seed) as arena:
        feed = Feed(tmp_path, seed)
        options = ("--transform", transform)
        node = arena.start("running", *options)
        tally = Tally(arena.store)
        try:
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
                for target in TARGETS:
                    arena.pause(0.2, 2.0)
                    print(f"killing the {target}")
                    if target == "node":
                        node.kill()
                    else:
                        kill_one(target, node)
                    if target == "jvm":
                        assert node.ended() == 1, node.said()
                    if target in ("node", "jvm"):
                        node = arena.start("running", *options)
                    arena.wait_for_rows(consumer, node)
                    tally.take(dies=arena.rng.random() < 0.3)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end("running", *options)
        tally.take(dies=False)
        tally.close()
        rows = rows_in(tmp_path)
        check_rows("running", rows, feed.tables())
        assert counted(tally.rows) == counted(rows)
        check_digests(tmp_path, seed, feed.tables())
        store = open_store(f"{arena.store}/chaos")
        for name in ("sent", "dropped"):
            made, read = (read_ledger(store, stream) for stream in (f"{name}_checked", name))
            taken = sum(rows for rows, _ in made.digests(f"{name}_checked").values())
            assert taken == sum(frame.rows for frame in read.all_frames(name)), f"each row of {name} once"
