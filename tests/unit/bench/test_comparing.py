"""A figure may be missing, a peer may fail; a page must never look better than what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bench import compare, measure, process
from bench.arrivals import Arrivals, percentiles_ms
from bench.peers import windows
from bench.supervisor import lines_of, shares_ms


def trigger(rows: int, milliseconds: int) -> dict[str, object]:
    return {"batch": 0, "rows": rows, "duration_ms": {"triggerExecution": milliseconds, "addBatch": milliseconds - 10}}


def test_a_peers_rate_leaves_out_its_first_trigger_and_counts_only_its_share_of_keys() -> None:
    figures = windows._figures([trigger(1_000, 9_000), trigger(1_000, 500), trigger(1_000, 500)], 10, True, 12.0)
    assert figures["tuples_per_second"] == 200
    assert figures["milliseconds_by_phase"] == {"addBatch": 980, "triggerExecution": 1000}


def test_a_peer_with_one_trigger_has_the_rate_of_that_one_and_one_with_none_has_none() -> None:
    assert windows._figures([trigger(1_000, 500)], 1, False, 1.0)["tuples_per_second"] == 2_000
    assert windows._figures([], 1, False, 1.0)["tuples_per_second"] is None


def test_a_process_returns_its_result_or_why_it_has_none() -> None:
    assert process.run("bench.compare:quotient", {"value": 6, "other": 3}, 30) == 2
    failed = process.run("bench.compare:quotient", {"value": 6}, 30)
    assert "missing 1 required positional argument" in failed["failed"]


def test_a_process_that_outlives_its_limit_is_ended_and_says_so() -> None:
    assert "time limit of 1 s" in process.run("signal:pause", {}, 1)["failed"]


def test_a_goal_that_was_not_measured_does_not_hold() -> None:
    program = measure.program("test", "A test.", arguments=[])
    compare.goal(program, "measured", compare.quotient(8.0, 2.0), at_least=3)
    compare.goal(program, "not measured", compare.quotient(8.0, None), at_least=3)
    assert [goal["holds"] for goal in program.goals] == [True, False]
    assert any("not measured" in note for note in program.notes)


def test_turns_begin_with_another_side_each_round() -> None:
    order: list[str] = []

    def run(name: str) -> compare.Run:
        order.append(name)
        return {"value": len(order)}

    results = compare.in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, 2)
    assert order == ["a", "b", "b", "a"]
    assert compare.medians(results, "value") == {"a": 2.5, "b": 2.5}
    assert compare.median_of([{"failed": "why"}], "value") is None


def test_latencies_count_every_tuple_sent_in_the_counted_time_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1_000, 5_000])
    monkeypatch.setattr("bench.arrivals.now_us", lambda: next(times))
    arrivals = Arrivals()
    arrivals.add(np.array([0, 100]))
    arrivals.add(np.array([2_000, 4_000, 4_500]))
    latency_us = arrivals.latencies_us(2_000, 4_500)
    assert sorted(latency_us.tolist()) == [1_000, 3_000]
    assert percentiles_ms(latency_us)["p50_ms"] == 2.0
    assert arrivals.wait_until_sent_at(4_500, 0)
    assert not arrivals.wait_until_sent_at(4_501, 0)


def test_a_side_without_results_has_failed() -> None:
    assert "no tuple" in percentiles_ms(Arrivals().latencies_us(0, 10))["failed"]


def test_the_shares_of_a_restart_add_up_to_it(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    lines = [
        {"name": "process", "at_us": 1_200_000, "process": 1},
        {"name": "process", "at_us": 2_100_000, "process": 2},
        {"name": "session", "at_us": 2_500_000, "process": 2},
    ]
    marks.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"half')
    assert lines_of(marks) == lines
    shares = shares_ms(marks, life=2, killed_us=2_000_000, result_us=3_000_000)
    assert shares == {"process": 100, "session": 400, "first_result": 500}
