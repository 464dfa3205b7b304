"""A store in memory whose disk loses, tears and refuses, the same way for the same seed.

Invariants:
    * What a sync, `write_new` or `replace` has returned for survives `crash`. Of everything else each 512-byte sector,
      each name and each rename survives or not, as the seed says.
    * A process that was killed or whose machine crashed can do nothing more: every call raises `Crashed`.
    * Operations are counted from 0 in the order they are made, so that a test can fail each of them in turn.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

import msgspec

from holdfast.errors import AlreadyExists, StoreUnavailable
from holdfast.log.store import validate_path
from holdfast.ports import Buffer, Capabilities, Lock

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


class _File:
    """Bytes as processes see them, and as they are on the disk."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self.kept = b""


class _Disk:
    """What all processes share."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.guard = threading.RLock()
        self.seen: dict[str, _File] = {}
        self.kept: dict[str, _File] = {}
        self.locks: dict[str, FaultyLock] = {}
        self.faults: dict[int, Fault] = {}
        self.interruptions: dict[int, Callable[[], None]] = {}
        self.operations: list[str] = []
        self.processes: list[FaultyStore] = []
        self.full = False

    def keep_name(self, path: str) -> None:
        """Make a folder's names survive, as an fsync of it does."""
        folder = path.rpartition("/")[0]
        for name in {name for name in (*self.kept, *self.seen) if name.rpartition("/")[0] == folder}:
            if name in self.seen:
                self.kept[name] = self.seen[name]
            else:
                del self.kept[name]

    def lose(self) -> None:
        """Let every name and sector that was not synced survive or not."""
        for path in sorted(set(self.seen) | set(self.kept)):
            file = (self.seen if self.random.random() < 0.5 else self.kept).get(path)
            if self.seen.get(path) is self.kept.get(path):
                file = self.seen[path]
            if file is None:
                self.kept.pop(path, None)
            else:
                self.kept[path] = file
        self.seen = dict(self.kept)
        for file in {id(file): file for file in self.seen.values()}.values():
            file.kept = self.torn(file.kept, bytes(file.seen))
            file.seen = bytearray(file.kept)
        self.locks.clear()

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


class FaultyLock:
    """A lock of one process; it ends with it."""

    def __init__(self, disk: _Disk, path: str, owner: FaultyStore) -> None:
        self._disk = disk
        self._path = path
        self.owner = owner

    def release(self) -> None:
        with self._disk.guard:
            if self._disk.locks.get(self._path) is self:
                del self._disk.locks[self._path]


class FaultyFile:
    """An append file, with the same rules as the local store's."""

    def __init__(self, store: FaultyStore, path: str, file: _File) -> None:
        self._store = store
        self._path = path
        self._file = file
        self._synced_size = 0
        self._name_synced = False
        self._broken = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return len(self._file.seen)

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        offset = self.size

        def torn() -> None:
            self._file.seen += data[: self._store.disk.random.randint(0, len(data))]

        try:
            self._check_usable()
            self._store.operate("append", self._path, lambda: self._file.seen.extend(data), torn, grows=True)
        except StoreUnavailable:
            # As the local store does: what a failed append left is cut off at once.
            del self._file.seen[offset:]
            raise
        return offset

    def write_at(self, offset: int, data: Buffer) -> None:
        new = bytes(data)
        assert offset + len(new) <= self.size, "write_at only overwrites"

        def write() -> None:
            self._file.seen[offset : offset + len(new)] = new

        # Eight bytes inside one sector are written whole or not at all.
        self._check_usable()
        self._store.operate("write_at", self._path, write, lambda: None)

    def sync(self) -> None:
        disk = self._store.disk

        def whole() -> None:
            self._file.kept = bytes(self._file.seen)
            if not self._name_synced:
                disk.keep_name(self._path)

        def torn() -> None:
            self._file.kept = disk.torn(self._file.kept, bytes(self._file.seen))

        try:
            self._check_usable()
            self._store.operate("sync", self._path, whole, torn)
        except StoreUnavailable:
            self._broken = True
            raise
        self._synced_size = self.size
        self._name_synced = True

    def truncate(self, size: int) -> None:
        assert size >= self._synced_size, "synced bytes are never cut off"
        self._store.operate(
            "truncate", self._path, lambda: self._file.seen.__delitem__(slice(size, None)), lambda: None
        )

    def close(self) -> None:
        """Close without syncing."""

    def _check_usable(self) -> None:
        if self._broken:
            raise StoreUnavailable(f"{self._path} takes nothing more, because a sync failed; go on in a new file")


