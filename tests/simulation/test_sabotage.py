"""The simulator's checks can fail: holdfast is broken on purpose, and within some seeds each break is noticed."""

from __future__ import annotations

from typing import Final

import pytest
from tests.simulation.sabotage import REPAIRS_TAKEN_BACK, SABOTAGES, Sabotage

from holdfast.testing.simulator import outcome_of

SEEDS_MAX: Final = 1_000


@pytest.mark.parametrize("sabotage", [*SABOTAGES, *REPAIRS_TAKEN_BACK], ids=lambda sabotage: sabotage.__name__)
def test_a_broken_promise_is_noticed(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    assert any(outcome_of(seed).failure for seed in range(SEEDS_MAX)), "no seed noticed it"
