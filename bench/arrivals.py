"""When tuples were sent, and when their results were seen; the same clock and the same count for both sides.

Invariants:
    * Counting begins some time after the first result, when the way is warm and what had piled up is gone.
    * Every tuple sent in the counted time is counted: a side whose last one does not arrive has failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from bench import process
from bench.sender import now_us

FIRST_RESULT_LIMIT_S: Final = 45.0
LAST_RESULT_LIMIT_S: Final = 10.0
SENDING_S: Final = 3600.0
"""Longer than any run: the sender is ended when its tuples have been counted."""

Times = npt.NDArray[np.int64]


class Arrivals:
    """Results as they are seen. Any thread may add."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, Times]] = []
        self._newest_us = -1
        self._changed = threading.Condition()

    def add(self, sent_us: Times) -> None:
        """Note that the results of tuples sent at these times have just been seen."""
        seen_us = now_us()
        with self._changed:
            self._seen.append((seen_us, sent_us))
            self._newest_us = max(self._newest_us, int(sent_us.max(initial=-1)))
            self._changed.notify_all()

    def wait_until_sent_at(self, sent_us: int, limit_s: float) -> bool:
        """Return when a tuple sent then or later has been seen; False when the limit came first."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest_us >= sent_us, limit_s)

    def latencies_us(self, sent_from_us: int, sent_to_us: int) -> Times:
        """Return the latency of each tuple that was sent in `[sent_from_us, sent_to_us)`."""
        with self._changed:
            found = [seen - sent[(sent >= sent_from_us) & (sent < sent_to_us)] for seen, sent in self._seen]
        return np.concatenate(found) if found else np.empty(0, np.int64)


def count_while_sending(
    arrivals: Arrivals, target: str, options: dict[str, Any], folder: Path, warm_up_s: float, seconds: float
) -> dict[str, Any]:
    """Start the sender `target`, wait until the way is warm, and return the percentiles of the next `seconds`."""
    (figures,) = count_all_while_sending({"": arrivals}, target, options, folder, warm_up_s, seconds).values()
    return figures


def count_all_while_sending(
    arrivals: Mapping[str, Arrivals],
    target: str,
    options: dict[str, Any],
    folder: Path,
    warm_up_s: float,
    seconds: float,
) -> dict[str, dict[str, Any]]:
    """Do the same for the results of several queries over the same tuples, by name."""
    command = process.command_of(target, {**options, "seconds": SENDING_S}, folder / "sent")
    with (folder / "sender.log").open("wb") as output:
        sender = process.start(command, output)
    failed: dict[str, dict[str, Any]] = {}
    try:
        for name, some in arrivals.items():
            if not some.wait_until_sent_at(0, FIRST_RESULT_LIMIT_S):
                words = process.last_words(folder / "sender.log") or "nothing"
                failed[name] = {"failed": f"no result within {FIRST_RESULT_LIMIT_S:.0f} s; the sender said: {words}"}
        time.sleep(warm_up_s)
        from_us = now_us()
        time.sleep(seconds)
        to_us = now_us()
        for name, some in arrivals.items():
            if name not in failed and not some.wait_until_sent_at(to_us, LAST_RESULT_LIMIT_S):
                late = f"results are more than {LAST_RESULT_LIMIT_S:.0f} s behind: it does not keep up"
                failed[name] = {"failed": late}
    finally:
        process.end(sender)
    return {
        name: failed.get(name) or percentiles_ms(some.latencies_us(from_us, to_us)) for name, some in arrivals.items()
    }


def percentiles_ms(latency_us: Times) -> dict[str, Any]:
    """Return p50, p90, p99 and the highest, in ms."""
    if not len(latency_us):
        return {"failed": "no tuple was sent in the counted time"}
    p50, p90, p99 = (float(value) / 1000 for value in np.percentile(latency_us, [50, 90, 99]))
    highest_ms = float(latency_us.max()) / 1000
    return {"tuples_counted": len(latency_us), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "highest_ms": highest_ms}
