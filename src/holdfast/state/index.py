"""The hash index of a map: linear hashing, one cache line a bucket, one bucket split at a time.

Invariants:
    * An entry is `tag << 32 | record + 1`; 0 is an empty place. The tag is the top half of the scrambled hash, and its
      low bits choose the bucket, so a split reads no record.
    * Bucket b of n lies at `tag & (2^k - 1)` where 2^k > b is the level; growth never moves more than one bucket.
    * A bucket whose seven places are full goes on in overflow lines; word 0 of a line names the next (line + 1).

The index is derived: it is rebuilt from the records and never logged. Super blocks lie one behind the other: records,
log, index, overflow.
"""

from __future__ import annotations

from typing import Final

from holdfast.state.address import address_in, take_zero_page
from holdfast.state.compiled import Halves, Octets, Words, kernel
from holdfast.state.layout import S_COUNT, S_FREE, S_PAGES, S_TABLE, S_TAIL, SUPER_WORDS

LINES_SHIFT: Final = 8
LINES: Final = 256
"""Lines of a page."""
SCRAMBLE: Final = 0x9E3779B97F4A7C15 - (1 << 64)
"""The golden ratio as a signed word: shards take some bits of a hash, so the index must not rest on those alone."""
LOW_HALF: Final = 0xFFFFFFFF
BUCKET_LOAD: Final = 2
"""Entries a bucket, on average. A bucket not yet split has up to twice that, and few then need a second line."""
INDEX: Final = 2 * SUPER_WORDS
OVERFLOW: Final = 3 * SUPER_WORDS


@kernel
def tag_of(hash_word: int) -> int:
    """Return the 32 bits (signed) by which the index knows a hash."""
    return (hash_word * SCRAMBLE) >> 32


@kernel
def mask_of(buckets: int) -> int:
    """Return the mask of the level that `buckets` buckets have begun: the next power of two, less one."""
    mask = buckets - 1
    mask |= mask >> 1
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    return mask


@kernel
def bucket_of_tag(tag: int, buckets: int, mask: int) -> int:
    """Return the bucket of a tag among `buckets`, with `mask` from `mask_of(buckets)`."""
    bucket = tag & mask
    if bucket >= buckets:
        bucket &= mask >> 1
    return bucket


@kernel
def take_overflow_line(words: Words, halves: Halves, octets: Octets, overflow: int, table: int) -> int:
    """Return the number of an empty overflow line."""
    free = words[overflow + S_FREE]
    if free != 0:
        line = address_in(halves, table, free - 1)
        words[overflow + S_FREE] = words[line]
        words[line] = 0
        return free - 1
    number = words[overflow + S_TAIL]
    if number >> LINES_SHIFT >= words[overflow + S_PAGES]:
        take_zero_page(words, halves, octets, overflow)
    words[overflow + S_TAIL] = number + 1
    return number


@kernel
def add_entry(
    words: Words, halves: Halves, octets: Octets, overflow: int, overflow_table: int, line: int, entry: int
) -> None:
    """Put an entry into the first empty place of the bucket whose first line begins at word `line`."""
    while True:
        for place in range(1, 8):
            if words[line + place] == 0:
                words[line + place] = entry
                return
        if words[line] == 0:
            words[line] = take_overflow_line(words, halves, octets, overflow, overflow_table) + 1
        line = address_in(halves, overflow_table, words[line] - 1)


@kernel
def split_bucket(words: Words, halves: Halves, octets: Octets, super_block: int) -> None:
    """Add the next bucket and move to it what belongs there of the one bucket that it parts from."""
    index = super_block + INDEX
    overflow = super_block + OVERFLOW
    new = words[index + S_COUNT]
    if new >> LINES_SHIFT >= words[index + S_PAGES]:
        take_zero_page(words, halves, octets, index)
    index_table = words[index + S_TABLE]
    overflow_table = words[overflow + S_TABLE]
    mask = mask_of(new + 1)
    target = address_in(halves, index_table, new)
    line = address_in(halves, index_table, new & (mask >> 1))
    # What stays is packed to the front of the chain while we read along it.
    kept_line = line
    kept_place = 1
    while True:
        for place in range(1, 8):
            entry = words[line + place]
            if entry == 0:
                continue
            words[line + place] = 0
            if (entry >> 32) & mask == new:
                add_entry(words, halves, octets, overflow, overflow_table, target, entry)
                continue
            if kept_place == 8:
                kept_line = address_in(halves, overflow_table, words[kept_line] - 1)
                kept_place = 1
            words[kept_line + kept_place] = entry
            kept_place += 1
        if words[line] == 0:
            break
        line = address_in(halves, overflow_table, words[line] - 1)
    free_lines_behind(words, halves, overflow, overflow_table, kept_line)
    words[index + S_COUNT] = new + 1


@kernel
def free_lines_behind(words: Words, halves: Halves, overflow: int, overflow_table: int, line: int) -> None:
    following_line = words[line]
    words[line] = 0
    while following_line != 0:
        start = address_in(halves, overflow_table, following_line - 1)
        next_line = words[start]
        words[start] = words[overflow + S_FREE]
        words[overflow + S_FREE] = following_line
        following_line = next_line


@kernel
def index_record(words: Words, halves: Halves, octets: Octets, super_block: int, record: int, hash_word: int) -> None:
    """Enter a record under its hash, and split one bucket where the load asks for it."""
    index = super_block + INDEX
    overflow = super_block + OVERFLOW
    tag = tag_of(hash_word)
    buckets = words[index + S_COUNT]
    index_table = words[index + S_TABLE]
    line = address_in(halves, index_table, bucket_of_tag(tag, buckets, mask_of(buckets)))
    overflow_table = words[overflow + S_TABLE]
    add_entry(words, halves, octets, overflow, overflow_table, line, (tag << 32) | (record + 1))
    words[super_block + S_COUNT] += 1
    if words[super_block + S_COUNT] > buckets * BUCKET_LOAD:
        split_bucket(words, halves, octets, super_block)


@kernel
def unindex_record(words: Words, halves: Halves, super_block: int, record: int, hash_word: int) -> bool:
    """Take a record out of the index; say whether it was there."""
    tag = tag_of(hash_word)
    buckets = words[super_block + INDEX + S_COUNT]
    line = address_in(halves, words[super_block + INDEX + S_TABLE], bucket_of_tag(tag, buckets, mask_of(buckets)))
    overflow_table = words[super_block + OVERFLOW + S_TABLE]
    entry = (tag << 32) | (record + 1)
    while True:
        for place in range(1, 8):
            if words[line + place] == entry:
                words[line + place] = 0
                words[super_block + S_COUNT] -= 1
                return True
        if words[line] == 0:
            return False
        line = address_in(halves, overflow_table, words[line] - 1)


@kernel
def reset_index(words: Words, halves: Halves, octets: Octets, super_block: int) -> None:
    """Begin with one page of empty buckets. The index and overflow sets have no pages when this is called."""
    index = super_block + INDEX
    overflow = super_block + OVERFLOW
    words[super_block + S_COUNT] = 0
    words[overflow + S_TAIL] = 0
    words[overflow + S_FREE] = 0
    take_zero_page(words, halves, octets, index)
    words[index + S_COUNT] = LINES
