"""What a unit's state file contains: identity, record sets, ordered maps, and where each number lies in the file.

Invariants:
    * Everything here is a pure function of the declared layout, so two processes that declare the same layout find
      the same bytes. The fingerprint in the header refuses a file of another layout.
    * A record never straddles a page. Its number is `logical page << shift | slot`.

The file: page 0 is the header (numbers, then two slots of meta), page 1 the super blocks of the page sets, then the
tables (sparse: only what is used takes memory), then the pages themselves.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

MAGIC: Final = 0x3154534146444C48
"""Reads `HLDFAST1` in a dump of the first eight bytes."""
STATE_FORMAT_VERSION: Final = 1

PAGE_BYTES: Final = 16384
PAGE_WORDS: Final = 2048
PAGE_SHIFT: Final = 11
"""A physical page's first word is its number shifted by this."""
HUGE_BYTES: Final = 2 << 20
HUGE_PAGES: Final = HUGE_BYTES // PAGE_BYTES
"""Where memory is given in pages of 2 MiB, a random access costs no walk through the processor's page tables."""
PAGES_MAX: Final = 1 << 20
"""Of one page set, and of the whole file: 16 GiB for one unit."""

# Header words.
H_MAGIC: Final = 0
H_FORMAT: Final = 1
H_FINGERPRINT: Final = 2
H_IDENTITY: Final = 3
H_GENERATION: Final = 4
H_STATUS: Final = 5
"""wave << 2 | slot << 1 | dirty: one word, so that a wave is finished by a single store."""
H_ALLOCATED: Final = 6
"""Physical pages that the file system has really given us."""
H_RESERVED: Final = 7
"""Physical pages that the sparse file is long; what a mapping has to cover."""
H_FREE_COUNT: Final = 8
H_SNAPSHOT: Final = 9
H_FREE_BASE: Final = 10
H_HELD_BASE: Final = 11
H_STAMP_BASE: Final = 12
H_LOG_WAVE: Final = 13
"""The wave whose before-images are in the wave logs; 0 when there are none to roll back."""
H_WAVE: Final = 14
"""The number with which kernels stamp pages and records."""

SNAPSHOT_NONE: Final = 0
SNAPSHOT_ACTIVE: Final = 1
SNAPSHOT_WRITTEN: Final = 2

IDENTITY_OFFSET: Final = 1024
IDENTITY_BYTES_MAX: Final = 2560
META_OFFSETS: Final = (4096, 10240)
META_BYTES_MAX: Final = 6000
"""Each meta slot: bucket_end, length, then the bytes."""

SUPER_WORDS: Final = 64
SUPER_START: Final = PAGE_WORDS
SETS_MAX: Final = PAGE_WORDS // SUPER_WORDS

# Words of a super block. A page set uses those it needs.
S_TABLE: Final = 0
"""Where its page table starts, as an index of the file's 32-bit view."""
S_PAGES: Final = 1
S_TAIL: Final = 2
"""The first number that was never used."""
S_COUNT: Final = 3
S_FREE: Final = 4
"""Chain of free numbers (number + 1; 0 ends it)."""
S_FREED: Final = 5
S_FREED_LAST: Final = 6
"""Chain of numbers freed in this wave: they are free from the next `begin` on."""
S_PUBLISHED: Final = 7
"""Before-images that a rollback has to restore (of a log's set)."""
S_KEYS: Final = 8
S_VARIABLE: Final = 9
S_VALUES: Final = 10
S_FIRST_VALUE: Final = 11
S_ROOT: Final = 12
S_HEAP: Final = 13
"""Super block of the heap."""
S_HEAP_VALUES: Final = 14
"""Bit i is set where value word i is a length and word i + 1 the heap address of a variable value."""
S_CLASSES: Final = 15
"""Bit c is set where there are free cells of size class c (of the heap)."""
S_LOGGED: Final = 15
"""Before-images saved, published or not (of a log's set)."""

TABLE_HEAD: Final = 4
"""A page table starts with shift, words of a record, records of a page, and the slot bits that no number has first."""
T_SHIFT: Final = 0
T_WIDTH: Final = 1
T_SLOTS: Final = 2
T_WRAP: Final = 3
"""Records of a page, cut to the bits of a slot: a number that comes to it goes on at the next page."""


class Identity(msgspec.Struct, frozen=True):
    """Whose state a file is. `generation` is one life of the unit; a successor raises it."""

    pipeline: str
    stage: str
    shard: int
    generation: int


