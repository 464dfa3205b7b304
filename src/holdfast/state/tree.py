"""Kernels of the ordered map: a B+-tree of distinct keys, each with a list of record numbers.

Invariants:
    * A node is 64 words: how many entries, whether it is a leaf, 31 keys in order, 31 values. A child of an inner node
      holds the keys from its own key up to the next one's; the first child also those below.
    * A leaf's value is `~record` for one record, or the number of the first line of a list.
    * A line is one cache line: next line + 1, records in it, then up to twelve record numbers of 32 bits.
    * Keys leave from the front only, all below a limit; nodes that become empty go to the free chain.

The map is derived. Lists are lines and not links through the records: what closes at a watermark is then read in
order, instead of one wait for memory for each record, and no record changes for it.
Super blocks lie one behind the other: tree, lines.
"""

from __future__ import annotations

from typing import Final

from holdfast.state.address import address_in, take_page
from holdfast.state.compiled import Halves, Octets, Words, kernel
from holdfast.state.layout import H_FREE_COUNT, S_COUNT, S_FREE, S_PAGES, S_ROOT, S_TABLE, S_TAIL, SUPER_WORDS

NODE_KEYS: Final = 31
KEYS_AT: Final = 2
VALUES_AT: Final = 33
NODES_SHIFT: Final = 5
LINE_RECORDS: Final = 12
LINES_SHIFT: Final = 8
LISTS: Final = SUPER_WORDS
EMPTY_LIST: Final = 1 << 62


@kernel
def take_tree_node(words: Words, halves: Halves, octets: Octets, tree: int, leaf: int) -> int:
    """Return the number of an empty node."""
    free = words[tree + S_FREE]
    if free != 0:
        number = free - 1
        words[tree + S_FREE] = words[address_in(halves, words[tree + S_TABLE], number) + KEYS_AT]
    else:
        number = words[tree + S_TAIL]
        if number >> NODES_SHIFT >= words[tree + S_PAGES]:
            take_page(words, halves, octets, tree)
        words[tree + S_TAIL] = number + 1
    start = address_in(halves, words[tree + S_TABLE], number)
    words[start] = 0
    words[start + 1] = leaf
    return number


@kernel
def free_tree_node(words: Words, halves: Halves, tree: int, number: int) -> None:
    """Give a node back."""
    words[address_in(halves, words[tree + S_TABLE], number) + KEYS_AT] = words[tree + S_FREE]
    words[tree + S_FREE] = number + 1


@kernel
def take_line(words: Words, halves: Halves, octets: Octets, lines: int) -> int:
    """Return the number of an empty line."""
    table = words[lines + S_TABLE]
    free = words[lines + S_FREE]
    if free != 0:
        number = free - 1
        words[lines + S_FREE] = words[address_in(halves, table, number)]
    else:
        number = words[lines + S_TAIL]
        if number >> LINES_SHIFT >= words[lines + S_PAGES]:
            take_page(words, halves, octets, lines)
        words[lines + S_TAIL] = number + 1
    start = address_in(halves, table, number)
    words[start] = 0
    words[start + 1] = 0
    return number


@kernel
def place_of(words: Words, start: int, key: int) -> int:
    """Return how many keys of a node are at most `key`."""
    low = 0
    high = words[start]
    while low < high:
        middle = (low + high) >> 1
        if words[start + KEYS_AT + middle] <= key:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def insert_entry(words: Words, start: int, place: int, key: int, value: int) -> None:
    """Make room in a node that is not full and put an entry there."""
    count = words[start]
    for index in range(count, place, -1):
        words[start + KEYS_AT + index] = words[start + KEYS_AT + index - 1]
        words[start + VALUES_AT + index] = words[start + VALUES_AT + index - 1]
    words[start + KEYS_AT + place] = key
    words[start + VALUES_AT + place] = value
    words[start] = count + 1


