"""The state file of one unit: a sparse file, mapped once, that grows in steps without copying anything.

Invariants:
    * A page below `H_ALLOCATED` has its memory: kernels never fault on a full file system. `extend` raises instead.
    * The mapping covers the whole sparse file; growing within it moves nothing, so old views stay good.
    * A physical page is in at most one page table, or held by a snapshot, or free; `reclaim` restores that from the
      tables alone.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from holdfast.errors import StateAbsent, StoreUnavailable
from holdfast.model import NOT_DECODED
from holdfast.state.compiled import Halves, Octets, Reals, Words
from holdfast.state.layout import (
    H_ALLOCATED,
    H_FINGERPRINT,
    H_FORMAT,
    H_FREE_BASE,
    H_FREE_COUNT,
    H_GENERATION,
    H_HELD_BASE,
    H_IDENTITY,
    H_MAGIC,
    H_RESERVED,
    H_STAMP_BASE,
    HUGE_BYTES,
    HUGE_PAGES,
    IDENTITY_BYTES_MAX,
    IDENTITY_OFFSET,
    MAGIC,
    PAGE_BYTES,
    PAGES_MAX,
    S_PAGES,
    S_TABLE,
    STATE_FORMAT_VERSION,
    T_SHIFT,
    T_SLOTS,
    T_WIDTH,
    T_WRAP,
    TABLE_HEAD,
    Identity,
    PageSet,
    StateLayout,
    fingerprint,
    first_page,
    free_offset,
    held_offset,
    page_sets,
    stamp_offset,
    table_offset,
)

STEP_PAGES_MIN: Final = 16
STEP_PAGES_MAX: Final = HUGE_PAGES
"""2 MiB: giving so much memory to a file takes one millisecond."""
RESERVE_PAGES_MIN: Final = (256 << 20) // PAGE_BYTES
MADV_POPULATE_WRITE: Final = 23
MADV_COLLAPSE: Final = 25
ALIGN_ATTEMPTS: Final = 4
_NEW: Final = ".new"


def boot_id() -> str:
    """Return what identifies the running kernel: after a restart of the machine no state file is trusted."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class PageFile:
    """A mapped state file. `words`, `reals`, `halves`, `octets` are four views of the same bytes."""

    words: Words
    reals: Reals
    halves: Halves
    octets: Octets

    def __init__(self, path: str, descriptor: int, layout: StateLayout) -> None:
        self.path = path
        self.descriptor = descriptor
        self.layout = layout
        self.sets: tuple[PageSet, ...] = page_sets(layout)
        self.first_page = first_page(len(self.sets))
        self.mapped_pages = 0
        self.tables: tuple[Halves, ...] = ()
        self._mapping: mmap.mmap | None = None

    @classmethod
    def create(cls, path: str, identity: Identity, layout: StateLayout) -> PageFile:
        """Make a new file under a temporary name, locked; `install` gives it its own name.

        Files that others began and were killed over are deleted: they are as large as the state that they were to be.
        """
        for left in glob.glob(f"{glob.escape(path)}.*{_NEW}"):
            _unlink_if_dead(left)
        temporary = f"{path}.{os.getpid()}{_NEW}"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        file = cls(temporary, descriptor, layout)
        try:
            file.lock()
            file._format(identity)
        except BaseException:
            file.close()
            os.unlink(temporary)
            raise
        return file

    @classmethod
    def open(cls, path: str, layout: StateLayout) -> PageFile:
        """Map an existing file; `StateAbsent` where there is none that this version and layout can read."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            raise StateAbsent(f"no state file {path}: rebuild the unit from its snapshot and input") from None
        file = cls(path, descriptor, layout)
        try:
            file._check_format()
        except BaseException:
            file.close()
            raise
        return file

    def install(self, path: str) -> None:
        """Give a created file its name; a file that was there is dropped, its users find out at their next wave."""
        os.replace(self.path, path)
        self.path = path

    def close(self) -> None:
        """Let go of the file; the mapping goes when the last view of it does.

        Its own views go here: maps and operators refer to each other, and workers collect such rings seldom or never.
        """
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._view(np.zeros(0, np.int64))
            self._mapping = None

    def lock(self) -> bool:
        """Try to become the only process that works on this file."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def unlock(self) -> None:
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def is_current(self) -> bool:
        """Return whether the path still names this very file."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        own = os.fstat(self.descriptor)
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def identity(self) -> tuple[str, Identity]:
        """Return the boot id and the identity that the header names."""
        length = min(max(int(self.words[H_IDENTITY]), 0), IDENTITY_BYTES_MAX)
        raw = self.octets[IDENTITY_OFFSET : IDENTITY_OFFSET + length].tobytes()
        try:
            boot, pipeline, stage, shard = msgspec.msgpack.decode(raw, type=tuple[str, str, str, int])
        except NOT_DECODED as error:
            raise StateAbsent(
                f"state file {self.path} has no identity in its header ({error}): rebuild the unit"
            ) from error
        return boot, Identity(pipeline, stage, shard, int(self.words[H_GENERATION]))

    def refresh(self) -> None:
        """Map again if the file has become longer than the mapping (another process grew it)."""
        reserved = int(self.words[H_RESERVED])
        if reserved == self.mapped_pages:
            return
        size = os.fstat(self.descriptor).st_size
        if not self.first_page < reserved <= size // PAGE_BYTES:
            raise StateAbsent(
                f"state file {self.path} is {size} bytes long, expected {reserved} pages of {PAGE_BYTES}: it was cut "
                "or written over; rebuild the unit"
            )
        self._map(reserved)

    def require(self, pages: int) -> None:
        """Make sure that so many free pages are there; `StoreUnavailable` if the file system has no room."""
        while int(self.words[H_FREE_COUNT]) < pages:
            self._extend(pages - int(self.words[H_FREE_COUNT]))

    def resume(self, step: Callable[[int], int], end: int, pages: Callable[[int], int]) -> None:
        """Run a kernel that stops where free pages run out until it has come to `end`, with more pages each time.

        `step` goes on at a place and returns the next; it has to take the views anew, for growing may replace them.
        """
        done = step(0)
        while done < end:
            self.require(pages(done))
            done = step(done)

    def reclaim(self) -> None:
        """Derive the stack of free pages: whatever is in no table and not held."""
        allocated = int(self.words[H_ALLOCATED])
        taken = self.octets[held_offset() : held_offset() + allocated] != 0
        taken[: self.first_page] = True
        for page_set in self.sets:
            taken[self.pages_of(page_set)] = True
        free = np.flatnonzero(~taken)[::-1]
        base = free_offset() // 4
        self.halves[base : base + len(free)] = free
        self.words[H_FREE_COUNT] = len(free)

    def pages_of(self, page_set: PageSet) -> Halves:
        """Return the physical pages of a set, by logical number (a view of its table)."""
        pages = int(self.words[page_set.super + S_PAGES])
        return self.tables[page_set.number][TABLE_HEAD : TABLE_HEAD + pages]

    def set_of(self, name: str) -> PageSet:
        """Return a page set by its name."""
        return next(page_set for page_set in self.sets if page_set.name == name)

    def take_pages(self, page_set: PageSet, pages: int, wave: int) -> None:
        """Append free pages to a set, stamped with `wave`; there are so many."""
        free_end = free_offset() // 4 + int(self.words[H_FREE_COUNT])
        taken = self.halves[free_end - pages : free_end][::-1].copy()
        count = int(self.words[page_set.super + S_PAGES])
        self.words[H_FREE_COUNT] -= pages
        self.words[stamp_offset() // 8 + taken] = wave
        self.tables[page_set.number][TABLE_HEAD + count : TABLE_HEAD + count + pages] = taken
        self.words[page_set.super + S_PAGES] = count + pages

    @property
    def allocated_pages(self) -> int:
        """Return how many physical pages have memory (numbers below it, the tables' included)."""
        return int(self.words[H_ALLOCATED])

    @property
    def size_bytes(self) -> int:
        """Return the memory that the pages of this file take."""
        return (int(self.words[H_ALLOCATED]) - self.first_page) * PAGE_BYTES

    def _format(self, identity: Identity) -> None:
        reserved = self.first_page + RESERVE_PAGES_MIN
        os.ftruncate(self.descriptor, reserved * PAGE_BYTES)
        self._allocate(0, 2 * PAGE_BYTES)
        for page_set in self.sets:
            self._allocate(table_offset(page_set.number), TABLE_HEAD * 4)
        self._map(reserved)
        raw = msgspec.msgpack.encode((boot_id(), identity.pipeline, identity.stage, identity.shard))
        assert len(raw) <= IDENTITY_BYTES_MAX, "names of pipelines and stages are limited far below a header's room"
        self.octets[IDENTITY_OFFSET : IDENTITY_OFFSET + len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        self.words[H_IDENTITY] = len(raw)
        self.words[H_GENERATION] = identity.generation
        self.words[H_FORMAT] = STATE_FORMAT_VERSION
        self.words[H_FINGERPRINT] = fingerprint(self.layout)
        self.words[H_ALLOCATED] = self.first_page
        self.words[H_RESERVED] = reserved
        self.words[H_FREE_BASE] = free_offset() // 4
        self.words[H_HELD_BASE] = held_offset()
        self.words[H_STAMP_BASE] = stamp_offset() // 8
        for page_set in self.sets:
            self.words[page_set.super + S_TABLE] = table_offset(page_set.number) // 4
            table = self.tables[page_set.number]
            table[T_SHIFT], table[T_WIDTH], table[T_SLOTS] = page_set.shift, page_set.width, page_set.slots
            table[T_WRAP] = page_set.slots % (1 << page_set.shift)
        self._extend(STEP_PAGES_MIN)
        self.words[H_MAGIC] = MAGIC

    def _check_format(self) -> None:
        size = os.fstat(self.descriptor).st_size
        if size < (self.first_page + 1) * PAGE_BYTES:
            raise StateAbsent(
                f"state file {self.path} is {size} bytes long, too short for its header: rebuild the unit"
            )
        self._map(size // PAGE_BYTES)
        expected = (MAGIC, STATE_FORMAT_VERSION, fingerprint(self.layout))
        found = (int(self.words[H_MAGIC]), int(self.words[H_FORMAT]), int(self.words[H_FINGERPRINT]))
        if found != expected:
            raise StateAbsent(
                f"state file {self.path} has magic, version and layout {found}, expected {expected}: rebuild the unit"
            )

    def _map(self, pages: int) -> None:
        mapped = _map_aligned(self.descriptor, pages * PAGE_BYTES)
        self._view(np.frombuffer(mapped, dtype=np.int64))
        self._mapping = mapped
        self.mapped_pages = pages

    def _view(self, words: Words) -> None:
        self.words = words
        self.reals = words.view(np.float64)
        self.halves = words.view(np.int32)
        self.octets = words.view(np.uint8)
        starts = [table_offset(page_set.number) // 4 for page_set in self.sets]
        self.tables = tuple(self.halves[start : start + PAGES_MAX] for start in starts)

    def _allocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self.descriptor, offset, length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM):
                raise
            raise StoreUnavailable(
                f"state file {self.path} cannot grow by {length} bytes ({os.strerror(error.errno)}): "
                f"free memory or disk below {os.path.dirname(self.path)}, or give state_dir more room"
            ) from error

    def _extend(self, pages_min: int) -> None:
        allocated = int(self.words[H_ALLOCATED])
        used = allocated - self.first_page
        step = max(pages_min, min(max(used, STEP_PAGES_MIN), STEP_PAGES_MAX))
        if used + step > HUGE_PAGES // 2:
            # From there on the end is that of a huge page.
            step += -(used + step) % HUGE_PAGES
        limit = PAGES_MAX - TABLE_HEAD
        if allocated + step > limit:
            raise StoreUnavailable(
                f"state file {self.path} holds {used} pages of {PAGE_BYTES} bytes, the most is "
                f"{limit - self.first_page}: use more shards"
            )
        if allocated + step > int(self.words[H_RESERVED]):
            self._reserve(allocated + step)
        self._allocate(allocated * PAGE_BYTES, step * PAGE_BYTES)
        self._allocate_tables(allocated, allocated + step)
        self._populate(allocated, allocated + step)
        count = int(self.words[H_FREE_COUNT])
        base = free_offset() // 4
        # The lowest page is taken first, so that a new file is used from its start.
        self.halves[base : base + step + count] = np.concatenate(
            [np.arange(allocated + step - 1, allocated - 1, -1, dtype=np.int32), self.halves[base : base + count]]
        )
        self.words[H_ALLOCATED] = allocated + step
        self.words[H_FREE_COUNT] = count + step

    def _populate(self, start: int, end: int) -> None:
        """Let the processor know the new memory: else every 4 KiB costs a fault at its first write."""
        mapping = self._mapping
        assert mapping is not None, "the file is mapped"
        for page in range(start - start % HUGE_PAGES, end, HUGE_PAGES):
            try:
                if page + HUGE_PAGES > end:
                    raise OSError(errno.EINVAL, "not a whole huge page yet")
                mapping.madvise(MADV_COLLAPSE, page * PAGE_BYTES, HUGE_BYTES)
            except OSError:
                # No huge page to be had, or a system older than Linux 6.1 (and 5.14): it works, only slower.
                first = max(page, start)
                length = (min(page + HUGE_PAGES, end) - first) * PAGE_BYTES
                with suppress(OSError):
                    mapping.madvise(MADV_POPULATE_WRITE, first * PAGE_BYTES, length)

    def _allocate_tables(self, start: int, end: int) -> None:
        """Give memory to what describes the pages `[start, end)`; a set has at most as many pages as the file."""
        used_start = max(start - self.first_page, 0)
        used_end = end - self.first_page + TABLE_HEAD
        self._allocate(free_offset() + used_start * 4, (used_end - used_start) * 4)
        first = self.first_page if start == self.first_page else start
        self._allocate(held_offset() + first, end - first)
        self._allocate(stamp_offset() + first * 8, (end - first) * 8)
        for page_set in self.sets:
            self._allocate(table_offset(page_set.number) + used_start * 4, (used_end - used_start) * 4)

    def _reserve(self, pages: int) -> None:
        reserved = self.first_page + max(2 * (pages - self.first_page), RESERVE_PAGES_MIN)
        reserved = min(-(-reserved // HUGE_PAGES) * HUGE_PAGES, PAGES_MAX)
        os.ftruncate(self.descriptor, reserved * PAGE_BYTES)
        self.words[H_RESERVED] = reserved
        self._map(reserved)


def _unlink_if_dead(path: str) -> None:
    """Delete an unfinished file, unless the process that fills it holds its lock."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _map_aligned(descriptor: int, length: int) -> mmap.mmap:
    """Map a file at an address that is a multiple of a huge page; where that fails, at any address.

    The system places a mapping right below the one before, so one of the right size in between moves the next.
    """
    fillers = []
    for _ in range(ALIGN_ATTEMPTS):
        mapped = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        beyond = np.frombuffer(mapped, dtype=np.uint8, count=1).ctypes.data % HUGE_BYTES
        if beyond == 0:
            break
        mapped.close()
        fillers.append(mmap.mmap(-1, beyond))
    else:
        mapped = mmap.mmap(descriptor, length, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    for filler in fillers:
        filler.close()
    return mapped
