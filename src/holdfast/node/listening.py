"""Who is told how a pipeline is doing: listeners like Spark's StreamingQueryListener, on a thread of their own.

Guarantees:
    * The node never waits for a listener. One that is slow is told later; when it is very far behind, the oldest
      of what it has not heard is dropped, and that is said once.
    * A listener that raises is logged once, and called again the next time; it disturbs neither the node nor others.
    * `onQueryTerminated` comes last, and what came before the end has been told when the pipeline's `stop` or
      `awaitTermination` returns, for listeners that take no longer than `PATIENCE_S`.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.node.query_progress import Progress

_log = logging.getLogger("holdfast")
WAITING_MAX: Final = 1000
PATIENCE_S: Final = 5.0


@dataclass(frozen=True)
class QueryStartedEvent:
    """A pipeline has started; `runId` is this start's."""

    id: uuid.UUID
    runId: uuid.UUID
    name: str
    timestamp: str
    jobTags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class QueryProgressEvent:
    """Something was done within the last second."""

    progress: Progress


@dataclass(frozen=True)
class QueryIdleEvent:
    """Nothing came and nothing was to be done for a while."""

    id: uuid.UUID
    runId: uuid.UUID
    timestamp: str


@dataclass(frozen=True)
class QueryTerminatedEvent:
    """The pipeline has ended; `exception` is the message of what stopped it, `errorClassOnException` its class."""

    id: uuid.UUID
    runId: uuid.UUID
    exception: str | None = None
    errorClassOnException: str | None = None


class Listener:
    """Derive from it, override what you need, and give it to `pipeline.addListener`."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called when a pipeline has started."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called once a second while there is something to do."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Called now and then while there is nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Called when the pipeline has ended, for whatever reason."""


METHODS: Final = ("onQueryStarted", "onQueryProgress", "onQueryIdle", "onQueryTerminated")
Event = QueryStartedEvent | QueryProgressEvent | QueryIdleEvent | QueryTerminatedEvent
_METHOD_OF: Final[dict[type, str]] = dict(zip(Event.__args__, METHODS, strict=True))


@dataclass(eq=False)
class Listeners:
    """The listeners of one pipeline. From any thread."""

    pipeline: str
    _each: tuple[Any, ...] = ()
    _failed: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self._each)

    def add(self, listener: Any) -> None:
        """Tell this listener too; one that is there already is not told twice."""
        lacks = [name for name in METHODS if not callable(getattr(listener, name, None))]
        if lacks:
            raise TypeError(f"{listener!r} is no listener, it has no {lacks[0]}: derive from hf.Listener")
        if not any(known is listener for known in self._each):
            self._each = (*self._each, listener)

    def remove(self, listener: Any) -> None:
        """Tell this listener nothing more; one that is not there is nothing to remove."""
        self._each = tuple(known for known in self._each if known is not listener)
        self._failed.discard(id(listener))

    def tell(self, event: Event) -> None:
        method = _METHOD_OF[type(event)]
        for listener in self._each:
            try:
                getattr(listener, method)(event)
            except Exception:
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    _log.exception("the listener %r of the pipeline %s failed in %s", listener, self.pipeline, method)


class Announcer:
    """Tells listeners on a thread that is there as soon as there is anybody to tell."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._queue: queue.Queue[Event | None] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._dropped = False

    def announce(self, event: Event) -> None:
        """Have this told. It is for one thread, the node's, and returns at once."""
        if not self._listeners:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-listeners", daemon=True)
            self._thread.start()
        self._put(event)

    def close(self) -> None:
        """Nothing more will come."""
        if self._thread is not None:
            self._put(None)

    @property
    def is_current_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def wait(self) -> None:
        """Wait until all is told, but not for ever, and not on the thread that tells it."""
        if self._thread is not None and not self.is_current_thread:
            self._thread.join(PATIENCE_S)

    def _put(self, event: Event | None) -> None:
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self._make_room()
            self._queue.put_nowait(event)

    def _make_room(self) -> None:
        """The end has to be told, and what is newest is worth most: the oldest goes."""
        if not self._dropped:
            self._dropped = True
            _log.warning(
                "a listener of the pipeline %s is so slow that it is not told everything", self._listeners.pipeline
            )
        try:
            self._queue.get_nowait()
        except queue.Empty:
            return

    def _run(self) -> None:
        while True:
            event = self._queue.get()
            if event is None:
                return
            self._listeners.tell(event)