@kernel
def split_child(words: Words, halves: Halves, octets: Octets, tree: int, parent: int, place: int, at_end: bool) -> None:
    """Split the full child at `place` of a node that is not full; its tail moves to a new node behind it.

    Keys mostly come in ascending order; then the full node keeps all but one of its entries.
    """
    table = words[tree + S_TABLE]
    child = address_in(halves, table, words[parent + VALUES_AT + place])
    number = take_tree_node(words, halves, octets, tree, words[child + 1])
    new = address_in(halves, table, number)
    kept = NODE_KEYS - 1 if at_end else NODE_KEYS // 2
    for index in range(kept, NODE_KEYS):
        words[new + KEYS_AT + index - kept] = words[child + KEYS_AT + index]
        words[new + VALUES_AT + index - kept] = words[child + VALUES_AT + index]
    words[new] = NODE_KEYS - kept
    words[child] = kept
    insert_entry(words, parent, place + 1, words[new + KEYS_AT], number)


@kernel
def entry_of(words: Words, halves: Halves, octets: Octets, tree: int, key: int) -> int:
    """Return the word that holds the value of `key`; a key that was not there has an empty list now."""
    table = words[tree + S_TABLE]
    root = words[tree + S_ROOT]
    node = address_in(halves, table, root)
    if words[node] == NODE_KEYS:
        number = take_tree_node(words, halves, octets, tree, 0)
        top = address_in(halves, table, number)
        words[top] = 1
        words[top + KEYS_AT] = words[node + KEYS_AT]
        words[top + VALUES_AT] = root
        at_end = key > words[node + KEYS_AT + NODE_KEYS - 1]
        split_child(words, halves, octets, tree, top, 0, at_end)
        words[tree + S_ROOT] = number
        node = top
    while words[node + 1] == 0:
        place = max(place_of(words, node, key) - 1, 0)
        child = address_in(halves, table, words[node + VALUES_AT + place])
        if words[child] == NODE_KEYS:
            at_end = place == words[node] - 1 and key > words[child + KEYS_AT + NODE_KEYS - 1]
            split_child(words, halves, octets, tree, node, place, at_end)
            place = max(place_of(words, node, key) - 1, 0)
            child = address_in(halves, table, words[node + VALUES_AT + place])
        node = child
    place = place_of(words, node, key)
    if place > 0 and words[node + KEYS_AT + place - 1] == key:
        return node + VALUES_AT + place - 1
    insert_entry(words, node, place, key, EMPTY_LIST)
    words[tree + S_COUNT] += 1
    return node + VALUES_AT + place


@kernel
def add_to_list(words: Words, halves: Halves, octets: Octets, lines: int, value_at: int, record: int) -> None:
    """Add a record to the list whose value is at word `value_at`."""
    value = words[value_at]
    if value == EMPTY_LIST:
        words[value_at] = ~record
        return
    table = words[lines + S_TABLE]
    if value < 0:
        number = take_line(words, halves, octets, lines)
        start = address_in(halves, table, number)
        words[value_at] = number
        put_in_line(words, halves, start, ~value)
    else:
        start = address_in(halves, table, value)
        if words[start + 1] == LINE_RECORDS:
            number = take_line(words, halves, octets, lines)
            start = address_in(halves, table, number)
            words[start] = value + 1
            words[value_at] = number
    put_in_line(words, halves, start, record)


@kernel
def put_in_line(words: Words, halves: Halves, start: int, record: int) -> None:
    """Append a record number to a line that is not full."""
    count = words[start + 1]
    halves[(start + 2) * 2 + count] = record
    words[start + 1] = count + 1


@kernel
def add_records(
    words: Words, halves: Halves, octets: Octets, tree: int, keys: Words, records: Words, first: int
) -> int:
    """Add records under their keys from `first` on; return the first that needs more free pages, or their number."""
    value_at = -1
    for index in range(first, len(records)):
        if words[H_FREE_COUNT] < 4:
            return index
        # Many records in a row have the same key; what an insertion moved is looked up again.
        if value_at < 0 or keys[index] != keys[index - 1]:
            value_at = entry_of(words, halves, octets, tree, keys[index])
        add_to_list(words, halves, octets, tree + LISTS, value_at, records[index])
    return len(records)


