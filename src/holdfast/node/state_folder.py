"""Where the state of units lives on a host: in memory that outlives processes, not the machine.

Guarantees:
    * The folder is the user's own and nobody else may look into it; one in shared memory that somebody else made
      first is refused.
    * A pipeline's part is that of its store: a copy of the store elsewhere never meets the original's state.
    * State of a pipeline whose store is gone is removed when any pipeline of the user starts on the host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import zlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from holdfast.errors import StoreUnavailable, StoreUnfit

MEMORY_FOLDER: Final = "/dev/shm"
FREE_BYTES_MIN: Final = 256 << 20
_STORE_NAME: Final = "store"


def state_folder(chosen: str | None = None) -> str:
    """Return the folder for states: the one chosen, or `HOLDFAST_STATE_DIR`, or memory with room, or the disk."""
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


def units_folder(folder: str, pipeline_id: str, store_url: str) -> str:
    """Return the folder of a pipeline's units, made if need be. On every host, whoever comes first makes it."""
    _make_private(folder)
    mine = os.path.join(folder, f"{pipeline_id}-{zlib.crc32(_path_of(store_url).encode()):08x}")
    _make_private(mine)
    return mine


def claim(folder: str, pipeline_id: str, store_url: str) -> None:
    """Make the pipeline's part of the folder, note whose it is, and remove what belongs to stores that are gone."""
    try:
        mine = Path(units_folder(folder, pipeline_id, store_url))
        _note_whose(mine, _path_of(store_url))
    except OSError as error:
        raise StoreUnavailable(
            f"the folder for state {folder} takes no files ({error.strerror}): make room there, or name another one "
            "with HOLDFAST_STATE_DIR. Nothing committed is lost"
        ) from error
    for other in Path(folder).iterdir():
        with contextlib.suppress(OSError):
            store = (other / _STORE_NAME).read_text(encoding="utf-8")
            if other != mine and store and not (Path(store) / "pipeline.json").exists():
                shutil.rmtree(other)


def _note_whose(mine: Path, store: str) -> None:
    """Write down the store that a folder belongs to; a full disk does not matter where it is written down already."""
    with contextlib.suppress(FileNotFoundError):
        if (mine / _STORE_NAME).read_text(encoding="utf-8") == store:
            return
    note = mine / f"{_STORE_NAME}.{os.getpid()}"
    note.write_text(store, encoding="utf-8")
    os.replace(note, mine / _STORE_NAME)


def _path_of(store_url: str) -> str:
    return unquote(store_url.removeprefix("file://"))


def _make_private(folder: str) -> None:
    """Make a folder that only this user may look into; one that the user made elsewhere than in memory stays."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    is_mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_mine and os.path.dirname(folder) == MEMORY_FOLDER:
        raise StoreUnfit(
            f"the folder for state {folder} is not a folder of this user's ({os.getuid()}), it belongs to "
            f"{found.st_uid}: remove it, or name another one with HOLDFAST_STATE_DIR"
        )
    if is_mine and stat.S_IMODE(found.st_mode) & 0o077 and os.path.dirname(folder) == MEMORY_FOLDER:
        os.chmod(folder, 0o700)
