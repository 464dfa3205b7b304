"""Derived structures from records: hash indexes, ordered maps, chains of free records and cells.

Invariants:
    * Only records, heap bytes, their counters and the published before-images are read. What else the file holds may be
      torn: a wave was interrupted, or the file was filled from a snapshot.
    * Every step can be interrupted and begun again from the start.
"""

from __future__ import annotations

import numpy as np

from holdfast.state.compiled import Words
from holdfast.state.heap_kernels import free_gaps, reset_cells
from holdfast.state.layout import (
    CELLS_SET,
    FIRST_MAP_SET,
    HEAP_SET,
    MAP_SETS,
    ORDERED_SETS,
    S_LOGGED,
    S_PAGES,
    S_PUBLISHED,
    S_TAIL,
    OrderedLayout,
    RecordLayout,
)
from holdfast.state.map_kernels import live_records, read_words, reindex_records, roll_back_records
from holdfast.state.ordered_map import NO_KEY
from holdfast.state.pages import PageFile
from holdfast.state.tree import add_records, reset_tree

LIST_RECORDS = 1 << 18
ROOM_PAGES = 256


def restore_images(file: PageFile) -> None:
    """Put back every published before-image. The stack of free pages may be torn, so it is derived first."""
    file.reclaim()
    for position in range(len(file.layout.records)):
        super_block = _map_super(file, position)
        end = int(file.words[file.sets[FIRST_MAP_SET + position * MAP_SETS + 1].super + S_PUBLISHED])
        _roll_back(file, super_block, end)


def _roll_back(file: PageFile, super_block: int, end: int) -> None:
    file.resume(
        lambda number: roll_back_records(file.words, file.halves, file.octets, super_block, number),
        end,
        lambda _: ROOM_PAGES,
    )


def derive(file: PageFile, wave: int) -> None:
    """Build everything that is derived; records that were born in `wave` are dead."""
    # Before the logs lose their pages: what is published would be restored again if this were interrupted.
    empty_logs(file)
    for page_set in file.sets:
        if not page_set.truth:
            file.words[page_set.super + S_PAGES] = 0
    file.reclaim()
    file.require(16 + len(file.sets) * 2)
    for position in range(len(file.layout.records)):
        _derive_index(file, _map_super(file, position), wave)
    _derive_cells(file)
    first = FIRST_MAP_SET + len(file.layout.records) * MAP_SETS
    for position, ordered in enumerate(file.layout.ordered):
        _derive_ordered(file, file.sets[first + position * ORDERED_SETS].super, ordered)


def empty_logs(file: PageFile) -> None:
    """Forget all before-images; the logs keep their pages for the next wave."""
    for position in range(len(file.layout.records)):
        log = file.sets[FIRST_MAP_SET + position * MAP_SETS + 1].super
        file.words[log + S_PUBLISHED] = 0
        file.words[log + S_LOGGED] = 0


def map_position(file: PageFile, name: str) -> int:
    """Return which of the layout's record sets has this name."""
    return next(index for index, records in enumerate(file.layout.records) if records.name == name)


def _map_super(file: PageFile, position: int) -> int:
    return file.sets[FIRST_MAP_SET + position * MAP_SETS].super


def _derive_index(file: PageFile, super_block: int, wave: int) -> None:
    tail = int(file.words[super_block + S_TAIL])
    file.resume(
        lambda number: reindex_records(file.words, file.halves, file.octets, super_block, number, wave),
        tail,
        lambda _: ROOM_PAGES,
    )


def _live(file: PageFile, super_block: int, number: int) -> tuple[int, Words]:
    records = np.empty(LIST_RECORDS, np.int64)
    number, count = live_records(file.words, file.halves, super_block, number, records)
    return number, records[:count]


def _derive_ordered(file: PageFile, tree: int, ordered: OrderedLayout) -> None:
    reset_tree(file.words, file.halves, file.octets, tree)
    position = map_position(file, ordered.records)
    super_block = _map_super(file, position)
    word = file.layout.records[position].first_value + ordered.key_word
    tail = int(file.words[super_block + S_TAIL])
    number = 0
    while number < tail:
        number, records = _live(file, super_block, number)
        keys = _words_of(file, position, records, word)
        present = keys != NO_KEY
        keys, records = keys[present], records[present]
        _add(file, tree, keys, records)


def _add(file: PageFile, tree: int, keys: Words, records: Words) -> None:
    file.resume(
        lambda done: add_records(file.words, file.halves, file.octets, tree, keys, records, done),
        len(records),
        lambda _: ROOM_PAGES,
    )


def _words_of(file: PageFile, position: int, records: Words, word: int) -> Words:
    out = np.empty(len(records), np.int64)
    read_words(file.words, file.halves, _map_super(file, position), records, word, out)
    return out


def _derive_cells(file: PageFile) -> None:
    """Find the cells that records name; whatever lies between them is free."""
    heap = file.sets[HEAP_SET].super
    assert file.sets[CELLS_SET].number == CELLS_SET
    file.require(8)
    reset_cells(file.words, file.halves, file.octets, heap)
    starts, lengths = _named_cells(file)
    order = np.argsort(starts, kind="stable")
    starts, lengths = starts[order], lengths[order]
    first, position = 0, 0
    while first <= len(starts):
        first, position = free_gaps(file.words, file.halves, file.octets, heap, starts, lengths, first, position)
        if first <= len(starts):
            file.require(ROOM_PAGES)


def _named_cells(file: PageFile) -> tuple[Words, Words]:
    starts: list[Words] = [np.zeros(0, np.int64)]
    lengths: list[Words] = [np.zeros(0, np.int64)]
    for position, records_layout in enumerate(file.layout.records):
        words = heap_words(records_layout)
        tail = int(file.words[_map_super(file, position) + S_TAIL])
        number = 0
        while words and number < tail:
            number, records = _live(file, _map_super(file, position), number)
            for word in words:
                length = _words_of(file, position, records, word)
                start = _words_of(file, position, records, word + 1)
                lengths.append(length[length > 0])
                starts.append(start[length > 0])
    return np.concatenate(starts), np.concatenate(lengths)


def heap_words(records: RecordLayout) -> list[int]:
    """Return the words of a record that hold the length of something in the heap, its address behind each."""
    words = [records.first_value + word for word in records.heap_values]
    return [2 + records.keys, *words] if records.variable else words
