"""A process's view of a faulty disk: the storage port over `FaultyDisk`.

Invariants:
    * What a sync, `write_new` or `replace` has returned for survives `crash`.
    * A process that was killed or whose machine crashed can do nothing more: every call raises `Crashed`.
    * A file whose sync failed takes nothing more, as the local store's does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from holdfast.errors import StoreUnavailable
from holdfast.log.store import validate_path
from holdfast.ports import Buffer, Capabilities, Lock
from holdfast.testing.faulty_disk import SECTOR_BYTES, Crashed, DiskFile, Fault, FaultyDisk, How, Operation

__all__ = ["SECTOR_BYTES", "Crashed", "Fault", "FaultyDisk", "FaultyStore", "How"]


_valid = lru_cache(1 << 14)(validate_path)


class FaultyLock:
    """A lock of one process; it ends with it."""

    def __init__(self, disk: FaultyDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        with self._disk.guard:
            if self._disk.holders.get(self._path) is self:
                del self._disk.holders[self._path]


class FaultyFile:
    """An append file, with the same rules as the local store's."""

    def __init__(self, store: FaultyStore, path: str, file: DiskFile) -> None:
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
            self._operate("append", lambda: self._file.seen.extend(data), torn, grows=True)
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
        self._operate("write_at", write, lambda: None)

    def sync(self) -> None:
        disk = self._store.disk

        def whole() -> None:
            self._file.kept = bytes(self._file.seen)
            if not self._name_synced:
                disk.keep_names(self._path.rpartition("/")[0])

        def torn() -> None:
            self._file.kept = disk.torn(self._file.kept, bytes(self._file.seen))

        try:
            self._check_usable()
            self._operate("sync", whole, torn)
        except StoreUnavailable:
            self._broken = True
            raise
        self._synced_size = self.size
        self._name_synced = True

    def truncate(self, size: int) -> None:
        assert size >= self._synced_size, "synced bytes are never cut off"
        self._operate("truncate", lambda: self._file.seen.__delitem__(slice(size, None)), lambda: None)

    def close(self) -> None:
        """Close without syncing."""

    def _operate(
        self, name: str, whole: Callable[[], object], torn: Callable[[], object], *, grows: bool = False
    ) -> None:
        self._store.operate(Operation(name, self._path, whole, torn, grows))

    def _check_usable(self) -> None:
        if self._broken:
            raise StoreUnavailable(f"{self._path} takes nothing more, because a sync failed; go on in a new file")


class FaultyStore:
    """One process's view of a faulty disk. `process` gives another process's view of the same disk."""

    def __init__(
        self, seed: int = 0, owner: str = "process", *, lock: bool = True, disk: FaultyDisk | None = None
    ) -> None:
        self.owner = owner
        self.disk = disk if disk is not None else FaultyDisk(seed)
        self.capabilities = Capabilities(append=True, durable_sync=True, exclusive_create=True, rename=True, lock=lock)
        self._alive = True
        self._machine: list[FaultyStore] = [self]
        self._locks: dict[str, FaultyLock] = {}

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
        """Return the view of another process on the same machine."""
        other = FaultyStore(owner=owner, lock=self.capabilities.lock, disk=self.disk)
        other._machine = self._machine
        self._machine.append(other)
        return other

    def outsider(self, owner: str) -> FaultyStore:
        """Return the view of a process on another machine: `crash` does not end it."""
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
            for lock in self._locks.values():
                lock.release()
            self._locks.clear()
            if self in self._machine:
                self._machine.remove(self)

    def crash(self) -> None:
        """End the machine, with all processes on it, and lose what was not synced."""
        with self.disk.guard:
            for process in self._machine:
                process._alive = False
                process._locks.clear()
            self._machine.clear()
            self.disk.lose()

    def flip(self, path: str, offset: int) -> None:
        """Damage one byte, in what is seen and on the disk."""
        with self.disk.guard:
            file = self.disk.seen[path]
            file.seen[offset] ^= 0xFF
            file.kept = file.kept[:offset] + bytes([file.seen[offset]]) + file.kept[offset + 1 :]

    def operate(self, operation: Operation) -> None:
        """Do one operation, or die of it, or raise what went wrong."""
        with self.disk.guard:
            self._check_alive()
            if not self.disk.operate(self.owner, operation, self._check_alive):
                self.kill()
                raise Crashed(f"{self.owner} died in {operation.name} {operation.path}")

    # The port.
    def create(self, path: str) -> FaultyFile:
        file = DiskFile()
        _valid(path)
        self.operate(Operation("create", path, lambda: self.disk.put(path, file), lambda: None, True, True))
        return FaultyFile(self, path, file)

    def write_new(self, path: str, data: Buffer) -> None:
        self._write_whole("write_new", path, data, creates=True)

    def replace(self, path: str, data: Buffer) -> None:
        self._write_whole("replace", path, data, creates=False)

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
            return self.disk.exists(_valid(path))

    def list(self, folder: str) -> list[str]:
        with self.disk.guard:
            self._check_alive()
            return self.disk.names_in(_valid(folder) if folder else "")

    def rename(self, source: str, target: str) -> None:
        disk = self.disk

        def seen() -> None:
            file = disk.seen[source]
            disk.remove(source)
            disk.put(target, file)

        def whole() -> None:
            seen()
            disk.keep_names(target.rpartition("/")[0])
            disk.keep_names(source.rpartition("/")[0])

        self._file(source)
        _valid(target)
        self.operate(Operation("rename", source, whole, seen))

    def truncate(self, path: str, size: int) -> None:
        file = self._file(path)
        self.operate(Operation("truncate", path, lambda: file.seen.__delitem__(slice(size, None)), lambda: None))

    def delete(self, path: str) -> None:
        _valid(path)
        names = [path] if path in self.disk.seen else self._below(path)

        def remove(some: Sequence[str]) -> None:
            for name in some:
                self.disk.remove(name)

        self.operate(Operation("delete", path, lambda: remove(names), lambda: remove(names[::2])))

    def lock(self, path: str) -> Lock | None:
        with self.disk.guard:
            self._check_alive()
            if _valid(path) in self.disk.holders:
                return None
            lock = self.disk.holders[path] = self._locks[path] = FaultyLock(self.disk, path)
            return lock

    def _below(self, folder: str) -> Sequence[str]:
        return sorted(name for name in self.disk.seen if name.startswith(f"{folder}/"))

    def _write_whole(self, name: str, path: str, data: Buffer, creates: bool) -> None:
        # Its bytes are synced before it gets its name.
        file = DiskFile(bytes(data), bytes(data))
        _valid(path)

        def whole() -> None:
            self.disk.put(path, file)
            self.disk.keep_names(path.rpartition("/")[0])

        self.operate(Operation(name, path, whole, lambda: self.disk.put(path, file), True, creates))

    def _file(self, path: str) -> DiskFile:
        self._check_alive()
        file = self.disk.seen.get(_valid(path))
        if file is None:
            raise FileNotFoundError(path)
        return file

    def _check_alive(self) -> None:
        if not self._alive:
            raise Crashed(f"{self.owner} has died")
