"""A disk that is full, and has room again: nothing committed is lost, and no restart is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.chaos.arena import arena_in, fill, small_disk
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, rows_in
from tests.chaos.processes import wait_until

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
WAY_OUT = "free some space"
WAY_OUT_OF_MEMORY = "free memory or disk below"
NO_ENTRIES = "the journal takes no more entries"


def test_the_store_fills_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "store", "400m") as disk, arena_in(tmp_path, 11) as arena:
        feed = Feed(tmp_path, 11)
        node = arena.start("time")
        try:
            with Consumer(arena.store, "totals", wait="120 seconds") as consumer:
                arena.wait_for_rows(consumer, node)

                def both_complain() -> bool:
                    # Somebody may have deleted something meanwhile.
                    fill(disk)
                    return bool(feed.refusals) and NO_ENTRIES in node.said()

                wait_until(lambda: both_complain() or not node.lives, "waiting for the full disk to be noticed")
                assert node.lives, node.said()
                assert WAY_OUT in node.said()
                assert all(WAY_OUT in refusal for refusal in feed.refusals)
                (disk / "ballast").unlink()
                arena.wait_for_words(node, "the journal takes entries again")
                arena.wait_for_rows(consumer, node)

                fill(disk)
                node.kill()
                fill(disk)
                refused = arena.start("time")
                assert refused.ended() == 1, refused.said()
                assert WAY_OUT in refused.said()
                (disk / "ballast").unlink()
                node = arena.start("time")
                arena.wait_for_rows(consumer, node)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end("time")
        check_rows("time", rows_in(tmp_path), feed.tables())
        check_digests(tmp_path, 11, feed.tables())


def test_the_folder_for_state_fills_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "states", "400m") as disk, arena_in(tmp_path, 12) as arena:
        arena.states = disk
        node = arena.start("count")
        wait_until(lambda: len(list(disk.rglob("*.state"))) == 4 or not node.lives, "waiting for empty states")
        fill(disk)
        # So many keys that the state has to grow.
        feed = Feed(tmp_path, 12, keys=20_000)
        try:
            arena.wait_for_words(node, WAY_OUT_OF_MEMORY)
            assert node.lives, node.said()
            (disk / "ballast").unlink()
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
            node.kill()
            for folder in disk.iterdir():
                shutil.rmtree(folder)
            fill(disk)
            refused = arena.start("count")
            assert refused.ended() == 1, refused.said()
            assert "make room there" in refused.said()
            (disk / "ballast").unlink()
            node = arena.start("count")
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end("count")
        check_rows("count", rows_in(tmp_path), feed.tables())
        check_digests(tmp_path, 12, feed.tables())
