"""A disk in memory that loses, tears, refuses and fills up, the same way for the same seed.

Invariants:
    * Of bytes that were not synced each 512-byte sector survives a loss of power or not, and so does each name that was
      made or removed without a sync of its folder. What was synced survives.
    * Operations are counted from 0 over all processes, so that each of them can be failed in turn.
    * What happened is counted in `tally` where it takes effect: a fault that met nothing does not count.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final

import msgspec

from holdfast.errors import AlreadyExists, StoreUnavailable

SECTOR_BYTES: Final = 512


class Crashed(BaseException):
    """The process that made this call has died. Not an `Exception`: nothing in the code under test may handle it."""


class How(Enum):
    """When an operation fails: before it did anything, after it did everything, or half-way."""

    BEFORE = "before"
    AFTER = "after"
    TORN = "torn"


class Fault(msgspec.Struct, frozen=True):
    """The operation with this number fails; with `crash` its process dies of it, else it gets an error."""

    number: int
    how: How
    crash: bool = False


class Operation(msgspec.Struct, frozen=True):
    """What a process wants done: all of it, or what is left where it is torn."""

    name: str
    path: str
    whole: Callable[[], object]
    torn: Callable[[], object]
    grows: bool = False
    """It needs space."""
    creates: bool = False
    """It makes a new file; of several that make the same one wins."""


class DiskFile:
    """Bytes as processes see them, and as they are on the disk."""

    def __init__(self, seen: bytes = b"", kept: bytes = b"") -> None:
        self.seen = bytearray(seen)
        self.kept = kept


class FaultyDisk:
    """What all processes of a test share."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.guard = threading.RLock()
        self.seen: dict[str, DiskFile] = {}
        self.kept: dict[str, DiskFile] = {}
        self.holders: dict[str, object] = {}
        """Who holds the lock of a path."""
        self.faults: dict[int, Fault] = {}
        self.wanted: dict[str, Fault] = {}
        """What is to happen to the next operation of a name, whatever its number."""
        self.interruptions: dict[int, Callable[[], None]] = {}
        self.operations: list[str] = []
        self.full = False
        self.tally: Counter[str] = Counter()
        self._unsynced: dict[str, set[str]] = {}
        """Per folder: the paths that were made or removed since its last sync."""
        self._tree: dict[str, dict[str, int]] = {}
        """Per folder: how many files each name in it stands for."""

    # Names

    def put(self, path: str, file: DiskFile) -> None:
        """Give a file a name that processes see."""
        if path not in self.seen:
            self._count(path, 1)
        self.seen[path] = file
        self._unsynced.setdefault(_folder(path), set()).add(path)

    def remove(self, path: str) -> None:
        """Take a name away from what processes see; nothing happens where there is none."""
        if self.seen.pop(path, None) is not None:
            self._count(path, -1)
            self._unsynced.setdefault(_folder(path), set()).add(path)

    def names_in(self, folder: str) -> list[str]:
        return sorted(self._tree.get(folder, ()))

    def exists(self, path: str) -> bool:
        return path in self.seen or path in self._tree

    def keep_names(self, folder: str) -> None:
        """Make a folder's names survive, as an fsync of it does."""
        for path in self._unsynced.pop(folder, ()):
            if path in self.seen:
                self.kept[path] = self.seen[path]
            else:
                self.kept.pop(path, None)

    def _count(self, path: str, change: int) -> None:
        for folder, name in _steps(path):
            names = self._tree.setdefault(folder, {})
            names[name] = names.get(name, 0) + change
            if names[name] == 0:
                del names[name]
            if not names:
                del self._tree[folder]

    def place(self, path: str, data: bytes) -> None:
        """Let a whole file be there and on the disk: what a test has done before, or as one step that cannot fail."""
        file = self.kept[path] = DiskFile(data, data)
        if path not in self.seen:
            self._count(path, 1)
        self.seen[path] = file

    # Operations

    def operate(self, owner: str, operation: Operation, check_alive: Callable[[], None]) -> bool:
        """Do one operation, or fail it where that was asked for. False says that the process dies of it."""
        name, path = operation.name, operation.path
        action = self.interruptions.pop(len(self.operations), None)
        if action is not None:
            action()
            check_alive()
        if operation.creates and path in self.seen:
            raise AlreadyExists(f"creating {path} failed: it is there already; choose another name")
        fault = self.faults.pop(len(self.operations), None) or self.wanted.pop(name, None)
        self.operations.append(f"{owner}: {name} {path}")
        if fault is None and operation.grows and self.full:
            self.tally["disk full"] += 1
            raise StoreUnavailable(f"{name} {path} failed: the disk is full; free some space and go on")
        if fault is None or fault.how is How.AFTER:
            operation.whole()
        elif fault.how is How.TORN:
            operation.torn()
        if fault is None:
            return True
        self.tally[f"{name} {'died in' if fault.crash else 'failed'}, {fault.how.value}"] += 1
        if not fault.crash:
            raise StoreUnavailable(f"{name} {path} failed ({fault.how.value}), as the test wanted")
        return False

    # Losing

    def lose(self) -> None:
        """Let every name and sector that was not synced survive or not."""
        changed = sorted(path for paths in self._unsynced.values() for path in paths)
        for path in changed:
            file = (self.seen if self.random.random() < 0.5 else self.kept).get(path)
            if file is not self.seen.get(path):
                self.tally["name lost" if file is None else "name came back"] += 1
            if file is None:
                self.kept.pop(path, None)
            else:
                self.kept[path] = file
        self._show_what_is_kept()
        for path in sorted(self.seen):
            file = self.seen[path]
            # What is whole on the disk takes no part: its length may depend on the machine, the seed's course may not.
            if file.kept != file.seen:
                file.kept = self.torn(file.kept, bytes(file.seen))
                self.tally["bytes lost"] += file.kept != file.seen
                file.seen = bytearray(file.kept)
        self.holders.clear()

    def _show_what_is_kept(self) -> None:
        self.seen = dict(self.kept)
        self._unsynced.clear()
        self._tree.clear()
        for path in self.seen:
            self._count(path, 1)

    def torn(self, old: bytes, new: bytes) -> bytes:
        """Return a mixture of the sectors of two versions of a file, of a length between theirs."""
        size = self.random.randint(min(len(old), len(new)), max(len(old), len(new)))
        mixed = bytearray(size)
        for start in range(0, size, SECTOR_BYTES):
            end = min(start + SECTOR_BYTES, size)
            # A sector that a file grew by and that was never written is zeros.
            source = new if self.random.random() < 0.5 else old
            mixed[start : start + len(source[start:end])] = source[start:end]
        return bytes(mixed)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _steps(path: str) -> Iterator[tuple[str, str]]:
    """Yield each folder of a path with the name that follows in it."""
    while path:
        folder, _, name = path.rpartition("/")
        yield folder, name
        path = folder
