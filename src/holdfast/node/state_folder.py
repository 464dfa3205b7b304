"""Where the state of units lives on a host: in memory that outlives processes, not the machine.

Guarantees:
    * The folder is the user's own and nobody else may look into it.
    * State of a pipeline whose store is gone is removed when any pipeline of the user starts on the host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

MEMORY_FOLDER = "/dev/shm"
FREE_BYTES_MIN = 256 << 20
_STORE_NAME = "store"


def state_folder(chosen: str | None = None) -> str:
    """Return the folder for states: the one chosen, or `HOLDFAST_STATE_DIR`, or memory where there is room, or the disk."""
    given = chosen or os.environ.get("HOLDFAST_STATE_DIR")
    if given:
        return os.path.abspath(given)
    name = f"holdfast-{os.getuid()}"
    with contextlib.suppress(OSError):
        room = os.statvfs(MEMORY_FOLDER)
        if room.f_bavail * room.f_frsize >= FREE_BYTES_MIN:
            return f"{MEMORY_FOLDER}/{name}"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "holdfast", "state")


def claim(folder: str, pipeline_id: str, store_path: str) -> None:
    """Make the pipeline's part of the folder, note whose it is, and remove what belongs to stores that are gone."""
    mine = Path(folder) / pipeline_id
    mine.mkdir(mode=0o700, parents=True, exist_ok=True)
    (mine / _STORE_NAME).write_text(store_path, encoding="utf-8")
    for other in Path(folder).iterdir():
        with contextlib.suppress(OSError):
            catalog = Path((other / _STORE_NAME).read_text(encoding="utf-8")) / "pipeline.json"
            if other != mine and not catalog.exists():
                shutil.rmtree(other)


def release(folder: str, pipeline_id: str) -> None:
    """Remove a pipeline's state: it has ended, and a later start rebuilds what it needs from the store."""
    shutil.rmtree(Path(folder) / pipeline_id, ignore_errors=True)