@kernel
def drop_first_leaf(words: Words, halves: Halves, tree: int) -> None:
    """Remove the empty first leaf, and every node above it that becomes empty by that."""
    table = words[tree + S_TABLE]
    while True:
        number = words[tree + S_ROOT]
        node = address_in(halves, table, number)
        if words[node + 1] != 0:
            return
        if words[node] == 1:
            words[tree + S_ROOT] = words[node + VALUES_AT]
            free_tree_node(words, halves, tree, number)
            continue
        parent = node
        while words[node + 1] == 0:
            if words[node] >= 2:
                parent = node
            node = address_in(halves, table, words[node + VALUES_AT])
        # `parent` is the lowest with two children or more; below its first one there is a line of only children.
        free_branch(words, halves, tree, words[parent + VALUES_AT])
        count = words[parent] - 1
        for index in range(count):
            words[parent + KEYS_AT + index] = words[parent + KEYS_AT + index + 1]
            words[parent + VALUES_AT + index] = words[parent + VALUES_AT + index + 1]
        words[parent] = count
        return


@kernel
def free_branch(words: Words, halves: Halves, tree: int, number: int) -> None:
    """Free a node and its line of only children."""
    table = words[tree + S_TABLE]
    while True:
        node = address_in(halves, table, number)
        leaf = words[node + 1]
        child = words[node + VALUES_AT]
        free_tree_node(words, halves, tree, number)
        if leaf != 0:
            return
        number = child


@kernel
def first_leaf(words: Words, halves: Halves, tree: int) -> int:
    """Return the first word of the leaf with the lowest keys."""
    table = words[tree + S_TABLE]
    node = address_in(halves, table, words[tree + S_ROOT])
    while words[node + 1] == 0:
        node = address_in(halves, table, words[node + VALUES_AT])
    return node


@kernel
def has_below(words: Words, halves: Halves, tree: int, limit: int) -> bool:
    """Return whether there is a key below `limit`."""
    leaf = first_leaf(words, halves, tree)
    return words[leaf] > 0 and words[leaf + KEYS_AT] < limit


@kernel
def take_from_list(words: Words, halves: Halves, lines: int, value_at: int, records: Words, count: int) -> int:
    """Move records from a list to `records[count:]`, which has room for a line; return the new count."""
    table = words[lines + S_TABLE]
    value = words[value_at]
    if value < 0:
        records[count] = ~value
        words[value_at] = EMPTY_LIST
        return count + 1
    start = address_in(halves, table, value)
    for index in range(words[start + 1]):
        records[count + index] = halves[(start + 2) * 2 + index]
    count += words[start + 1]
    words[value_at] = words[start] - 1 if words[start] != 0 else EMPTY_LIST
    words[start] = words[lines + S_FREE]
    words[lines + S_FREE] = value + 1
    return count


@kernel
def pop_records(words: Words, halves: Halves, tree: int, limit: int, keys: Words, records: Words) -> int:
    """Take out records with keys below `limit`, lowest first, as many as there is room for; return how many.

    There are no more when the room left is a line or more.
    """
    count = 0
    while True:
        leaf = first_leaf(words, halves, tree)
        done = 0
        while done < words[leaf] and words[leaf + KEYS_AT + done] < limit:
            value_at = leaf + VALUES_AT + done
            key = words[leaf + KEYS_AT + done]
            while words[value_at] != EMPTY_LIST and count + LINE_RECORDS <= len(records):
                before = count
                count = take_from_list(words, halves, tree + LISTS, value_at, records, count)
                keys[before:count] = key
            if words[value_at] != EMPTY_LIST:
                break
            done += 1
        left = words[leaf] - done
        for index in range(left):
            words[leaf + KEYS_AT + index] = words[leaf + KEYS_AT + done + index]
            words[leaf + VALUES_AT + index] = words[leaf + VALUES_AT + done + index]
        words[leaf] = left
        words[tree + S_COUNT] -= done
        if left > 0 or leaf == address_in(halves, words[tree + S_TABLE], words[tree + S_ROOT]):
            return count
        drop_first_leaf(words, halves, tree)


@kernel
def reset_tree(words: Words, halves: Halves, octets: Octets, tree: int) -> None:
    """Begin with an empty leaf. The sets of the map have no pages when this is called."""
    for super_block in (tree, tree + LISTS):
        words[super_block + S_TAIL] = 0
        words[super_block + S_FREE] = 0
    words[tree + S_COUNT] = 0
    words[tree + S_ROOT] = take_tree_node(words, halves, octets, tree, 1)
