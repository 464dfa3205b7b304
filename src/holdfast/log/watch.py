"""Wait for files of a local store to change, without polling.

Invariants:
    * A change or a `wake` that comes after one `wait` has returned is seen by the next: none is missed in between.
    * Where the system has no more inotify instances to give, `wait` returns often instead of never.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import inotify_simple

from holdfast.log.local_store import LocalStore
from holdfast.ports import Store

POLL_INTERVAL_S: Final = 0.02

_MASK: Final = (
    inotify_simple.flags.CREATE
    | inotify_simple.flags.MODIFY
    | inotify_simple.flags.MOVED_TO
    | inotify_simple.flags.MOVED_FROM
    | inotify_simple.flags.DELETE
    | inotify_simple.flags.DELETE_SELF
)


class Watch:
    """Wait on folders (or files) that may not exist yet. `wake` may be called from any thread, `wait` from one."""

    def __init__(self, paths: Iterable[str | Path] = ()) -> None:
        self._wanted: list[Path] = []
        self._watched: dict[Path, int] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._inotify: inotify_simple.INotify | None = None
        # The number of instances is limited for each user; a store in memory has none at all.
        with contextlib.suppress(OSError):
            self._inotify = inotify_simple.INotify(inheritable=False, nonblocking=True)
            self._epoll.register(self._inotify.fileno(), select.EPOLLIN)
        self.add(*paths)

    def fileno(self) -> int:
        """Return a descriptor that is readable when `wait` would return at once."""
        return self._epoll.fileno()

    def add(self, *paths: str | Path) -> None:
        """Watch more paths; of one that does not exist, the nearest folder that does, until it appears."""
        self._wanted += [Path(path) for path in paths if Path(path) not in self._wanted]
        self._attach()

    def watch_only(self, *paths: str | Path) -> None:
        """Watch `paths`, and no longer the others."""
        self._wanted = [Path(path) for path in paths]
        for path in [path for path in self._watched if path not in self._wanted]:
            self._detach(path)
        self._attach()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when something changed or `wake` was called, False when the time is over."""
        if self._inotify is None and (timeout_s is None or timeout_s > POLL_INTERVAL_S):
            self._epoll.poll(POLL_INTERVAL_S)
            self._drain()
            return True
        ready = self._epoll.poll(timeout_s)
        self._drain()
        return bool(ready)

    def wake(self) -> None:
        """Make the present or the next `wait` return."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Give the descriptors back; a second call does nothing."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake)
            if self._inotify is not None:
                self._inotify.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._inotify is not None:
            for event in self._inotify.read(timeout=0):
                if event.mask & (inotify_simple.flags.IGNORED | inotify_simple.flags.DELETE_SELF):
                    self._watched = {path: wd for path, wd in self._watched.items() if wd != event.wd}
            self._attach()

    def _attach(self) -> None:
        if self._inotify is None:
            return
        needed: set[Path] = set()
        for path in self._wanted:
            if path in self._watched:
                needed.add(path)
                continue
            needed.add(self._attach_nearest(path))
        for path in [path for path in self._watched if path not in needed]:
            self._detach(path)

    def _attach_nearest(self, path: Path) -> Path:
        """Watch `path` or the nearest folder above it that exists, and return which."""
        assert self._inotify is not None, "only called with inotify"
        for candidate in (path, *path.parents):
            if candidate in self._watched and candidate != path and not _next_exists(candidate, path):
                return candidate
            try:
                self._watched[candidate] = self._inotify.add_watch(candidate, _MASK)
            except OSError:
                continue
            if candidate != path and _next_exists(candidate, path):
                # It appeared between the two calls.
                return self._attach_nearest(path)
            return candidate
        return path

    def _detach(self, path: Path) -> None:
        assert self._inotify is not None, "only called with inotify"
        watched = self._watched.pop(path)
        with contextlib.suppress(OSError):
            self._inotify.rm_watch(watched)


def _next_exists(folder: Path, path: Path) -> bool:
    """Return whether the part of `path` that follows `folder` is there now."""
    return (folder / path.relative_to(folder).parts[0]).exists()


def watch_store(store: Store, *paths: str) -> Watch | None:
    """Return a watch on paths of a store, None where the store cannot tell of changes."""
    return Watch(store.absolute(path) for path in paths) if isinstance(store, LocalStore) else None
