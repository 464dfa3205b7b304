"""How many bytes a stream has on disk, and waiting until there is room for more.

Invariants:
    * What is counted are the segments that are there: room appears when retention deletes one.
    * Files are only looked at when the count says that the stream may be full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from holdfast.errors import LogFull
from holdfast.log.reconcile import segment_paths
from holdfast.ports import Store

MESSAGE_EVERY_S = 1.0

_logger = logging.getLogger("holdfast.producer")


class Room:
    """The limit of one stream. Any thread may ask."""

    def __init__(self, store: Store, stream: str, size_bytes_max: int) -> None:
        self._store = store
        self._stream = stream
        self._size_bytes_max = size_bytes_max
        self._size_bytes = self.measure()

    def measure(self) -> int:
        """Return the bytes of all segments that are there."""
        total = 0
        for path in segment_paths(self._store, self._stream):
            try:
                total += self._store.size(path)
            except FileNotFoundError:
                continue
        return total

    def add(self, size_bytes: int) -> None:
        """Count bytes that were appended."""
        self._size_bytes += size_bytes

    def wait(self, timeout_s: float | None, make_room: Callable[[float], None]) -> None:
        """Return when the stream is not full; `LogFull` when the time is over.

        `make_room` is called with how long it may wait for something to change.
        """
        if self._size_bytes < self._size_bytes_max:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told = -MESSAGE_EVERY_S
        make_room(0.0)
        while True:
            self._size_bytes = self.measure()
            if self._size_bytes < self._size_bytes_max:
                return
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise LogFull(f"{self._text()} Let the pipeline catch up, or raise the limit; then send again.")
            if now - told >= MESSAGE_EVERY_S:
                _logger.warning("%s Waiting for the pipeline to catch up.", self._text())
                told = now
            make_room(MESSAGE_EVERY_S if deadline is None else min(MESSAGE_EVERY_S, deadline - now))

    def _text(self) -> str:
        return (
            f"stream {self._stream!r} of {self._store.url} is full: expected less than {self._size_bytes_max:,} bytes "
            f"of segments, found {self._size_bytes:,}."
        )
