"""Work that fails at every try: how often, since when, and the sentences that a person reads about it.

A node goes on trying whatever a later try may mend, for ever. So that this is seen, it is the node's state (the handle,
metrics) after a few failures in a row, and in the journal after more: there `holdfast status` finds it.

Invariants:
    * A report about a trouble is no reason why a node ended: `is_passing` tells it from that with which one gave up.
    * A trouble is reported once, and its end is reported if it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from holdfast.node.messages import AttachWork, DeliverWork, ForgetWork, IngestWork, ProcessWork, Work
from holdfast.node.statistics import Trouble

SAID_EVERY: Final = 10
STATE_AFTER: Final = 3
REPORTED_AFTER: Final = 10
"""With the pauses between tries that is about ten seconds after the first failure."""
HOPELESS_AFTER: Final = 5
PYTHON_RAISED: Final = "its Python process could not begin: "
"""How the reason of a lost wave starts where Python raised an error before our own code had the task in hand."""
_CANNOT_LOAD: Final = re.compile(
    re.escape(PYTHON_RAISED)
    + r"(\w+\.)*(ModuleNotFoundError|ImportError|AttributeError|SyntaxError|NameError|UnpicklingError)\b"
)
_FAILS: Final = " fails at every try, "
_AGAIN: Final = " works again, "


@dataclass(slots=True)
class Failing:
    """One thing that has failed at every try since `since_us`."""

    since_us: int
    message: str = ""
    times: int = 0
    reported: bool = False


@dataclass(slots=True)
class Troubles:
    """What fails now, by what a person calls it."""

    tries_failed: int = 0
    failing: dict[str, Failing] = field(default_factory=dict)

    def failed(self, subject: str, message: str, now_us: int) -> bool:
        """Take note of a failure; return whether to say so now: the first one, and then now and again."""
        self.tries_failed += 1
        found = self.failing.setdefault(subject, Failing(now_us))
        found.message = message
        found.times += 1
        return found.times == 1 or found.times % SAID_EVERY == 0

    def report(self, subject: str) -> str | None:
        """Return what the journal should have about this trouble, once; None before it lasts, or after that."""
        found = self.failing[subject]
        if found.reported or found.times < REPORTED_AFTER:
            return None
        found.reported = True
        return f"{subject}{_FAILS}{found.times} times in a row so far: {found.message}. It is tried again now and then"

    def is_hopeless(self, subject: str) -> bool:
        """Return whether trying again will not help: Python cannot even load what the task needs, every time.

        A function of the user's that a worker cannot import is such a thing. What may pass is tried for ever.
        """
        found = self.failing[subject]
        return found.times >= HOPELESS_AFTER and _CANNOT_LOAD.search(found.message) is not None

    def succeeded(self, subject: str) -> str | None:
        """Take note of a success; return what the journal should have about the end of a trouble that it knows."""
        found = self.failing.pop(subject, None)
        if found is None or not found.reported:
            return None
        return f"{subject}{_AGAIN}after {found.times} failures in a row"

    def slot_gone(self, slot: int) -> None:
        """Forget what failed on a slot that is no more: its units are tried elsewhere."""
        for subject in [each for each in self.failing if each.endswith(_on(slot))]:
            del self.failing[subject]

    def worst(self) -> Trouble | None:
        """Return the trouble that has lasted for most tries, if any has lasted for some."""
        subject = max(self.failing, key=lambda each: self.failing[each].times, default="")
        found = self.failing.get(subject)
        if found is None or found.times < STATE_AFTER:
            return None
        return Trouble(subject, found.message, found.times, found.since_us)


def subject_of(work: Work, slot: int) -> str:
    """Return what the work is about, in words: another slot's units of the same stage may well be at work."""
    match work:
        case ProcessWork() | AttachWork():
            return f"stage {work.stage}{_on(slot)}"
        case ForgetWork():
            return f"the state that stage {work.stage} has left behind{_on(slot)}"
        case DeliverWork():
            return f"sink {work.sink}"
        case IngestWork():
            return f"source {work.source}"


def _on(slot: int) -> str:
    return f" on slot {slot}"


def is_failing(message: str) -> bool:
    """Return whether a report says that something fails at every try."""
    return _FAILS in message.split(":", 1)[0]


def subject_of_report(message: str) -> str | None:
    """Return what a report about a trouble, or about its end, is about."""
    found = next((mark for mark in (_FAILS, _AGAIN) if mark in message.split(":", 1)[0]), None)
    return None if found is None else message.split(found, 1)[0]


def is_passing(message: str) -> bool:
    """Return whether a report is about a trouble that a node goes on with."""
    return subject_of_report(message) is not None
