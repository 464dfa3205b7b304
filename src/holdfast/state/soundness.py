"""What a state file must be before kernels follow the numbers in it.

A kernel checks no bounds: a page number from a header that was cut, zeroed or written over would end the process. So
whoever begins on a file that it has not yet worked on looks at everything that says where other things are: header,
super blocks and page tables. Records, index lines and heap bytes are memory like any other and are not looked at.

Invariants:
    * What holds here holds at every moment of a wave, also where its process was killed. What holds only between two
      waves is asked of a clean file only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.errors import StateAbsent
from holdfast.state.layout import (
    CELLS_SET,
    FIRST_MAP_SET,
    H_ALLOCATED,
    H_FREE_BASE,
    H_FREE_COUNT,
    H_HELD_BASE,
    H_RESERVED,
    H_SNAPSHOT,
    H_STAMP_BASE,
    H_STATUS,
    H_WAVE,
    HEAP_SET,
    MAP_SETS,
    META_BYTES_MAX,
    META_OFFSETS,
    PAGE_BYTES,
    PAGE_WORDS,
    PAGES_MAX,
    S_COUNT,
    S_FIRST_VALUE,
    S_FREE,
    S_FREED,
    S_HEAP,
    S_KEYS,
    S_LOGGED,
    S_PAGES,
    S_PUBLISHED,
    S_ROOT,
    S_TABLE,
    S_TAIL,
    S_VALUES,
    S_VARIABLE,
    TABLE_HEAD,
    PageSet,
    free_offset,
    held_offset,
    stamp_offset,
    table_offset,
)
from holdfast.state.pages import PageFile

Finding = tuple[str, int, int, int]
"""What it is, its number, and the range `[low, high)` in which it has to be."""


def check_sound(file: PageFile, is_dirty: bool) -> None:
    """Raise `StateAbsent` where a state file says something that cannot be."""
    for found in (_header(file), _sets(file)):
        for what, number, low, high in found:
            if not low <= number < high:
                raise _unsound(file, what, f"{number}", f"at least {low} and below {high}")
    _check_tables(file, is_dirty)
    _check_images(file)
    if not is_dirty:
        for what, number, low, high in _between_waves(file):
            if not low <= number < high:
                raise _unsound(file, what, f"{number}", f"at least {low} and below {high}")


def tail_limit(page_set: PageSet, pages: int) -> int:
    """Return the highest number (of the heap: byte) behind the last that so many pages may have."""
    return pages * PAGE_BYTES if page_set.number == HEAP_SET else pages << page_set.shift


def _exactly(what: str, found: int, expected: int) -> Finding:
    return what, found, expected, expected + 1


def _header(file: PageFile) -> Iterator[Finding]:
    words = file.words
    allocated = int(words[H_ALLOCATED])
    yield "reserved pages", int(words[H_RESERVED]), file.first_page, file.mapped_pages + 1
    yield "allocated pages", allocated, file.first_page, min(int(words[H_RESERVED]), PAGES_MAX - TABLE_HEAD) + 1
    yield _exactly("place of free pages", int(words[H_FREE_BASE]), free_offset() // 4)
    yield _exactly("place of held pages", int(words[H_HELD_BASE]), held_offset())
    yield _exactly("place of stamps", int(words[H_STAMP_BASE]), stamp_offset() // 8)
    yield "free pages", int(words[H_FREE_COUNT]), 0, allocated - file.first_page + 1
    yield "snapshot", int(words[H_SNAPSHOT]), 0, 3
    yield "wave", int(words[H_WAVE]), 0, 1 << 54
    yield "status", int(words[H_STATUS]), 0, 1 << 56
    for slot in META_OFFSETS:
        yield "bytes of meta", int(words[slot // 8 + 1]), 0, META_BYTES_MAX + 1


def _sets(file: PageFile) -> Iterator[Finding]:
    words, allocated = file.words, int(file.words[H_ALLOCATED])
    for page_set in file.sets:
        at, name, table = page_set.super, page_set.name, file.tables[page_set.number]
        yield _exactly(f"place of the table of {name}", int(words[at + S_TABLE]), table_offset(page_set.number) // 4)
        shape = (page_set.shift, page_set.width, page_set.slots, page_set.slots % (1 << page_set.shift))
        for found, expected in zip(table[:TABLE_HEAD].tolist(), shape, strict=True):
            yield _exactly(f"shape of {name}", found, expected)
        pages = int(words[at + S_PAGES])
        yield f"pages of {name}", pages, 0, allocated - file.first_page + 1
        if page_set.truth:
            yield f"tail of {name}", int(words[at + S_TAIL]), 0, tail_limit(page_set, pages) + 1
    for position, records in enumerate(file.layout.records):
        at = file.sets[FIRST_MAP_SET + position * MAP_SETS].super
        log = file.sets[FIRST_MAP_SET + position * MAP_SETS + 1]
        expected_words = {
            S_KEYS: records.keys,
            S_VARIABLE: int(records.variable),
            S_VALUES: records.values,
            S_FIRST_VALUE: records.first_value,
            S_HEAP: file.sets[HEAP_SET].super,
        }
        for word, expected in expected_words.items():
            yield _exactly(f"layout of {records.name}", int(words[at + word]), expected)
        saved_most = tail_limit(log, int(words[log.super + S_PAGES])) + 1
        yield f"images of {records.name}", int(words[log.super + S_PUBLISHED]), 0, saved_most
        yield f"images of {records.name}", int(words[log.super + S_LOGGED]), 0, saved_most


def _check_tables(file: PageFile, is_dirty: bool) -> None:
    """Every page that a table names is one of the file's, and in no other place of a table."""
    allocated = int(file.words[H_ALLOCATED])
    tables = [file.pages_of(page_set) for page_set in file.sets]
    named = np.concatenate(tables)
    if len(named) and (named.min() < file.first_page or named.max() >= allocated):
        outside = named[(named < file.first_page) | (named >= allocated)]
        raise _unsound(file, "a page table", f"page {outside[0]}", f"pages from {file.first_page} to {allocated}")
    # What is derived is built anew where a wave did not end, but for the before-images.
    is_read = [each.truth or not is_dirty or each.name.endswith(".log") for each in file.sets]
    read = np.concatenate([table if wanted else table[:0] for table, wanted in zip(tables, is_read, strict=True)])
    used = np.zeros(allocated, np.bool_)
    used[read] = True
    if int(used.sum()) != len(read):
        raise _unsound(file, "a page table", "a page twice", "each page once")
    if not is_dirty and file.words[H_SNAPSHOT] == 0:
        base = free_offset() // 4
        free = file.halves[base : base + int(file.words[H_FREE_COUNT])]
        if len(free) and (free.min() < file.first_page or free.max() >= allocated or used[free].any()):
            raise _unsound(file, "the stack of free pages", "a page that is used, or none of the file's", "free ones")


