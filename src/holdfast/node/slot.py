"""What runs inside a task: an order carried out, piece by piece, with one sync at its end.

Guarantees:
    * Every piece of work gets one result. What is in a result is durable; after a failed sync nothing of the order is
      in one. What a failed piece of work appended is named by no result, and does not harm the others.
    * A unit's state is locked for as long as its wave runs, here or in another process of this host.
    * No pyspark: the same code runs in a Spark task, in the simulator's processes and in a test.
"""

from __future__ import annotations

import errno
import time
import traceback
from typing import Final

from holdfast.errors import HoldfastError, Retryable
from holdfast.errors import StateAbsent as StateAbsentError
from holdfast.node.messages import (
    AttachWork,
    DeliverWork,
    Failed,
    ForgetWork,
    IngestWork,
    Order,
    ProcessWork,
    Result,
    Skipped,
    StateAbsent,
    Work,
)
from holdfast.node.slot_context import SlotContext, SlotSetup
from holdfast.ports import Store

__all__ = ["Slot", "SlotContext", "SlotSetup", "warm"]

_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ESTALE}
)
"""What the operating system says when the same call may succeed later."""


class Slot:
    """Carries out orders, one at a time."""

    def __init__(self, setup: SlotSetup, node: str, store: Store | None = None) -> None:
        # Not at import: the node's own process knows slots by their setup alone, and starts without kernels.
        from holdfast.node.slot_edges import deliver, ingest
        from holdfast.node.slot_units import SlotUnits

        self.context = SlotContext(setup, node, store)
        self.units = SlotUnits(self.context)
        self._ingest = ingest
        self._deliver = deliver

    def perform(self, order: Order) -> list[Result]:
        """Return a result for each piece of work."""
        results: list[Result] = []
        for number, work in enumerate(order.works):
            stop = any(isinstance(result, Failed) for result in results)
            results.append(Skipped(number) if stop else self._guarded(number, work))
        started = time.perf_counter()
        try:
            self.context.sync()
        except (HoldfastError, OSError) as error:
            self.context.forget_writers()
            return [failure(number, error) for number in range(len(order.works))]
        return [_with_seconds(result, "sync", time.perf_counter() - started) for result in results]

    def close(self) -> None:
        """Let go of states and segments; a snapshot that is being written is given up."""
        self.units.close()
        self.context.forget_writers()

    def _guarded(self, number: int, work: Work) -> Result:
        try:
            return self._perform(work)
        except StateAbsentError as error:
            assert isinstance(work, ProcessWork | AttachWork), "only work on units needs state"
            stage, shard = self.units.let_go()
            return StateAbsent(stage, shard, str(error))
        except Exception as error:
            return failure(number, error)

    def _perform(self, work: Work) -> Result:
        match work:
            case ProcessWork():
                return self.units.process(work)
            case AttachWork():
                return self.units.attach(work)
            case IngestWork():
                return self._ingest(self.context, work)
            case DeliverWork():
                return self._deliver(self.context, work)
            case ForgetWork():
                return self.units.forget(work)


def failure(number: int, error: Exception) -> Failed:
    """Return what a slot answers for a piece of work that raised."""
    if isinstance(error, HoldfastError):
        return Failed(number, type(error).__name__, str(error), isinstance(error, Retryable))
    if isinstance(error, FileNotFoundError):
        # A frame that was moved to another segment after the order was written: the next order names the new place.
        return Failed(number, "StoreUnavailable", f"a file of the store is gone: {error}", retry=True)
    if isinstance(error, OSError) and error.errno in _PASSING:
        return Failed(number, "StoreUnavailable", f"{error}; nothing that was committed is lost", retry=True)
    return Failed(number, "PipelineFailed", "".join(traceback.format_exception(error)), retry=False)


def _with_seconds(result: Result, phase: str, seconds: float) -> Result:
    times = getattr(result, "seconds", None)
    if times is not None:
        times[phase] = times.get(phase, 0.0) + seconds
    return result


def warm() -> None:
    """Import everything a wave needs, and load its kernels."""
    # The operators' kernels have their signatures written down: importing them has loaded them.
    import holdfast.node.slot_edges
    import holdfast.node.slot_units  # noqa: F401
    from holdfast.state import warm as warm_state

    warm_state()
