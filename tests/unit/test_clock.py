"""Wall time that never stands still."""

from __future__ import annotations

import time

import pytest

from holdfast.clock import WallClock


def test_a_clock_that_is_set_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_ns, steady_ns = 1_000_000_000_000, 5_000_000
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: steady_ns)
    clock = WallClock()
    assert clock.now_us() == 1_000_000_000
    wall_ns -= 3_600_000_000_000
    steady_ns += 7_000
    assert clock.now_us() == 1_000_000_007
    wall_ns += 2 * 3_600_000_000_000
    assert clock.now_us() == 4_600_000_000
