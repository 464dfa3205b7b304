"""A store in a folder of a local file system.

Invariants:
    * `write_new`, `replace` and a returned `AppendFile.sync` survive a crash of the machine, names included.
    * A file whose sync failed takes nothing more: the kernel may have dropped what it could not write.
    * A view that `read` returned stays valid after the file has grown, was replaced or was deleted. The store itself
      does not keep a deleted file's room for long: it lets go of it when it maps another file.
    * A folder is there while something is in it: it goes with its last file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import shutil
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from holdfast.errors import AlreadyExists, HoldfastError, StoreUnavailable, StoreUnfit
from holdfast.log.store import is_name, validate_path
from holdfast.ports import Buffer, Capabilities, Lock

MAPS_MAX: Final = 256
"""How many files a store keeps mapped; each costs a file descriptor."""
FOLDERS_MAX: Final = 1024
"""How many folders a store knows to be durable: each snapshot has one of its own."""

_BUFFERS_PER_WRITE: Final = 512
_FOLDER_ATTEMPTS: Final = 5
_NO_BYTES: Final = memoryview(b"")
T = TypeVar("T")


def _failure(action: str, path: Path, error: OSError) -> HoldfastError:
    """Return our error for what the operating system said."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"{action} {path} failed: the disk is full or the quota is used up ({error.strerror}); "
            "nothing that was committed is lost; free some space and go on"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        return StoreUnfit(
            f"{action} {path} failed: {error.strerror}; give a folder that this process may write to (nothing was "
            "changed)"
        )
    return StoreUnavailable(
        f"{action} {path} failed: {error.strerror}; nothing that was committed is lost; check the disk and try again"
    )


