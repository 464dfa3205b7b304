"""Wall time that never stands still and never runs away."""

from __future__ import annotations

import threading
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


def test_many_threads_do_not_make_time_pass_faster() -> None:
    clock = WallClock()
    threads = [threading.Thread(target=lambda: [clock.now_us() for _ in range(20_000)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before_us = clock.now_us()
    assert before_us <= time.time_ns() // 1000 + 1, "ahead of the wall"
