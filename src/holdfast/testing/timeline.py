"""Virtual time: one list of what happens when, and the processes that it happens in.

Guarantees:
    * The same seed gives the same order of events; nothing waits and nothing reads a real clock.
    * A process that has died does nothing more; one that is paused goes on with all that was due, when it wakes.
    * `interleave` lets another process act in the middle of an operation, never the one whose operation it is.
    * `tally` counts everything that a seed did, by a few words each, so that nobody has to believe that faults happen.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from holdfast.testing.faulty_disk import Crashed
from holdfast.testing.faulty_store import FaultyStore

START_US: Final = 1_000_000_000

Action = Callable[[], None]


class Process:
    """Somebody who acts: a node, a slot, a producer, a reader. It has its own view of the disk."""

    def __init__(self, timeline: Timeline, name: str, store: FaultyStore | None) -> None:
        self.timeline = timeline
        self.name = name
        self.alive = True
        self.paused_until_us = 0
        self._store = store

    @property
    def store(self) -> FaultyStore:
        assert self._store is not None, f"{self.name} has no disk"
        return self._store

    def later(self, delay_us: int, action: Action) -> None:
        """Do something after a while, if the process still lives."""
        self.timeline.add(self, self.timeline.now_us + max(0, delay_us), action)

    def soon(self, most_us: int, action: Action) -> None:
        """Do something after a random while."""
        self.later(self.timeline.random.randint(1, most_us), action)

    def die(self, reason: str) -> None:
        """End now; locks are free, nothing more is written."""
        if self.alive:
            self.alive = False
            if self._store is not None:
                self._store.kill()
            self.died(reason)

    def died(self, reason: str) -> None:
        """What the rest of the world notices; for subclasses."""


class Timeline:
    """The clock and what is due."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_us = START_US
        self.events = 0
        self.log: list[str] = []
        self.verbose = False
        self.tally: Counter[str] = Counter()
        self._due: list[tuple[int, int, Process, Action]] = []
        self._number = 0
        self._acting: list[Process] = []

    def tell(self, who: str, text: str) -> None:
        """Add a line to the story."""
        line = f"{(self.now_us - START_US) / 1000:10.3f} ms  {who:<14} {text}"
        self.log.append(line)
        if self.verbose:
            print(line)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def count(self, what: str) -> None:
        """Note that something happened."""
        self.tally[what] += 1

    def add(self, process: Process, at_us: int, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_us, self._number, process, action))

    def run_next(self) -> bool:
        """Let the next thing happen; False if nothing is due any more."""
        while self._due:
            at_us, _, process, action = heapq.heappop(self._due)
            if self._may_act(process, at_us, action):
                self._act(process, at_us, action)
                return True
        return False

    def interleave(self) -> None:
        """Let the next thing of another process happen now, in the middle of whatever is going on."""
        for due in sorted(self._due, key=lambda due: due[:2]):
            at_us, _, process, action = due
            free = process.alive and process not in self._acting and process.paused_until_us <= self.now_us
            if free and process._store is not None:
                self._due.remove(due)
                heapq.heapify(self._due)
                self.count("interleaved")
                self._act(process, max(at_us, self.now_us), action)
                return

    def _may_act(self, process: Process, at_us: int, action: Action) -> bool:
        if process.alive and process.paused_until_us > at_us:
            self.add(process, process.paused_until_us, action)
            return False
        return process.alive

    def _act(self, process: Process, at_us: int, action: Action) -> None:
        self.now_us = max(self.now_us, at_us)
        self.events += 1
        self._acting.append(process)
        try:
            action()
        except Crashed as crash:
            process.die(str(crash))
        finally:
            self._acting.pop()
