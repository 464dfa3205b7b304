"""A query's life in words: since when it is down, why, and when it is tried next."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.connect.query_state import (
    HEALTHY_US,
    PAUSE_FIRST_US,
    PAUSE_MAX_US,
    new_query,
    read_query_state,
    write_query_state,
)
from holdfast.errors import StoreCorrupt
from holdfast.log.local_store import LocalStore

SECOND_US = 1_000_000


def test_tries_that_fail_do_not_move_the_time_since_when_it_is_down_and_the_pause_grows() -> None:
    state = new_query(0).started(5).looked(10)
    assert (state.phase, state.since_us) == ("running", 10)
    now_us = 20
    pauses = []
    for deaths in range(1, 9):
        state = state.died(now_us, f"cause {deaths}")
        assert (state.phase, state.since_us, state.deaths, state.cause) == ("dead", 20, deaths, f"cause {deaths}")
        assert state.next_try_us is not None
        pauses.append(state.next_try_us - now_us)
        now_us = state.next_try_us
        state = state.started(now_us)
        assert (state.phase, state.since_us, state.next_try_us) == ("starting", 20, None)
    assert pauses[:3] == [PAUSE_FIRST_US, 2 * PAUSE_FIRST_US, 4 * PAUSE_FIRST_US] and pauses[-1] == PAUSE_MAX_US
    assert pauses == sorted(pauses)


def test_a_query_that_has_run_for_long_is_tried_again_soon() -> None:
    state = new_query(0).started(0).died(0, "a").started(1).died(2, "a").started(3).looked(4)
    assert state.died(5, "b").deaths == 3, "it has hardly run"
    healthy = state.died(4 + HEALTHY_US, "b")
    assert (healthy.deaths, healthy.since_us, healthy.next_try_us) == (
        1,
        4 + HEALTHY_US,
        4 + HEALTHY_US + PAUSE_FIRST_US,
    )


def test_looking_again_changes_nothing_and_a_dead_query_does_not_look() -> None:
    running = new_query(0).started(1).looked(2)
    assert running.looked(3) is running
    dead = running.died(4, "x")
    assert dead.looked(5) is dead
    trying = dead.started(5)
    assert dead.stopped(6) is dead and trying.stopped(6) is trying and running.stopped(6).phase == "stopped"


def test_the_state_is_kept_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert read_query_state(store, "north") is None
    state = new_query(0).started(1).died(2, "no route to host")
    write_query_state(store, "north", state)
    assert read_query_state(store, "north") == state
    (tmp_path / "ingest" / "north" / "query.json").write_text("{")
    with pytest.raises(StoreCorrupt, match=r"ingest/north/query\.json.*Delete it"):
        read_query_state(store, "north")
