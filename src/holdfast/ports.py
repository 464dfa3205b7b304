"""The only doors to the outside: a store for files, and a clock.

Deciders take time as an argument and have no door at all. Runners and the log take these, so that the simulator can
hand them a disk that tears sectors and a clock that jumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

Buffer = bytes | bytearray | memoryview


class Capabilities(msgspec.Struct, frozen=True):
    """What a kind of store can do; it decides the layout of a stream (append to a segment, or one object a wave)."""

    append: bool
    durable_sync: bool
    exclusive_create: bool
    rename: bool
    lock: bool


class AppendFile(Protocol):
    """A new file that only its creator appends to. After a failed `sync` it takes nothing more."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers, one after the other, and return the offset of the first byte."""
        ...

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes that were appended before; readers see them at once, only a later `sync` makes them last."""
        ...

    def sync(self) -> None:
        """Return when every appended byte, and the file's name, will survive a crash of the machine."""
        ...

    def truncate(self, size: int) -> None:
        """Cut off what a failed append left behind; only for bytes that were never synced."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """Held until released or until the process ends."""

    def release(self) -> None: ...


class Store(Protocol):
    """A folder somewhere. Paths are relative, with `/`, checked, and never leave the folder."""

    @property
    def url(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    def create(self, path: str) -> AppendFile:
        """Create a file for appending, and its folders; `AlreadyExists` if it is there."""
        ...

    def write_new(self, path: str, data: Buffer) -> None:
        """Create a whole small file, durably; of several callers exactly one wins, the others get `AlreadyExists`."""
        ...

    def replace(self, path: str, data: Buffer) -> None:
        """Write a whole small file, durably; a reader sees the old or the new bytes, never a mixture."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        """Return the bytes (fewer if the file ends before); zero-copy where the store can. `FileNotFoundError`."""
        ...

    def size(self, path: str) -> int: ...
    def exists(self, path: str) -> bool: ...
    def list(self, folder: str) -> list[str]:
        """Return the names (not paths) in a folder, sorted; an empty list where there is no such folder."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def truncate(self, path: str, size: int) -> None:
        """Cut a file that nobody appends to any more; for the torn tail that a crash left behind."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it; nothing happens where there is none."""
        ...

    def lock(self, path: str) -> Lock | None:
        """Try to take an exclusive lock on a file of that name; None if another process holds it."""
        ...


class Clock(Protocol):
    """Wall time for stamps, steady time for waits."""

    def now_us(self) -> int: ...
    def monotonic(self) -> float: ...
