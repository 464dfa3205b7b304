"""Write prepared snapshots in the background of a worker process, one at a time, at low priority.

Guarantees:
    * The unit goes on while its pages are written; only `prepare` stops it (SGuard, section 3, steps 2 and 3).
    * A snapshot that cannot be written is given up: it has no manifest, the node stops asking for it, the one before serves.
    * What a state file's next snapshot may build on is noted beside the state file, so it is lost when that is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from holdfast.checkpoint.snapshot_files import write_snapshot
from holdfast.ports import Store
from holdfast.state.snapshot import Snapshot

_log = logging.getLogger("holdfast.checkpoint")
NICE = 5


class SnapshotWriter:
    """One background thread of a worker process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshot", initializer=_lower_priority)

    def write(self, state_path: str, path: str, snapshot: Snapshot) -> None:
        """Take over a prepared snapshot, and return at once."""
        self._pool.submit(self._write, state_path, path, snapshot)

    def close(self) -> None:
        """Return when nothing is being written any more."""
        self._pool.shutdown(wait=True, cancel_futures=False)

    def _write(self, state_path: str, path: str, snapshot: Snapshot) -> None:
        try:
            with snapshot:
                write_snapshot(self._store, path, snapshot, base_of(state_path))
            note_base(state_path, path)
        except Exception:
            _log.warning("the snapshot %s was not written", path, exc_info=True)
            with contextlib.suppress(Exception):
                self._store.write_new(f"{path}/failed", b"see the log of the executor")


def base_of(state_path: str) -> str | None:
    """Return the snapshot that the pages of a state file have last been written to."""
    try:
        with open(f"{state_path}.base", encoding="utf-8") as file:
            return file.read() or None
    except FileNotFoundError:
        return None


def note_base(state_path: str, path: str | None) -> None:
    """Note which snapshot a state file's next one may build on; None for a state that came from nowhere."""
    temporary = f"{state_path}.base.{os.getpid()}.{threading.get_ident()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(path or "")
    os.replace(temporary, f"{state_path}.base")


def _lower_priority() -> None:
    """On Linux a thread has a priority of its own: results come before checkpoints."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
