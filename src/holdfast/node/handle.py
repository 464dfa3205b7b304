"""What `pipeline.start()` returns: a handle with the words of PySpark's StreamingQuery.

Guarantees:
    * `awaitTermination` and `exception` give the error of `errors` that stopped the pipeline, with its message.
    * `stop` returns when the waves under way are committed and nothing runs any more; a second call does nothing. From
      a progress listener, which the pipeline itself waits for, it returns at once.
    * A listener that raises is reported and called again; it stops nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError, PipelineFailed

_log = logging.getLogger("holdfast")
RECENT = 100
Progress = dict[str, Any]


class PipelineHandle:
    """A running pipeline. Attribute names are PySpark's."""

    def __init__(self, pipeline_id: str, name: str, request_stop: Callable[[], None]) -> None:
        self.id = pipeline_id
        self.name = name
        self.request_stop = request_stop
        self._ended = threading.Event()
        self._error: HoldfastError | None = None
        self._recent: deque[Progress] = deque(maxlen=RECENT)
        self._listeners: list[Callable[[Progress], None]] = []
        self._reporting: int | None = None
        """The thread that listeners are called on."""

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What the pipeline is doing, in PySpark's form."""
        last = self.lastProgress
        available = bool(last and last["rowsAhead"])
        message = "Processing new data" if available else "Waiting for data to arrive"
        if not self.isActive:
            message = "Stopped" if self._error is None else f"Terminated with exception: {self._error}"
        return {"message": message, "isDataAvailable": available, "isTriggerActive": self.isActive and available}

    @property
    def lastProgress(self) -> Progress | None:
        """The newest progress report, None before the first."""
        return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[Progress]:
        return list(self._recent)

    def exception(self) -> HoldfastError | None:
        """Return why the pipeline stopped, None while it runs or after a clean stop."""
        return self._error

    def onProgress(self, listener: Callable[[Progress], None]) -> None:
        """Call `listener` with each progress report, on the node's own thread: it has to be quick."""
        self._listeners.append(listener)

    def stop(self) -> None:
        """Finish the waves under way, and return when the pipeline has stopped."""
        self.request_stop()
        if self._reporting != threading.get_ident():
            self._ended.wait()

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Return True when the pipeline has ended, False after `timeout` seconds; raise what stopped it."""
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True

    def progressed(self, progress: Progress) -> None:
        """Take a report from the runner."""
        self._recent.append(progress)
        self._reporting = threading.get_ident()
        for listener in list(self._listeners):
            try:
                listener(progress)
            except Exception:
                _log.exception("a progress listener of the pipeline %s failed", self.name)

    def ended(self, error: HoldfastError | None) -> None:
        """Take the end from the runner."""
        self._error = error
        self._ended.set()


def error_of(name: str, message: str) -> HoldfastError:
    """Return the error of that name in the tree; what is not in it is a failure of the pipeline as a whole."""
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, HoldfastError):
        return found(message)
    return PipelineFailed(message)
