"""Where things are: from a record's number to its words, and how a page becomes writable.

Invariants:
    * A page that a snapshot holds is never changed: the set gets a copy and the snapshot keeps the old page.
    * A page is stamped with the wave that changed it before the change, so an increment never misses one.
    * The table entry moves only after the copy is whole. Compiler and processor keep that order: the two stores may
      alias, and a killed process has done all that it did in program order.

Kernels of other rooms use `address` alone.
"""

from __future__ import annotations

import numpy as np

from holdfast.state.compiled import Halves, Octets, Words, kernel
from holdfast.state.layout import (
    H_FREE_BASE,
    H_FREE_COUNT,
    H_HELD_BASE,
    H_STAMP_BASE,
    H_WAVE,
    PAGE_SHIFT,
    PAGE_WORDS,
    S_PAGES,
    S_TABLE,
    T_SHIFT,
    T_WIDTH,
    T_WRAP,
    TABLE_HEAD,
)


@kernel
def address(table: Halves, record: int) -> int:
    """Return the index in `words` (and `reals`) of the first word of a record."""
    shift = table[T_SHIFT]
    page = table[np.uint64(TABLE_HEAD + (record >> shift))]
    return (page << PAGE_SHIFT) + (record & ((1 << shift) - 1)) * table[T_WIDTH]


@kernel
def address_in(halves: Halves, table: int, record: int) -> int:
    """Do what `address` does, for a table that begins at `halves[table]`: inside this room no kernel slices arrays.

    A slice is counted as a reference, by an instruction that locks the bus; measured, it doubled the time of a lookup.
    """
    shift = halves[table + T_SHIFT]
    page = halves[np.uint64(table + TABLE_HEAD + (record >> shift))]
    return (page << PAGE_SHIFT) + (record & ((1 << shift) - 1)) * halves[table + T_WIDTH]


@kernel
def following(halves: Halves, table: int, number: int) -> int:
    """Return the number after `number`; numbers skip what is left of a page behind its last record."""
    shift = halves[table + T_SHIFT]
    number += 1
    if (number & ((1 << shift) - 1)) == halves[table + T_WRAP]:
        return ((number - 1) >> shift) + 1 << shift
    return number


@kernel
def take_page(words: Words, halves: Halves, octets: Octets, super_block: int) -> int:
    """Append a free physical page to a set and return it. The caller has made sure that one is free."""
    count = words[H_FREE_COUNT] - 1
    page = halves[words[H_FREE_BASE] + count]
    words[H_FREE_COUNT] = count
    words[words[H_STAMP_BASE] + page] = words[H_WAVE]
    octets[words[H_HELD_BASE] + page] = 0
    pages = words[super_block + S_PAGES]
    halves[words[super_block + S_TABLE] + TABLE_HEAD + pages] = page
    words[super_block + S_PAGES] = pages + 1
    return page


@kernel
def take_zero_page(words: Words, halves: Halves, octets: Octets, super_block: int) -> int:
    """Append a free physical page of zeros to a set and return it."""
    page = take_page(words, halves, octets, super_block)
    start = page << PAGE_SHIFT
    words[start : start + PAGE_WORDS] = 0
    return page


@kernel
def make_writable(words: Words, halves: Halves, octets: Octets, entry: int) -> int:
    """Return the physical page behind table entry `entry` (an index of `halves`), copied first if it is held."""
    page = halves[entry]
    stamp = words[H_STAMP_BASE] + page
    if words[stamp] == words[H_WAVE]:
        return page
    if octets[words[H_HELD_BASE] + page] == 0:
        words[stamp] = words[H_WAVE]
        return page
    count = words[H_FREE_COUNT] - 1
    copy = halves[words[H_FREE_BASE] + count]
    words[H_FREE_COUNT] = count
    octets[words[H_HELD_BASE] + copy] = 0
    words[words[H_STAMP_BASE] + copy] = words[H_WAVE]
    source = page << PAGE_SHIFT
    target = copy << PAGE_SHIFT
    for index in range(PAGE_WORDS):
        words[target + index] = words[source + index]
    halves[entry] = copy
    return copy
