"""Number the batches of a producer, and know which of them are logged, on their way, or failed.

Invariants:
    * A batch is (epoch, sequence); within an epoch sequences ascend. What is at or below the last one that is logged
      is a repeat.
    * A batch that carried its own sequence and failed has to come again before a higher one is taken: else it would
      look like a repeat, and be lost.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future

import msgspec

from holdfast.errors import Misconfigured, StoreUnavailable
from holdfast.log.ledger import Ledger

REMEMBERED = 1024
"""How many results are kept for repeats of the same sequence."""


class Sent(msgspec.Struct, frozen=True):
    """What became of a batch. `stamp_us` is the tuple_time of all of its rows, where they have one."""

    epoch: int
    sequence: int
    rows: int
    stamp_us: int | None = None
    repeated: bool = False


class Flight(msgspec.Struct, frozen=True):
    """A batch on its way into the journal. `explicit` says that the sender gave it its sequence."""

    sent: Sent
    commit: Future[int]
    explicit: bool


class Batches:
    """The batches of one name in one epoch. For one thread at a time."""

    def __init__(self, ledger: Ledger, stream: str, name: str, epoch: int | None) -> None:
        self._ledger = ledger
        self._stream = stream
        self._name = name
        self._recent: OrderedDict[int, Flight] = OrderedDict()
        self._failed: set[int] = set()
        if epoch is not None and (type(epoch) is not int or epoch < 0):
            raise Misconfigured(f"{self._text()}: epoch is {epoch!r} and must be a whole number from 0.")
        last = ledger.batch_last(stream, name)
        if epoch is None:
            epoch = 0 if last is None else last[0] + 1
        if last is not None and epoch < last[0]:
            raise Misconfigured(
                f"{self._text()}: epoch {epoch} is over; the last batch is of epoch {last[0]}. Resume that one, or "
                "leave epoch out to begin the next."
            )
        self.epoch = epoch
        self._next = last[1] + 1 if last is not None and last[0] == epoch else 0

    def known(self, sequence: int | None, rows: int) -> Flight | Sent | None:
        """Return what became of a batch that was sent before; None for a new one."""
        if sequence is None:
            return None
        if type(sequence) is not int or sequence < 0:
            raise Misconfigured(f"{self._text()}: sequence is {sequence!r} and must be a whole number from 0.")
        if sequence in self._recent:
            return self._recent[sequence]
        last = self._ledger.batch_last(self._stream, self._name)
        if sequence not in self._failed and last is not None and (self.epoch, sequence) <= last:
            return Sent(self.epoch, sequence, rows, None, True)
        return None

    def number(self, sequence: int | None) -> int:
        """Return the sequence of a new batch: the one given, or the next."""
        if sequence is None:
            self._next += 1
            return self._next - 1
        waiting = min(self._failed, default=sequence)
        if waiting < sequence:
            raise StoreUnavailable(
                f"{self._text()}: batch {waiting} could not be logged and has to come before batch {sequence}. "
                "Send it again first."
            )
        highest = max((each for each in self._recent), default=-1)
        if sequence < highest:
            raise Misconfigured(
                f"{self._text()}: batch {sequence} comes after batch {highest}, but sequences ascend. "
                "Send batches that carry one from one thread, or leave it out."
            )
        self._failed.discard(sequence)
        self._next = max(self._next, sequence + 1)
        return sequence

    def fly(self, flight: Flight) -> None:
        """Remember a batch that is on its way."""
        self._recent[flight.sent.sequence] = flight
        while len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def fail(self, sequence: int, explicit: bool) -> None:
        """Remember that a batch is not logged."""
        self._recent.pop(sequence, None)
        if explicit:
            self._failed.add(sequence)

    def settle(self) -> None:
        """Wait until everything on its way has arrived or failed, and remember which."""
        for flight in list(self._recent.values()):
            if flight.commit.exception() is not None:
                self.fail(flight.sent.sequence, flight.explicit)

    def _text(self) -> str:
        return f"producer {self._name!r} of stream {self._stream!r}"
