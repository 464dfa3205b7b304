"""The page has to show what failed as plainly as what held."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the report draws with matplotlib, of the extra `bench`")

from bench import report


def result_of(name: str, figures: dict[str, object], goals: list[dict[str, object]]) -> dict[str, object]:
    return {
        "name": name,
        "description": "A <program>.\nMore.",
        "quick": True,
        "at": "2026-01-01T00:00:00+00:00",
        "took_s": 1.0,
        "machine": {"cores": 2},
        "versions": {"python": "3.11"},
        "figures": figures,
        "goals": goals,
        "notes": ["a note"],
    }


def test_the_page_shows_goals_that_fail_and_figures_that_are_missing(tmp_path: Path) -> None:
    goals = [
        {"name": "good", "value": 4.0, "limit": 3, "sense": "at least", "holds": True},
        {"name": "bad", "value": None, "limit": 3, "sense": "at least", "holds": False},
    ]
    rates = {"by_key_group": 400_000.0, "holdfast_windows": None, "groups_100000_rocksdb": 1.0}
    figures: dict[str, object] = {name: [{"tuples_per_second": rate}] for name, rate in rates.items()}
    (tmp_path / "windows.json").write_text(
        json.dumps(result_of("windows", {**figures, "tuples_per_second": rates}, goals))
    )
    (tmp_path / "other.json").write_text(json.dumps(result_of("other", {}, [])))
    (tmp_path / "unrelated.json").write_text("[]")
    page = report.page_of(report.results_in(tmp_path))
    assert "1 of 2 goals hold" in page
    assert "does not hold" in page and "not measured" in page
    assert page.count("<svg") == 2
    assert "A &lt;program&gt;." in page
