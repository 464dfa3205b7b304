"""Kernels of the heap: cells of some sixty sizes, taken from chains of free ones or from the end.

Invariants:
    * A cell is written once, when it is taken. It is free again only from the `begin` after the wave that freed it,
      so a rollback finds every byte that the records name.
    * An address is a byte of the set's logical pages; a cell may straddle pages.
    * Chains of free cells are nodes of another, derived set: freeing a cell changes no page of truth.

Page 0 of the cells' set is its super page: word c heads the chain of free cells of class c.
"""

from __future__ import annotations

from typing import Final

from holdfast.state.address import address_in, following, make_writable, take_page, take_zero_page
from holdfast.state.compiled import Halves, Octets, Words, kernel
from holdfast.state.layout import (
    H_FREE_COUNT,
    H_SNAPSHOT,
    PAGE_BYTES,
    S_CLASSES,
    S_FREE,
    S_FREED,
    S_PAGES,
    S_TABLE,
    S_TAIL,
    SUPER_WORDS,
    T_SHIFT,
    TABLE_HEAD,
)

GRANULE_SHIFT: Final = 4
BYTE_SHIFT: Final = 14
NODES: Final = SUPER_WORDS
"""The super block of the cells' set lies right behind the heap's."""


@kernel
def class_of(length: int) -> int:
    """Return the size class of a value: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... granules of 16 bytes."""
    granules = (length + 15) >> GRANULE_SHIFT
    if granules <= 4:
        return granules - 1
    power = 2
    while (2 << power) < granules:
        power += 1
    return 4 + (power - 2) * 2 + (0 if granules <= (3 << (power - 1)) else 1)


@kernel
def class_bytes(size_class: int) -> int:
    """Return the bytes of a cell of a class."""
    if size_class < 4:
        return (size_class + 1) << GRANULE_SHIFT
    power = 2 + (size_class - 4) // 2
    granules = (3 << (power - 1)) if (size_class & 1) == 0 else (2 << power)
    return granules << GRANULE_SHIFT


@kernel
def pages_for(words: Words, length: int) -> int:
    """Return how many free pages storing or freeing a value may take."""
    pages = (class_bytes(class_of(length)) >> BYTE_SHIFT) + 4 if length > 0 else 4
    # Each page that a snapshot holds is copied, and a cell from a chain may lie on held pages only.
    return pages * 2 if words[H_SNAPSHOT] != 0 else pages


@kernel
def take_node(words: Words, halves: Halves, octets: Octets, heap: int) -> int:
    """Return the number of an unused node of two words: address, next."""
    nodes = heap + NODES
    table = words[nodes + S_TABLE]
    free = words[nodes + S_FREE]
    if free != 0:
        words[nodes + S_FREE] = words[address_in(halves, table, free - 1) + 1]
        return free - 1
    number = words[nodes + S_TAIL]
    if number >> halves[table + T_SHIFT] >= words[nodes + S_PAGES]:
        take_page(words, halves, octets, nodes)
    words[nodes + S_TAIL] = following(halves, table, number)
    return number


@kernel
def put_free_cell(words: Words, halves: Halves, heap: int, node: int, cell: int, size_class: int) -> None:
    """Put a cell at the head of its class's chain, by a node that nothing else uses."""
    nodes = words[heap + NODES + S_TABLE]
    head = address_in(halves, nodes, 0) + size_class
    start = address_in(halves, nodes, node)
    words[start] = cell
    words[start + 1] = words[head]
    words[head] = node + 1
    words[heap + S_CLASSES] |= 1 << size_class


@kernel
def take_free_cell(words: Words, halves: Halves, heap: int, size_class: int) -> int:
    """Return a cell from a chain that is not empty."""
    nodes = heap + NODES
    table = words[nodes + S_TABLE]
    head = address_in(halves, table, 0) + size_class
    node = words[head]
    start = address_in(halves, table, node - 1)
    words[head] = words[start + 1]
    if words[head] == 0:
        words[heap + S_CLASSES] &= ~(1 << size_class)
    words[start + 1] = words[nodes + S_FREE]
    words[nodes + S_FREE] = node
    return words[start]


@kernel
def free_room(words: Words, halves: Halves, octets: Octets, heap: int, position: int, end: int) -> int:
    """Make free cells of the bytes `[position, end)`; return where it stopped because free pages ran out."""
    while position < end and words[H_FREE_COUNT] >= 2:
        size_class = class_of(end - position)
        while class_bytes(size_class) > end - position:
            size_class -= 1
        put_free_cell(words, halves, heap, take_node(words, halves, octets, heap), position, size_class)
        position += class_bytes(size_class)
    return position


@kernel
def take_cell(words: Words, halves: Halves, octets: Octets, heap: int, length: int) -> int:
    """Return the address of a cell for `length` (at least 1) bytes: a free one, part of a larger one, or a new one."""
    size_class = class_of(length)
    larger = words[heap + S_CLASSES] >> size_class
    if larger != 0:
        found = size_class
        while larger & 1 == 0:
            larger >>= 1
            found += 1
        cell = take_free_cell(words, halves, heap, found)
        if found != size_class:
            free_room(words, halves, octets, heap, cell + class_bytes(size_class), cell + class_bytes(found))
        return cell
    cell = words[heap + S_TAIL]
    end = cell + class_bytes(size_class)
    while words[heap + S_PAGES] << BYTE_SHIFT < end:
        take_page(words, halves, octets, heap)
    words[heap + S_TAIL] = end
    return cell


