"""A snapshot of a unit: a copy of its page table, and pages that do not change until they are written out.

Invariants:
    * Preparing copies page numbers only (MMM, section 4.4). Each page is held until the iteration has passed it; a
      wave that wants to change it before gets a copy.
    * A page that is passed is free for writing at once, in whichever process the next wave runs.
    * The owner holds a lock on `<state file>.snapshot`. When it dies, the next `begin` finds the lock free and drops
      what was held.
    * Only truth is in a snapshot: records and heap, with their counters. Pages restore in any order.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from holdfast.errors import SnapshotCorrupt, StateBusy
from holdfast.state.layout import (
    H_SNAPSHOT,
    H_STAMP_BASE,
    PAGE_BYTES,
    S_PAGES,
    S_TAIL,
    SNAPSHOT_ACTIVE,
    SNAPSHOT_WRITTEN,
    TABLE_HEAD,
    fingerprint,
    held_offset,
)
from holdfast.state.pages import PageFile
from holdfast.state.soundness import tail_limit


class SnapshotHead(msgspec.Struct, frozen=True):
    """All of a snapshot that is not a page. `tails` and `pages` are of the truth sets, in order of their numbers."""

    fingerprint: int
    wave: int
    bucket_end: int
    meta: bytes
    tails: list[int]
    pages: list[int]


class SnapshotPage(msgspec.Struct, frozen=True):
    """One page: where it belongs, and its bytes (a view that is good until the next page is asked for)."""

    set_number: int
    logical: int
    data: memoryview


class Snapshot:
    """A prepared snapshot. Iterate `pages` (in any thread), then `release`; it is also a context manager."""

    def __init__(self, file: PageFile, head: SnapshotHead, lock: int) -> None:
        self.head = head
        self._octets = file.octets
        self._words = file.words
        self._held = file.octets[held_offset() : held_offset() + file.mapped_pages]
        self._lock = lock
        truth = [page_set for page_set in file.sets if page_set.truth]
        self._tables = [(page_set.number, file.pages_of(page_set).copy()) for page_set in truth]
        stamps = int(file.words[H_STAMP_BASE])
        self._stamps = [file.words[stamps + table] for _, table in self._tables]

    @property
    def wave(self) -> int:
        """Return what the next increment passes as `since`."""
        return self.head.wave

    @property
    def pages_count(self) -> int:
        return sum(len(table) for _, table in self._tables)

    @property
    def pages_by_set(self) -> dict[int, int]:
        """Return how many pages each set has in this snapshot."""
        return {number: len(table) for number, table in self._tables}

    def hold(self) -> None:
        """Ask every wave from now on to copy a page of this snapshot before it changes it."""
        for _, table in self._tables:
            self._held[table] = 1
        self._words[H_SNAPSHOT] = SNAPSHOT_ACTIVE

    def pages(self, since: int = -1) -> Iterator[SnapshotPage]:
        """Give each page that changed after the wave `since` (default: every page), once.

        `since` is the `wave` of an earlier snapshot of this file, or of the one that it was restored from.
        """
        changed = [stamps > since for stamps in self._stamps]
        for (_, table), is_changed in zip(self._tables, changed, strict=True):
            self._held[table[~is_changed]] = 0
        octets = self._octets.data
        for (number, table), is_changed in zip(self._tables, changed, strict=True):
            for logical in np.flatnonzero(is_changed).tolist():
                physical = int(table[logical])
                start = physical * PAGE_BYTES
                yield SnapshotPage(number, logical, octets[start : start + PAGE_BYTES].toreadonly())
                self._held[physical] = 0

    def release(self) -> None:
        """Hold nothing any more. Call it when everything is written, or given up; a second call does nothing."""
        if self._lock < 0:
            return
        for _, table in self._tables:
            self._held[table] = 0
        self._words[H_SNAPSHOT] = SNAPSHOT_WRITTEN
        os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def take_snapshot_lock(path: str) -> int | None:
    """Return a descriptor that holds the snapshot lock of a state file; None while another snapshot lives."""
    descriptor = os.open(f"{path}.snapshot", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return descriptor


def prepare(file: PageFile, wave: int, bucket_end: int, meta: bytes) -> Snapshot:
    """Make a snapshot of a file whose last wave is finished; `StateBusy` while there is another one."""
    lock = take_snapshot_lock(file.path)
    if lock is None:
        raise StateBusy(f"a snapshot of {file.path} is still being written: wait for it, or release it")
    drop_held(file)
    truth = [page_set for page_set in file.sets if page_set.truth]
    tails = [int(file.words[page_set.super + S_TAIL]) for page_set in truth]
    pages = [int(file.words[page_set.super + S_PAGES]) for page_set in truth]
    head = SnapshotHead(fingerprint(file.layout), wave, bucket_end, meta, tails, pages)
    snapshot = Snapshot(file, head, lock)
    snapshot.hold()
    return snapshot


def settle_snapshot(file: PageFile) -> None:
    """Drop what a finished or dead snapshot held; nothing happens while one lives. Under the unit's lock."""
    state = int(file.words[H_SNAPSHOT])
    if state == SNAPSHOT_ACTIVE:
        lock = take_snapshot_lock(file.path)
        if lock is None:
            return
        os.close(lock)
        drop_held(file)
    elif state == SNAPSHOT_WRITTEN:
        drop_held(file)