class FaultyStore:
    """One process's view of a faulty disk. `process` gives another process's view of the same disk."""

    def __init__(self, seed: int = 0, owner: str = "process", *, lock: bool = True, disk: _Disk | None = None) -> None:
        self.owner = owner
        self.disk = disk if disk is not None else _Disk(seed)
        self.capabilities = Capabilities(append=True, durable_sync=True, exclusive_create=True, rename=True, lock=lock)
        self._alive = True
        self.disk.processes.append(self)

    @property
    def url(self) -> str:
        return f"memory:///{self.owner}"

    # Faults.
    @property
    def operations(self) -> list[str]:
        """What was done so far, in order: the number of an operation is its place here."""
        return self.disk.operations

    @property
    def alive(self) -> bool:
        return self._alive

    def process(self, owner: str) -> FaultyStore:
        """Return another process's view of the same disk."""
        return FaultyStore(owner=owner, lock=self.capabilities.lock, disk=self.disk)

    def fail_at(self, number: int, how: How, crash: bool = False) -> None:
        """Let the operation with this number (counted over all processes) fail."""
        self.disk.faults[number] = Fault(number, how, crash)

    def interrupt_at(self, number: int, action: Callable[[], None]) -> None:
        """Let another process do something just before the operation with this number."""
        self.disk.interruptions[number] = action

    def fill(self, full: bool = True) -> None:
        """Let every operation that needs space fail, or no longer."""
        self.disk.full = full

    def kill(self) -> None:
        """End this process: its locks are free, what it wrote is seen by others, nothing more is synced."""
        with self.disk.guard:
            self._alive = False
            for path in [path for path, lock in self.disk.locks.items() if lock.owner is self]:
                del self.disk.locks[path]

    def crash(self) -> None:
        """End the machine, with all processes on it, and lose what was not synced."""
        with self.disk.guard:
            for process in self.disk.processes:
                process._alive = False
            self.disk.processes.clear()
            self.disk.lose()

    def flip(self, path: str, offset: int) -> None:
        """Damage one byte, in what is seen and on the disk."""
        with self.disk.guard:
            file = self.disk.seen[path]
            file.seen[offset] ^= 0xFF
            file.kept = file.kept[:offset] + bytes([file.seen[offset]]) + file.kept[offset + 1 :]

    def operate(
        self, name: str, path: str, whole: Callable[[], object], torn: Callable[[], object], grows: bool = False
    ) -> None:
        """Do one operation, or fail it where that was asked for."""
        disk = self.disk
        with disk.guard:
            self._check_alive()
            action = disk.interruptions.pop(len(disk.operations), None)
            if action is not None:
                action()
            fault = disk.faults.pop(len(disk.operations), None)
            disk.operations.append(f"{self.owner}: {name} {path}")
            if fault is None and grows and disk.full:
                raise StoreUnavailable(f"{name} {path} failed: the disk is full; free some space and go on")
            if fault is None or fault.how is How.AFTER:
                whole()
            elif fault.how is How.TORN:
                torn()
            if fault is None:
                return
            if fault.crash:
                self.kill()
                raise Crashed(f"{self.owner} died {fault.how.value} {name} {path}")
            raise StoreUnavailable(f"{name} {path} failed ({fault.how.value}), as the test wanted")

    # The port.
    def create(self, path: str) -> FaultyFile:
        file = _File()
        self._check_new(path)
        self.operate("create", path, lambda: self.disk.seen.__setitem__(path, file), lambda: None, grows=True)
        return FaultyFile(self, path, file)

    def write_new(self, path: str, data: Buffer) -> None:
        self._check_new(path)
        self._write_whole("write_new", path, data)

    def replace(self, path: str, data: Buffer) -> None:
        validate_path(path)
        self._write_whole("replace", path, data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        with self.disk.guard:
            seen = self._file(path).seen
            return memoryview(bytes(seen[offset : None if length is None else offset + length]))

    def size(self, path: str) -> int:
        with self.disk.guard:
            return len(self._file(path).seen)

    def exists(self, path: str) -> bool:
        with self.disk.guard:
            self._check_alive()
            return validate_path(path) in self.disk.seen or any(name.startswith(f"{path}/") for name in self.disk.seen)

    def list(self, folder: str) -> list[str]:
        with self.disk.guard:
            self._check_alive()
            prefix = f"{validate_path(folder)}/" if folder else ""
            below = (name[len(prefix) :] for name in self.disk.seen if name.startswith(prefix))
            return sorted({name.split("/")[0] for name in below})

    def rename(self, source: str, target: str) -> None:
        def seen() -> None:
            self.disk.seen[target] = self.disk.seen.pop(source)

        def whole() -> None:
            seen()
            self.disk.keep_name(target)
            self.disk.keep_name(source)

        self._file(source)
        validate_path(target)
        self.operate("rename", source, whole, seen)

    def truncate(self, path: str, size: int) -> None:
        file = self._file(path)
        self.operate("truncate", path, lambda: file.seen.__delitem__(slice(size, None)), lambda: None)

    def delete(self, path: str) -> None:
        validate_path(path)
        names = sorted(name for name in self.disk.seen if name == path or name.startswith(f"{path}/"))

        def remove(some: Sequence[str]) -> None:
            for name in some:
                self.disk.seen.pop(name, None)

        self.operate("delete", path, lambda: remove(names), lambda: remove(names[::2]))

    def lock(self, path: str) -> Lock | None:
        with self.disk.guard:
            self._check_alive()
            if validate_path(path) in self.disk.locks:
                return None
            lock = self.disk.locks[path] = FaultyLock(self.disk, path, self)
            return lock

    def _write_whole(self, name: str, path: str, data: Buffer) -> None:
        file = _File()
        file.seen = bytearray(data)
        # Its bytes are synced before it gets its name.
        file.kept = bytes(data)

        def seen() -> None:
            self.disk.seen[path] = file

        def whole() -> None:
            seen()
            self.disk.keep_name(path)

        self.operate(name, path, whole, seen, grows=True)

    def _file(self, path: str) -> _File:
        self._check_alive()
        file = self.disk.seen.get(validate_path(path))
        if file is None:
            raise FileNotFoundError(path)
        return file

    def _check_new(self, path: str) -> None:
        with self.disk.guard:
            self._check_alive()
            if validate_path(path) in self.disk.seen:
                raise AlreadyExists(f"creating {path} failed: it is there already; choose another name")

    def _check_alive(self) -> None:
        if not self._alive:
            raise Crashed(f"{self.owner} has died")