@contextlib.contextmanager
def _named(action: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into our error; a file that is not there stays `FileNotFoundError`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except FileExistsError as error:
        raise AlreadyExists(f"{action} {path} failed: it is there already; choose another name") from error
    except OSError as error:
        raise _failure(action, path, error) from error


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: Path) -> None:
    """Create a folder and those above it, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            new.mkdir()
        # Also where another process has just made it: it may not have synced it yet.
        _sync_folder(new.parent)


def _in_folder(folder: Path, act: Callable[[], T]) -> T:
    """Do what needs a folder, and make the folder where it is missing."""
    for _ in range(_FOLDER_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return act()
        # Whoever deletes the last file in a folder deletes the folder: it may go again before it is used.
        with contextlib.suppress(FileNotFoundError):
            _make_folders(folder)
    return act()


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> int:
    """Write all buffers in order, whatever the kernel takes at a time, and return their size."""
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    size = sum(view.nbytes for view in views)
    position = 0
    while position < len(views):
        written = os.writev(descriptor, views[position : position + _BUFFERS_PER_WRITE])
        while position < len(views) and written >= views[position].nbytes:
            written -= views[position].nbytes
            position += 1
        if written:
            views[position] = views[position][written:]
    return size


class LocalAppendFile:
    """A file that this process made and alone appends to."""

    def __init__(self, path: str, absolute: Path, descriptor: int, sync_name: Callable[[Path], None]) -> None:
        self._path = path
        self._absolute = absolute
        self._descriptor = descriptor
        self._sync_name = sync_name
        self._size = 0
        self._synced_size = 0
        self._name_synced = False
        self._broken: str | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all buffers and return the offset of the first byte; what fails half-way is cut off again."""
        self._check_usable()
        offset = self._size
        try:
            self._size += _write_all(self._descriptor, buffers)
        except OSError as error:
            asked = sum(memoryview(buffer).nbytes for buffer in buffers)
            try:
                self.truncate(offset)
            except StoreUnavailable as failure:
                self._broken = str(failure)
            raise _failure(f"appending {asked} bytes at offset {offset} to", self._absolute, error) from error
        return offset

    def write_at(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes that were appended before."""
        self._check_usable()
        view = memoryview(data).cast("B")
        assert offset + view.nbytes <= self._size, "write_at only overwrites"
        with _named(f"overwriting {view.nbytes} bytes at offset {offset} of", self._absolute):
            while view.nbytes:
                written = os.pwrite(self._descriptor, view, offset)
                offset += written
                view = view[written:]

    def sync(self) -> None:
        """Return when every appended byte and the file's name are durable; a failure is final for this file."""
        self._check_usable()
        try:
            with _named("syncing", self._absolute):
                os.fdatasync(self._descriptor)
                if not self._name_synced:
                    self._sync_name(self._absolute.parent)
        except (HoldfastError, FileNotFoundError) as error:
            self._broken = str(error)
            raise
        self._name_synced = True
        self._synced_size = self._size

    def truncate(self, size: int) -> None:
        """Cut off bytes that were never synced."""
        assert size >= self._synced_size, "synced bytes are never cut off"
        with _named(f"cutting to {size} bytes", self._absolute):
            os.ftruncate(self._descriptor, size)
            os.lseek(self._descriptor, size, os.SEEK_SET)
        self._size = size

    def close(self) -> None:
        """Close without syncing; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_usable(self) -> None:
        assert self._descriptor >= 0, f"{self._path} is closed"
        if self._broken is not None:
            raise StoreUnavailable(
                f"{self._absolute} takes nothing more, because an earlier write or sync failed ({self._broken}); "
                "go on in a new file"
            )


class LocalLock:
    """A flock; it ends with the process at the latest."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others have the lock; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class LocalStore:
    """A folder of a local file system (or of one that all machines mount). Safe to use from many threads."""

    capabilities = Capabilities(append=True, durable_sync=True, exclusive_create=True, rename=True, lock=True)

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()
        self._text_root = f"{self._root}/"
        self._maps: OrderedDict[str, tuple[int, memoryview]] = OrderedDict()
        self._maps_lock = threading.Lock()
        self._durable_folders: dict[Path, int] = {}

    @property
    def root(self) -> Path:
        return self._root

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def absolute(self, path: str) -> Path:
        """Return where a path of the store is in the file system."""
        return self._root / validate_path(path)

    def create(self, path: str) -> LocalAppendFile:
        absolute = self.absolute(path)
        with _named("creating", absolute):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = _in_folder(absolute.parent, lambda: os.open(absolute, flags, 0o644))
        return LocalAppendFile(path, absolute, descriptor, self._sync_name)

    def write_new(self, path: str, data: Buffer) -> None:
        absolute = self.absolute(path)
        with _named(f"writing {memoryview(data).nbytes} bytes to", absolute):
            temporary = self._write_temporary(absolute, data)
            try:
                # Unlike a rename, a link never replaces: of several callers exactly one wins.
                os.link(temporary, absolute)
            finally:
                os.unlink(temporary)
            self._sync_name(absolute.parent)

    def replace(self, path: str, data: Buffer) -> None:
        absolute = self.absolute(path)
        with _named(f"writing {memoryview(data).nbytes} bytes to", absolute):
            temporary = self._write_temporary(absolute, data)
            try:
                os.rename(temporary, absolute)
            except OSError:
                os.unlink(temporary)
                raise
            self._sync_name(absolute.parent)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> memoryview:
        absolute = self._text_root + validate_path(path)
        status = os.stat(absolute)
        end = status.st_size if length is None else min(offset + length, status.st_size)
        with self._maps_lock:
            inode, view = self._maps.get(path, (-1, _NO_BYTES))
            # A file that grew is mapped again only for bytes that the map lacks: a journal's mark is read all the time.
            if inode == status.st_ino and end <= view.nbytes <= status.st_size:
                self._maps.move_to_end(path)
            else:
                view = self._map(path, absolute)
        return view[offset:end]

    def size(self, path: str) -> int:
        return os.stat(self._text_root + validate_path(path)).st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(self._text_root + validate_path(path))

    def list(self, folder: str) -> list[str]:
        absolute = self.absolute(folder) if folder else self._root
        with _named("listing", absolute):
            try:
                # A dot begins the name of a file that is not finished; other names that no path can have are not ours.
                return sorted(name for name in os.listdir(absolute) if is_name(name))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def rename(self, source: str, target: str) -> None:
        origin, goal = self.absolute(source), self.absolute(target)
        with _named(f"renaming to {target}", origin):
            _in_folder(goal.parent, lambda: os.rename(origin, goal))
            self._sync_name(goal.parent)
            if origin.parent != goal.parent:
                _sync_folder(origin.parent)
        self._forget(source)

    def truncate(self, path: str, size: int) -> None:
        absolute = self.absolute(path)
        self._forget(path)
        with _named(f"cutting to {size} bytes", absolute):
            os.truncate(absolute, size)

    def delete(self, path: str) -> None:
        absolute = self.absolute(path)
        self._forget(path)
        with _named("deleting", absolute):
            try:
                os.unlink(absolute)
            except FileNotFoundError:
                return
            except (IsADirectoryError, PermissionError):
                if not stat.S_ISDIR(os.lstat(absolute).st_mode):
                    raise
                # Somebody may be adding to the folder: what is left then is deleted by the next call.
                shutil.rmtree(absolute, ignore_errors=True)
        self._remove_empty(absolute.parent)

    def lock(self, path: str) -> Lock | None:
        absolute = self.absolute(path)
        with _named("locking", absolute):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = _in_folder(absolute.parent, lambda: os.open(absolute, flags, 0o644))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
        return LocalLock(descriptor)

    def _write_temporary(self, absolute: Path, data: Buffer) -> Path:
        """Write and sync a file beside `absolute`, under a name that `list` does not show."""
        # Process ids come again, on other hosts and in other containers: what nobody else can have chosen is random.
        temporary = absolute.with_name(f".{absolute.name}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = _in_folder(absolute.parent, lambda: os.open(temporary, flags, 0o644))
        try:
            _write_all(descriptor, [data])
            os.fsync(descriptor)
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        return temporary

    def _sync_name(self, folder: Path) -> None:
        """Make the names in a folder survive a crash, and the folder's own, whoever made it.

        Another process may have made it a moment ago, and died before it synced the folder above.
        """
        _sync_folder(folder)
        while folder != self._root:
            inode = os.stat(folder).st_ino
            if self._durable_folders.get(folder) == inode:
                return
            _sync_folder(folder.parent)
            self._note_durable(folder, inode)
            folder = folder.parent

    def _note_durable(self, folder: Path, inode: int) -> None:
        """Remember a folder; of many, those that were met longest ago are forgotten: they are synced once more."""
        with self._maps_lock:
            self._durable_folders[folder] = inode
            while len(self._durable_folders) > FOLDERS_MAX:
                del self._durable_folders[next(iter(self._durable_folders))]

    def _remove_empty(self, folder: Path) -> None:
        """Remove a folder that has become empty, and those above it."""
        with contextlib.suppress(OSError):
            while folder != self._root:
                os.rmdir(folder)
                folder = folder.parent

    def _map(self, path: str, absolute: str) -> memoryview:
        """Map a whole file anew. Its last views keep an older map alive, so nobody's bytes go away."""
        if path not in self._maps:
            self._forget_deleted()
        descriptor = os.open(absolute, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size == 0:
                return _NO_BYTES
            view = memoryview(mmap.mmap(descriptor, status.st_size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)
        self._maps[path] = (status.st_ino, view)
        self._maps.move_to_end(path)
        while len(self._maps) > MAPS_MAX:
            self._maps.popitem(last=False)
        return view

    def _forget_deleted(self) -> None:
        """Let go of files that other processes have deleted: a map keeps the room of a whole segment."""
        for known in [known for known in self._maps if not os.path.exists(self._text_root + known)]:
            del self._maps[known]

    def _forget(self, path: str) -> None:
        """Let go of the maps of a file, or of all files of a folder."""
        with self._maps_lock:
            for known in [known for known in self._maps if known == path or known.startswith(f"{path}/")]:
                del self._maps[known]