@kernel
def store_value(words: Words, halves: Halves, octets: Octets, heap: int, data: Octets, start: int, length: int) -> int:
    """Copy bytes into a new cell and return its address; 0 for no bytes."""
    if length <= 0:
        return 0
    cell = take_cell(words, halves, octets, heap, length)
    entries = words[heap + S_TABLE] + TABLE_HEAD
    done = 0
    while done < length:
        position = cell + done
        page = make_writable(words, halves, octets, entries + (position >> BYTE_SHIFT))
        inside = position & (PAGE_BYTES - 1)
        part = min(length - done, PAGE_BYTES - inside)
        target = (page << BYTE_SHIFT) + inside
        source = start + done
        for index in range(part):
            octets[target + index] = data[source + index]
        done += part
    return cell


@kernel
def equals_value(
    words: Words, halves: Halves, octets: Octets, heap: int, cell: int, data: Octets, start: int, length: int
) -> bool:
    """Say whether the cell begins with these bytes."""
    entries = words[heap + S_TABLE] + TABLE_HEAD
    done = 0
    while done < length:
        position = cell + done
        inside = position & (PAGE_BYTES - 1)
        part = min(length - done, PAGE_BYTES - inside)
        source = (halves[entries + (position >> BYTE_SHIFT)] << BYTE_SHIFT) + inside
        for index in range(part):
            if octets[source + index] != data[start + done + index]:
                return False
        done += part
    return True


@kernel
def free_cell(words: Words, halves: Halves, octets: Octets, heap: int, cell: int, length: int) -> None:
    """Put a cell on the list of those that the next `begin` frees."""
    if length <= 0:
        return
    node = take_node(words, halves, octets, heap)
    start = address_in(halves, words[heap + NODES + S_TABLE], node)
    words[start] = cell
    words[start + 1] = (words[heap + S_FREED] << 8) | class_of(length)
    words[heap + S_FREED] = node + 1


@kernel
def settle_cells(words: Words, halves: Halves, heap: int) -> None:
    """Make the cells that the last wave freed available."""
    table = words[heap + NODES + S_TABLE]
    node = words[heap + S_FREED]
    while node != 0:
        start = address_in(halves, table, node - 1)
        link = words[start + 1]
        put_free_cell(words, halves, heap, node - 1, words[start], link & 0xFF)
        node = link >> 8
    words[heap + S_FREED] = 0


@kernel
def reset_cells(words: Words, halves: Halves, octets: Octets, heap: int) -> None:
    """Begin with no free cell. The cells' set has no pages when this is called."""
    nodes = heap + NODES
    take_zero_page(words, halves, octets, nodes)
    words[heap + S_CLASSES] = 0
    words[nodes + S_FREE] = 0
    words[nodes + S_TAIL] = 1 << halves[words[nodes + S_TABLE] + T_SHIFT]
    words[heap + S_FREED] = 0


@kernel
def free_gaps(
    words: Words, halves: Halves, octets: Octets, heap: int, starts: Words, lengths: Words, first: int, position: int
) -> tuple[int, int]:
    """Make free cells of all room between live values, given in order of address; resumable.

    Returns how far it came: the next value, and the first byte behind what is dealt with.
    """
    for index in range(first, len(starts) + 1):
        end = starts[index] if index < len(starts) else words[heap + S_TAIL]
        position = free_room(words, halves, octets, heap, position, end)
        if position < end:
            return index, position
        if index < len(starts):
            position = starts[index] + class_bytes(class_of(lengths[index]))
    return len(starts) + 1, position


@kernel
def store_values(
    words: Words, halves: Halves, octets: Octets, heap: int, offsets: Words, data: Octets, first: int, addresses: Words
) -> int:
    """Store values from `first` on; return the first that needs more free pages, or their number."""
    for index in range(first, len(addresses)):
        length = offsets[index + 1] - offsets[index]
        if words[H_FREE_COUNT] < pages_for(words, length):
            return index
        addresses[index] = store_value(words, halves, octets, heap, data, offsets[index], length)
    return len(addresses)


@kernel
def free_values(
    words: Words, halves: Halves, octets: Octets, heap: int, addresses: Words, lengths: Words, first: int
) -> int:
    """Free cells from `first` on; return the first that needs more free pages, or their number."""
    for index in range(first, len(addresses)):
        if words[H_FREE_COUNT] < 2:
            return index
        free_cell(words, halves, octets, heap, addresses[index], lengths[index])
    return len(addresses)


@kernel
def gather_values(
    words: Words, halves: Halves, octets: Octets, heap: int, addresses: Words, offsets: Words, data: Octets
) -> None:
    """Copy values out, one behind the other, to where `offsets` says."""
    entries = words[heap + S_TABLE] + TABLE_HEAD
    for value in range(len(addresses)):
        done = offsets[value]
        while done < offsets[value + 1]:
            position = addresses[value] + done - offsets[value]
            inside = position & (PAGE_BYTES - 1)
            part = min(offsets[value + 1] - done, PAGE_BYTES - inside)
            source = (halves[entries + (position >> BYTE_SHIFT)] << BYTE_SHIFT) + inside
            for index in range(part):
                data[done + index] = octets[source + index]
            done += part