class RecordLayout(msgspec.Struct, frozen=True):
    """A record set and its hash map.

    Words of a record: header, hash, `keys` fixed words, (length, heap address) if `variable`, then `values` words.
    `heap_values` are the value words that hold the length of a variable value (less than 1: none); the word after
    each holds its heap address. What they name is freed with the record.
    """

    name: str
    keys: int
    variable: bool
    values: int
    heap_values: tuple[int, ...] = ()

    @property
    def first_value(self) -> int:
        """Return the position of the first value word in a record."""
        return 2 + self.keys + (2 if self.variable else 0)

    @property
    def width(self) -> int:
        """Return the words of a record; a filler word where it keeps records on as few cache lines as can be."""
        words = self.first_value + self.values
        return words + 1 if words % 8 == 7 else words


class OrderedLayout(msgspec.Struct, frozen=True):
    """An ordered map over the records of a set: value word `key_word` of each record is its key in the map."""

    name: str
    records: str
    key_word: int


class StateLayout(msgspec.Struct, frozen=True):
    """All that a unit keeps."""

    records: tuple[RecordLayout, ...]
    ordered: tuple[OrderedLayout, ...] = ()


class PageSet(msgspec.Struct, frozen=True):
    """One page set: its number, the shape of its records, and whether it is truth (else it can be derived)."""

    name: str
    number: int
    width: int
    truth: bool

    @property
    def super(self) -> int:
        return SUPER_START + self.number * SUPER_WORDS

    @property
    def slots(self) -> int:
        """Return how many records a page holds."""
        return PAGE_WORDS // self.width

    @property
    def shift(self) -> int:
        """Return the bits of a number that say the slot."""
        return (self.slots - 1).bit_length()


HEAP_SET: Final = 0
CELLS_SET: Final = 1
FIRST_MAP_SET: Final = 2
MAP_SETS: Final = 4
ORDERED_SETS: Final = 2
NODE_WORDS: Final = 64
LINE_WORDS: Final = 8
CELL_WORDS: Final = 2


def page_sets(layout: StateLayout) -> tuple[PageSet, ...]:
    """Return every page set of a layout, numbered: heap, cells, four for each map, two for each ordered map."""
    sets = [PageSet("heap", HEAP_SET, 1, True), PageSet("cells", CELLS_SET, CELL_WORDS, False)]
    for records in layout.records:
        first = len(sets)
        assert 1 <= records.width <= PAGE_WORDS, f"a record of {records.name} does not fit a page"
        sets.append(PageSet(records.name, first, records.width, True))
        sets.append(PageSet(f"{records.name}.log", first + 1, records.values + 2, False))
        sets.append(PageSet(f"{records.name}.index", first + 2, LINE_WORDS, False))
        sets.append(PageSet(f"{records.name}.overflow", first + 3, LINE_WORDS, False))
    for ordered in layout.ordered:
        sets.append(PageSet(f"{ordered.name}.tree", len(sets), NODE_WORDS, False))
        sets.append(PageSet(f"{ordered.name}.lines", len(sets), LINE_WORDS, False))
    assert len(sets) <= SETS_MAX, f"a unit has at most {SETS_MAX} page sets, this layout needs {len(sets)}"
    return tuple(sets)


def fingerprint(layout: StateLayout) -> int:
    """Return a number that differs between layouts whose bytes differ in meaning."""
    return zlib.crc32(msgspec.json.encode(layout)) | STATE_FORMAT_VERSION << 32


TABLE_BYTES: Final = PAGES_MAX * 4
HELD_BYTES: Final = PAGES_MAX
STAMP_BYTES: Final = PAGES_MAX * 8


def free_offset() -> int:
    """Return where the stack of free physical pages starts, in bytes."""
    return 2 * PAGE_BYTES


def held_offset() -> int:
    """Return where the byte for each physical page starts: 1 while a snapshot needs the page."""
    return free_offset() + TABLE_BYTES


def stamp_offset() -> int:
    """Return where the word for each physical page starts: the wave in which it was last made writable."""
    return held_offset() + HELD_BYTES


def table_offset(number: int) -> int:
    """Return where the page table of a set starts, in bytes."""
    return stamp_offset() + STAMP_BYTES + number * TABLE_BYTES


def first_page(sets: int) -> int:
    """Return the number of the first physical page behind the tables; it begins a huge page."""
    return -(-table_offset(sets) // HUGE_BYTES) * HUGE_PAGES
