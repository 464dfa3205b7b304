"""What the next snapshot of a state file may build on, noted in a small file beside it.

Invariants:
    * A note holds for one state file, not for its path: it carries the file's inode number, which no other file can
      have while that one is open. So a late writer's note says nothing about the file that took its place.
    * `forget_base` comes before a new state file takes a path: a file without a note is written whole.
    * The note is lost when the memory that the state is in is lost.
"""

from __future__ import annotations

import contextlib
import os
import threading

from holdfast.state import UnitState


def life_of(state: UnitState) -> int:
    """Return what tells this state file from every other that is, or will be, at its path while it is open."""
    return os.fstat(state.file.descriptor).st_ino


def base_of(state_path: str, life: int) -> str | None:
    """Return the snapshot that has all pages of this state file but those that changed since; None without one."""
    try:
        with open(_note(state_path), encoding="utf-8", errors="replace") as file:
            noted, _, path = file.read().partition(" ")
    except FileNotFoundError:
        return None
    return path if path and noted == str(life) else None


def note_base(state_path: str, life: int, path: str) -> None:
    """Note that all pages of the state file are in the snapshot at `path`, but for those that change from now on."""
    temporary = f"{_note(state_path)}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(f"{life} {path}")
        os.replace(temporary, _note(state_path))
    except OSError:
        # Without a note the next snapshot is written whole.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def forget_base(state_path: str) -> None:
    """Let the next snapshot be written whole."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_note(state_path))


def _note(state_path: str) -> str:
    return f"{state_path}.base"
