"""The clock of real life, for whoever is not given another one."""

from __future__ import annotations

import threading
import time


class WallClock:
    """Wall time that goes on when the clock is set back: nobody may stand still until the old time is reached."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_us = 0
        self._last_ns = time.monotonic_ns()

    def now_us(self) -> int:
        """Return the time; from any thread."""
        # Two threads at once would count the time since the last call twice, and stay ahead by it.
        with self._lock:
            steady_ns = time.monotonic_ns()
            self._last_us = max(time.time_ns() // 1000, self._last_us + (steady_ns - self._last_ns) // 1000)
            self._last_ns = steady_ns
            return self._last_us

    def monotonic(self) -> float:
        return time.monotonic()