def drop_held(file: PageFile) -> None:
    """Hold no page, and find again those that only a snapshot needed. No snapshot lives."""
    if file.words[H_SNAPSHOT] == 0:
        return
    file.octets[held_offset() : held_offset() + file.allocated_pages] = 0
    file.reclaim()
    file.words[H_SNAPSHOT] = 0


def fill(file: PageFile, head: SnapshotHead, pages: Iterable[tuple[int, int, memoryview | bytes]]) -> None:
    """Put the pages of a snapshot (set number, logical page, bytes), in any order, into a new file.

    Of several with the same place the last one stays: pass a full snapshot, then its increments, oldest first.
    """
    if head.fingerprint != fingerprint(file.layout):
        raise SnapshotCorrupt(
            f"a snapshot for {file.path} has layout {head.fingerprint}, expected {fingerprint(file.layout)}: "
            "the query has changed since; use a snapshot of this query, or replay"
        )
    missing = _make_tables(file, head)
    for number, logical, data in pages:
        if number not in missing or not 0 <= logical < len(missing[number]) or len(data) != PAGE_BYTES:
            raise SnapshotCorrupt(
                f"a snapshot for {file.path} has a page (set {number}, page {logical}, {len(data)} bytes) that its "
                "head does not name: use an older snapshot"
            )
        start = int(file.tables[number][TABLE_HEAD + logical]) * PAGE_BYTES
        file.octets[start : start + PAGE_BYTES] = np.frombuffer(data, dtype=np.uint8)
        missing[number][logical] = False
    for number, absent in missing.items():
        if absent.any():
            raise SnapshotCorrupt(
                f"a snapshot for {file.path} lacks {int(absent.sum())} pages of set {file.sets[number].name}, the "
                f"first is page {int(np.flatnonzero(absent)[0])}: use an older snapshot"
            )


def _make_tables(file: PageFile, head: SnapshotHead) -> dict[int, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Give every truth set its pages; return, per set, which of them have no bytes yet."""
    truth = [page_set for page_set in file.sets if page_set.truth]
    if not len(truth) == len(head.tails) == len(head.pages):
        raise SnapshotCorrupt(
            f"a snapshot for {file.path} has {len(head.tails)} tails and {len(head.pages)} page counts, expected "
            f"{len(truth)} of each: use an older snapshot"
        )
    for page_set in file.sets:
        file.words[page_set.super + S_PAGES] = 0
    file.reclaim()
    missing = {}
    for page_set, tail, pages in zip(truth, head.tails, head.pages, strict=True):
        if not 0 <= tail <= tail_limit(page_set, pages):
            raise SnapshotCorrupt(
                f"a snapshot for {file.path} has {pages} pages of set {page_set.name} and the tail {tail}, which is "
                "beyond them: use an older snapshot"
            )
        file.require(pages)
        file.take_pages(page_set, pages, head.wave)
        file.words[page_set.super + S_TAIL] = tail
        missing[page_set.number] = np.ones(pages, np.bool_)
    return missing
