"""Where the time of a slot's work goes, phase by phase.

phases.begin()
rows = read()
phases.end("read")       # from the last `begin` or `end`
"""

from __future__ import annotations

import time


class Phases:
    """Adds up seconds by phase. For one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def begin(self) -> None:
        """Count nothing of what came before."""
        self._since = time.perf_counter()

    def end(self, phase: str) -> None:
        """Count the time since the last call for `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def take(self) -> dict[str, float]:
        """Return what was counted, and begin anew."""
        seconds, self.seconds = self.seconds, {}
        return seconds
