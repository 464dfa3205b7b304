"""Write prepared snapshots in the background of a worker process, one at a time, at low priority.

Guarantees:
    * The unit goes on while its pages are written; only `prepare` stops it (SGuard, section 3, steps 2 and 3).
    * A snapshot that cannot be written is given up: it has no manifest, its pages are deleted, the node stops asking
      for it, and the one before it serves.
    * However the writing ends, the snapshot's pages are let go.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec

from holdfast.checkpoint.base import base_of, note_base
from holdfast.checkpoint.snapshot_files import write_snapshot
from holdfast.ports import Store
from holdfast.state.snapshot import Snapshot

_log = logging.getLogger("holdfast.checkpoint")
NICE = 5


class SnapshotOrder(msgspec.Struct, frozen=True):
    """Where a snapshot goes, and the state file that it is of (`checkpoint.base.life_of`)."""

    path: str
    state_path: str
    life: int


class _GivenUp(Exception):
    """The writer is closing."""


class SnapshotWriter:
    """One background thread of a worker process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshot", initializer=_lower_priority)
        self._under_way: set[Future[None]] = set()
        self._closing = threading.Event()

    def write(self, order: SnapshotOrder, snapshot: Snapshot) -> None:
        """Take over a prepared snapshot, and return at once."""
        future = self._pool.submit(self._write, order, snapshot)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)

    def wait_until_written(self) -> None:
        """Return when everything that was taken over is written or given up."""
        wait(list(self._under_way))

    def close(self) -> None:
        """Give up what is being written, and return when its pages are let go."""
        self._closing.set()
        self._pool.shutdown(wait=True)

    def _write(self, order: SnapshotOrder, snapshot: Snapshot) -> None:
        with snapshot:
            try:
                base = base_of(order.state_path, order.life)
                write_snapshot(self._store, order.path, snapshot, base, self._go_on)
                note_base(order.state_path, order.life, order.path)
            except _GivenUp:
                self._discard(order.path, None)
            except Exception as error:
                _log.warning("the snapshot %s was not written", order.path, exc_info=True)
                self._discard(order.path, str(error))

    def _go_on(self) -> None:
        if self._closing.is_set():
            raise _GivenUp

    def _discard(self, path: str, reason: str | None) -> None:
        """Free the room that a snapshot took, which may be what it lacked, and tell the node."""
        with contextlib.suppress(Exception):
            self._store.delete(f"{path}/pages")
        if reason is not None:
            with contextlib.suppress(Exception):
                self._store.write_new(f"{path}/failed", reason.encode())


def _lower_priority() -> None:
    """On Linux a thread has a priority of its own: results come before checkpoints."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