def _check_images(file: PageFile) -> None:
    """Every before-image that a rollback restores is one of a record that there is."""
    for position, records in enumerate(file.layout.records):
        number = FIRST_MAP_SET + position * MAP_SETS
        log, tail = file.sets[number + 1], int(file.words[file.sets[number].super + S_TAIL])
        published = int(file.words[log.super + S_PUBLISHED])
        for logical, page in enumerate(file.pages_of(log)[: -(-published // (1 << log.shift))].tolist()):
            slots = min(published - (logical << log.shift), log.slots)
            start = page * PAGE_WORDS
            saved = file.words[start : start + slots * log.width : log.width]
            if len(saved) and (saved.min() < 0 or saved.max() >= tail):
                raise _unsound(file, f"before-images of {records.name}", f"record {saved.max()}", f"below {tail}")


def _between_waves(file: PageFile) -> Iterator[Finding]:
    """Where chains and trees begin; the first of a chain is its number and one more, 0 for none."""
    words = file.words
    for page_set in file.sets:
        at = page_set.super
        tail = int(words[at + S_TAIL])
        limit = tail_limit(page_set, int(words[at + S_PAGES]))
        is_log = page_set.name.endswith(".log")
        if page_set.number == HEAP_SET:
            nodes = int(words[file.sets[CELLS_SET].super + S_TAIL])
            yield "freed cells", int(words[at + S_FREED]), 0, nodes + 1
        elif not is_log:
            yield f"tail of {page_set.name}", tail, 0, limit + 1
            yield f"free ones of {page_set.name}", int(words[at + S_FREE]), 0, limit + 1
            yield f"root of {page_set.name}", int(words[at + S_ROOT]), 0, max(limit, 1)
        if page_set.name.endswith(".index"):
            yield f"buckets of {page_set.name}", int(words[at + S_COUNT]), 1, limit + 1
        if page_set.truth and page_set.number != HEAP_SET:
            yield f"freed ones of {page_set.name}", int(words[at + S_FREED]), 0, tail + 1


def _unsound(file: PageFile, what: str, found: str, expected: str) -> StateAbsent:
    return StateAbsent(
        f"state file {file.path} is damaged: expected {what} to be {expected}, found {found}: rebuild the unit"
    )
