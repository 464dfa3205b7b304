"""What `pipeline.start()` returns: a handle with the words of PySpark's StreamingQuery.

Guarantees:
    * `awaitTermination` raises, and `exception` gives, the error of `errors` that stopped the pipeline.
    * `stop` returns when the waves under way are committed and nothing runs any more; a second call does nothing. On
      a listener's thread it returns at once.
    * Asking takes no lock: the node puts a new `NodeStatistics` in the place of the old, and everything else follows
      from that.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from holdfast import errors
from holdfast.errors import HoldfastError, PipelineFailed
from holdfast.node.listening import (
    Announcer,
    Listeners,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from holdfast.node.query_progress import Progress, is_idle, progress_of, time_text
from holdfast.node.statistics import NodeStatistics

RECENT: Final = 100
IDLE_SAID_EVERY_US: Final = 10_000_000
"""As Spark's `spark.sql.streaming.noDataProgressEventInterval`."""


class PipelineHandle:
    """A running pipeline. Attribute names are PySpark's."""

    def __init__(
        self, statistics: NodeStatistics, request_stop: Callable[[], None], listeners: Listeners | None = None
    ) -> None:
        self.id = statistics.pipeline_id
        self.runId = statistics.run_id
        self.name = statistics.name
        self.request_stop = request_stop
        self.metrics_url: str | None = None
        self._listeners = Listeners(self.name) if listeners is None else listeners
        self._announcer = Announcer(self._listeners)
        self._ended = threading.Event()
        self._error: HoldfastError | None = None
        self._statistics = statistics
        self._recent: deque[Progress] = deque(maxlen=RECENT)
        self._idle_said_us = 0

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What the pipeline is doing, in PySpark's form."""
        now = self._statistics
        available = bool(now.rows_ahead)
        message = "Processing new data" if available else "Waiting for data to arrive"
        if now.trouble is not None:
            message = f"Failing: {now.trouble.subject} failed {now.trouble.times} times in a row and is tried again: "
            message += now.trouble.message
        if not self.isActive:
            message = "Stopped" if self._error is None else f"Terminated with exception: {self._error}"
        return {"message": message, "isDataAvailable": available, "isTriggerActive": self.isActive and available}

    @property
    def lastProgress(self) -> Progress | None:
        """The newest report of a second in which anything was done, None before the first."""
        return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[Progress]:
        return list(self._recent)

    def statistics(self) -> NodeStatistics:
        """Return what the node knew of itself at its last look, about a second ago; it never changes."""
        return self._statistics

    def exception(self) -> HoldfastError | None:
        """Return why the pipeline stopped, None while it runs or after a clean stop."""
        return self._error

    def addListener(self, listener: Any) -> None:
        """Tell a `Listener` (or PySpark's StreamingQueryListener) of what happens from now on."""
        self._listeners.add(listener)

    def removeListener(self, listener: Any) -> None:
        self._listeners.remove(listener)

    def stop(self) -> None:
        """Finish the waves under way, and return when the pipeline has stopped."""
        self.request_stop()
        if not self._announcer.is_current_thread:
            self._ended.wait()
            self._announcer.wait()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Return True when the pipeline has ended, False after `timeout` seconds; raise what stopped it."""
        if not self._ended.wait(timeout):
            return False
        self._announcer.wait()
        if self._error is not None:
            raise self._error
        return True

    # What the node's thread says

    def started(self) -> None:
        now = self._statistics
        self._announcer.announce(QueryStartedEvent(*self._ids(), self.name, time_text(now.started_us)))

    def progressed(self, statistics: NodeStatistics) -> None:
        """Take what the node knows now."""
        before, self._statistics = self._statistics, statistics
        if not is_idle(before, statistics):
            progress = progress_of(before, statistics)
            self._recent.append(progress)
            self._announcer.announce(QueryProgressEvent(progress))
        elif statistics.at_us - self._idle_said_us >= IDLE_SAID_EVERY_US:
            self._idle_said_us = statistics.at_us
            self._announcer.announce(QueryIdleEvent(*self._ids(), time_text(statistics.at_us)))

    def ended(self, error: HoldfastError | None) -> None:
        """Take the end from the runner."""
        self._error = error
        kind = None if error is None else type(error).__name__
        said = None if error is None else str(error)
        self._announcer.announce(QueryTerminatedEvent(*self._ids(), said, kind))
        self._announcer.close()
        self._ended.set()

    def _ids(self) -> tuple[uuid.UUID, uuid.UUID]:
        return uuid.UUID(self.id), uuid.UUID(self.runId)


def on_every_start(function: Callable[[PipelineHandle], None]) -> None:
    """Have `function` called with the handle of every pipeline that this process starts from now on."""
    _on_start.append(function)


def announce_start(handle: PipelineHandle) -> None:
    """Tell whoever asked for it that a pipeline has started."""
    for function in _on_start:
        function(handle)


_on_start: list[Callable[[PipelineHandle], None]] = []


def error_of(name: str, message: str) -> HoldfastError:
    """Return the error of that name in the tree; what is not in it is a failure of the pipeline as a whole."""
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, HoldfastError):
        return found(message)
    return PipelineFailed(message)
