"""The life of a node: one on a store, ended by a signal after its wave, and no heavier after hundreds of waves."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, rows_in
from tests.chaos.processes import wait_until

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
WAVES_BEFORE, WAVES_AFTER = 100, 600
MORE = {"threads": 4, "descriptors": 24, "java_objects": 40, "under_way": 4}
"""By how much the least that is held may differ between early and late; one leaked in each wave would be hundreds."""


def least(measures: list[dict[str, int]]) -> dict[str, int]:
    return {what: min(each[what] for each in measures) for what in MORE}


def test_one_node_per_store_stopped_by_signals_and_without_leaks(tmp_path: Path) -> None:
    measures = tmp_path / "measures.json"

    def measured() -> list[dict[str, Any]]:
        lines = measures.read_text().splitlines() if measures.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    with arena_in(tmp_path, 51) as arena:
        feed = Feed(tmp_path, 51, pace_s=0.05)
        node = arena.start("time", "--measures", str(measures))
        try:
            with Consumer(arena.store, "totals", wait="120 seconds") as consumer:
                arena.wait_for_rows(consumer, node)
            second = arena.start("time")
            assert second.ended() == 1, second.said()
            assert "StreamTaken" in second.said()
            assert str(node.process.pid) in second.said(), second.said()

            def has_run(waves: int) -> bool:
                return not node.lives or any(each["waves"] >= waves for each in measured())

            wait_until(lambda: has_run(WAVES_AFTER), f"waiting for {WAVES_AFTER} waves")
            assert node.lives, node.said()
            before = least([each for each in measured() if WAVES_BEFORE <= each["waves"] < WAVES_AFTER // 2])
            after = least([each for each in measured() if each["waves"] >= WAVES_AFTER - WAVES_BEFORE])
            grown = {what for what, more in MORE.items() if after[what] - before[what] > more}
            assert not grown, f"{grown} grew in {WAVES_AFTER} waves: {before} -> {after}"

            node.stop(signal.SIGINT)
            node = arena.start("time")
            with Consumer(arena.store, "totals") as consumer:
                arena.wait_for_rows(consumer, node)
            node.stop(signal.SIGTERM)
            feed.finish()
        finally:
            feed.leave()
        # With nobody who sends there are no waves, and so none that could be lost.
        idle = tmp_path / "idle-measures.json"
        node = arena.start("time", "--measures", str(idle))
        wait_until(lambda: idle.exists() or not node.lives, "waiting for the report of a node with nothing to do")
        node.signal_all(node.jvms(), signal.SIGKILL)
        assert node.ended() == 1, node.said()
        assert "Nothing committed is lost" in node.said(), node.said()
        arena.run_to_the_end("time")
        check_rows("time", rows_in(tmp_path), feed.tables())
        check_digests(tmp_path, 51, feed.tables())
