"""Kernels of the hash map: find, insert, save before-images, free, roll back, rebuild.

Invariants:
    * A record's header is `wave << 8 | BORN | LIVE`: the wave that touched it last and whether that wave made it.
      A dead one is `link << 8`, the chain of dead records.
    * Before a record that is older than the wave is handed out, its header and value words are in the wave log. Key
      words never change while a record lives. Kernels that change values run after the log was published.
    * A record that a wave frees is used again only after the next `begin`.

Every kernel that may run out of free pages is resumable: it returns how far it came and Python extends the file.
Super blocks lie one behind the other: records, log, index, overflow.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from holdfast.state.address import address_in, following, make_writable, take_page
from holdfast.state.compiled import Halves, Octets, Words, kernel, prefetch
from holdfast.state.heap_kernels import equals_value, free_cell, pages_for, store_value
from holdfast.state.index import (
    INDEX,
    LINES,
    LINES_SHIFT,
    LOW_HALF,
    OVERFLOW,
    bucket_of_tag,
    index_record,
    mask_of,
    reset_index,
    tag_of,
    unindex_record,
)
from holdfast.state.layout import (
    H_FREE_COUNT,
    H_SNAPSHOT,
    H_STAMP_BASE,
    H_WAVE,
    LINE_WORDS,
    PAGE_SHIFT,
    S_COUNT,
    S_FIRST_VALUE,
    S_FREE,
    S_FREED,
    S_FREED_LAST,
    S_HEAP,
    S_HEAP_VALUES,
    S_KEYS,
    S_LOGGED,
    S_PAGES,
    S_PUBLISHED,
    S_TABLE,
    S_TAIL,
    S_VALUES,
    S_VARIABLE,
    SUPER_WORDS,
    T_SHIFT,
    T_SLOTS,
    T_WIDTH,
    TABLE_HEAD,
)

LIVE: Final = 1
BORN: Final = 2
STAMP_SHIFT: Final = 8
LOG: Final = SUPER_WORDS
BLOCK: Final = 256
"""Keys for which free pages are made sure of at once."""
AHEAD: Final = 16
"""Keys between one step of a lookup and the next: as many lines as a core can wait for at a time."""


@kernel
def block_pages(words: Words, halves: Halves, super_block: int, rows: int) -> int:
    """Return the free pages that a block of `rows` may take: records, before-images, index, copies of held pages."""
    slots = halves[words[super_block + S_TABLE] + T_SLOTS]
    log_slots = halves[words[super_block + LOG + S_TABLE] + T_SLOTS]
    pages = rows // slots + rows // log_slots + 8
    return pages + rows if words[H_SNAPSHOT] != 0 else pages


@kernel
def has_key(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    start: int,
    hash_word: int,
    keys: Words,
    row: int,
    offsets: Words,
    data: Octets,
) -> bool:
    """Say whether the record at word `start` has the hash, key words and variable bytes of a row."""
    if words[start + 1] != hash_word:
        return False
    fixed = words[super_block + S_KEYS]
    for word in range(fixed):
        if words[start + 2 + word] != keys[row, word]:
            return False
    if words[super_block + S_VARIABLE] == 0:
        return True
    length = offsets[row + 1] - offsets[row]
    if words[start + 2 + fixed] != length:
        return False
    cell = words[start + 3 + fixed]
    return equals_value(words, halves, octets, words[super_block + S_HEAP], cell, data, offsets[row], length)


@kernel
def find_record(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    hash_word: int,
    keys: Words,
    row: int,
    offsets: Words,
    data: Octets,
) -> int:
    """Return the record of a key, or -1."""
    tag = tag_of(hash_word)
    buckets = words[super_block + INDEX + S_COUNT]
    line = address_in(halves, words[super_block + INDEX + S_TABLE], bucket_of_tag(tag, buckets, mask_of(buckets)))
    table = words[super_block + S_TABLE]
    overflow_table = words[super_block + OVERFLOW + S_TABLE]
    while True:
        for place in range(1, 8):
            entry = words[line + place]
            if entry >> 32 == tag and entry & LOW_HALF != 0:
                record = (entry & LOW_HALF) - 1
                start = address_in(halves, table, record)
                if has_key(words, halves, octets, super_block, start, hash_word, keys, row, offsets, data):
                    return record
        if words[line] == 0:
            return -1
        line = address_in(halves, overflow_table, words[line] - 1)


@kernel
def take_record(words: Words, halves: Halves, octets: Octets, super_block: int, table: int) -> int:
    """Return the number of a record that no key has."""
    free = words[super_block + S_FREE]
    if free != 0:
        words[super_block + S_FREE] = words[address_in(halves, table, free - 1)] >> STAMP_SHIFT
        return free - 1
    number = words[super_block + S_TAIL]
    if number >> halves[table + T_SHIFT] >= words[super_block + S_PAGES]:
        take_page(words, halves, octets, super_block)
    words[super_block + S_TAIL] = following(halves, table, number)
    return number


@kernel
def insert_record(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    hash_word: int,
    keys: Words,
    row: int,
    offsets: Words,
    data: Octets,
) -> int:
    """Make a record for a key that has none, its values all 0, and return its number."""
    table = words[super_block + S_TABLE]
    record = take_record(words, halves, octets, super_block, table)
    make_writable(
        words, halves, octets, words[super_block + S_TABLE] + TABLE_HEAD + (record >> halves[table + T_SHIFT])
    )
    start = address_in(halves, table, record)
    fixed = words[super_block + S_KEYS]
    words[start + 1] = hash_word
    for word in range(fixed):
        words[start + 2 + word] = keys[row, word]
    if words[super_block + S_VARIABLE] != 0:
        length = offsets[row + 1] - offsets[row]
        heap = words[super_block + S_HEAP]
        words[start + 2 + fixed] = length
        words[start + 3 + fixed] = store_value(words, halves, octets, heap, data, offsets[row], length)
    first = start + words[super_block + S_FIRST_VALUE]
    for word in range(words[super_block + S_VALUES]):
        words[first + word] = 0
    words[start] = (words[H_WAVE] << STAMP_SHIFT) | BORN | LIVE
    index_record(words, halves, octets, super_block, record, hash_word)
    return record


@kernel
def save_record(words: Words, halves: Halves, octets: Octets, super_block: int, record: int) -> None:
    """Put the header and values of a record that this wave has not touched into the log, and stamp it."""
    table = words[super_block + S_TABLE]
    shift = halves[table + T_SHIFT]
    entry = table + TABLE_HEAD + (record >> shift)
    if words[words[H_STAMP_BASE] + halves[entry]] != words[H_WAVE]:
        make_writable(words, halves, octets, entry)
    start = address_in(halves, table, record)
    log = super_block + LOG
    log_table = words[log + S_TABLE]
    number = words[log + S_LOGGED]
    if number >> halves[log_table + T_SHIFT] >= words[log + S_PAGES]:
        take_page(words, halves, octets, log)
    image = address_in(halves, log_table, number)
    words[image] = record
    words[image + 1] = words[start]
    first = start + words[super_block + S_FIRST_VALUE]
    for word in range(words[super_block + S_VALUES]):
        words[image + 2 + word] = words[first + word]
    words[log + S_LOGGED] = following(halves, log_table, number)
    words[start] = (words[H_WAVE] << STAMP_SHIFT) | LIVE


@kernel
def block_end(words: Words, halves: Halves, super_block: int, offsets: Words, first: int, end: int) -> int:
    """Return where a block that begins at row `first` ends, or `first` if there are too few free pages for it."""
    pages = block_pages(words, halves, super_block, end - first)
    if words[super_block + S_VARIABLE] != 0:
        # A block may hold very long keys: it ends where their pages would be too many to ask for at once.
        limit = pages + BLOCK
        row = first
        while row < end:
            needed = pages_for(words, offsets[row + 1] - offsets[row])
            if row > first and pages + needed > limit:
                break
            pages += needed
            row += 1
        end = row
    return end if words[H_FREE_COUNT] >= pages else first


@kernel
def find_or_insert(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    hash_word: int,
    keys: Words,
    row: int,
    offsets: Words,
    data: Octets,
) -> int:
    """Return the record of a key, or `~record` of the one that was made for it."""
    record = find_record(words, halves, octets, super_block, hash_word, keys, row, offsets, data)
    if record >= 0:
        return record
    return ~insert_record(words, halves, octets, super_block, hash_word, keys, row, offsets, data)


@kernel
def locate_records(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    hashes: Words,
    keys: Words,
    offsets: Words,
    data: Octets,
    first: int,
    records: Words,
    is_new: Octets,
) -> int:
    """Find or insert rows from `first` on; return the first row that needs more free pages, or their number.

    A row goes through three steps, `AHEAD` rows apart: ask memory for its line of the index; read the line and ask for
    the record that it seems to name; compare and save. So waiting and computing overlap. What the first two steps see
    is only a guess (a tag is half a hash, a bucket may have more lines, a split may come between).
    """
    table = words[super_block + S_TABLE]
    shift = halves[table + T_SHIFT]
    width = halves[table + T_WIDTH]
    low = (1 << shift) - 1
    entries = table + TABLE_HEAD
    index = super_block + INDEX
    index_entries = words[index + S_TABLE] + TABLE_HEAD
    wave = words[H_WAVE]
    fixed = words[super_block + S_KEYS]
    variable = words[super_block + S_VARIABLE] != 0
    values = words[super_block + S_VALUES]
    first_value = words[super_block + S_FIRST_VALUE]
    stamps = words[H_STAMP_BASE]
    log = super_block + LOG
    log_table = words[log + S_TABLE]
    log_shift = halves[log_table + T_SHIFT]
    lines = np.empty(BLOCK, np.int64)
    rows = len(records)
    while first < rows:
        end = block_end(words, halves, super_block, offsets, first, min(first + BLOCK, rows))
        if end == first:
            return first
        buckets = words[index + S_COUNT]
        mask = mask_of(buckets)
        for step in range(first, end + 2 * AHEAD):
            if step < end:
                bucket = bucket_of_tag(tag_of(hashes[np.uint64(step)]), buckets, mask)
                page = halves[np.uint64(index_entries + (bucket >> LINES_SHIFT))]
                line = (page << PAGE_SHIFT) + (bucket & (LINES - 1)) * LINE_WORDS
                lines[np.uint64(step - first)] = line
                prefetch(words, line)
            row = step - AHEAD
            if first <= row < end:
                tag = tag_of(hashes[np.uint64(row)])
                line = lines[np.uint64(row - first)]
                entry = 0
                for place in range(1, 8):
                    other = words[np.uint64(line + place)]
                    entry = other if other >> 32 == tag else entry
                record = (entry & LOW_HALF) - 1
                records[np.uint64(row)] = record
                known = max(record, 0)
                page = halves[np.uint64(entries + (known >> shift))]
                prefetch(words, (page << PAGE_SHIFT) + (known & low) * width)
            row = step - 2 * AHEAD
            if row < first:
                continue
            hash_word = hashes[np.uint64(row)]
            record = records[np.uint64(row)]
            known = max(record, 0)
            page = halves[np.uint64(entries + (known >> shift))]
            start = (page << PAGE_SHIFT) + (known & low) * width
            found = record >= 0 and words[np.uint64(start + 1)] == hash_word
            if found:
                for word in range(fixed):
                    if words[np.uint64(start + 2 + word)] != keys[row, word]:
                        found = False
                        break
                if found and variable:
                    found = has_key(words, halves, octets, super_block, start, hash_word, keys, row, offsets, data)
            is_new[np.uint64(row)] = 0
            if not found:
                answer = find_or_insert(words, halves, octets, super_block, hash_word, keys, row, offsets, data)
                is_new[row] = 1 if answer < 0 else 0
                record = ~answer if answer < 0 else answer
                records[row] = record
                start = address_in(halves, table, record)
            # What `save_record` does, written out: as a call it took as long as all the rest.
            if words[np.uint64(start)] >> STAMP_SHIFT == wave:
                continue
            place = entries + (record >> shift)
            if words[np.uint64(stamps + halves[np.uint64(place)])] != wave:
                make_writable(words, halves, octets, place)
                start = address_in(halves, table, record)
            number = words[log + S_LOGGED]
            if number >> log_shift >= words[log + S_PAGES]:
                take_page(words, halves, octets, log)
            image = address_in(halves, log_table, number)
            words[np.uint64(image)] = record
            words[np.uint64(image + 1)] = words[np.uint64(start)]
            for word in range(values):
                words[np.uint64(image + 2 + word)] = words[np.uint64(start + first_value + word)]
            words[log + S_LOGGED] = following(halves, log_table, number)
            words[np.uint64(start)] = (wave << STAMP_SHIFT) | LIVE
        first = end
    return rows


@kernel
def find_records(
    words: Words,
    halves: Halves,
    octets: Octets,
    super_block: int,
    hashes: Words,
    keys: Words,
    offsets: Words,
    data: Octets,
    records: Words,
) -> None:
    """Find rows without changing anything; -1 for a key that is not there."""
    for row in range(len(records)):
        hash_word = hashes[row]
        records[row] = find_record(words, halves, octets, super_block, hash_word, keys, row, offsets, data)


@kernel
def touch_records(words: Words, halves: Halves, octets: Octets, super_block: int, records: Words, first: int) -> int:
    """Save before-images of records from `first` on; return the first that needs more free pages, or their number."""
    table = words[super_block + S_TABLE]
    wave = words[H_WAVE]
    ahead = 16
    for index in range(first, len(records)):
        if words[H_FREE_COUNT] < 4:
            return index
        if index + ahead < len(records):
            prefetch(words, address_in(halves, table, records[index + ahead]))
        header = words[address_in(halves, table, records[index])]
        if header & LIVE != 0 and header >> STAMP_SHIFT != wave:
            save_record(words, halves, octets, super_block, records[index])
    return len(records)


@kernel
def kill_records(words: Words, halves: Halves, octets: Octets, super_block: int, records: Words, first: int) -> int:
    """Free touched records from `first` on, with what they keep in the heap; resumable like the others."""
    table = words[super_block + S_TABLE]
    heap = words[super_block + S_HEAP]
    for index in range(first, len(records)):
        if words[H_FREE_COUNT] < 4 + words[super_block + S_VALUES]:
            return index
        record = records[index]
        start = address_in(halves, table, record)
        if words[start] & LIVE == 0:
            continue
        unindex_record(words, halves, super_block, record, words[start + 1])
        if words[super_block + S_VARIABLE] != 0:
            length_at = start + 2 + words[super_block + S_KEYS]
            free_cell(words, halves, octets, heap, words[length_at + 1], words[length_at])
        values = start + words[super_block + S_FIRST_VALUE]
        for word in range(words[super_block + S_VALUES]):
            if (words[super_block + S_HEAP_VALUES] >> word) & 1 != 0:
                free_cell(words, halves, octets, heap, words[values + word + 1], words[values + word])
        words[start] = words[super_block + S_FREED] << STAMP_SHIFT
        if words[super_block + S_FREED] == 0:
            words[super_block + S_FREED_LAST] = record + 1
        words[super_block + S_FREED] = record + 1
    return len(records)


@kernel
def settle_records(words: Words, halves: Halves, octets: Octets, super_block: int) -> None:
    """Make the records that the last wave freed available: put their chain before that of the free ones."""
    freed = words[super_block + S_FREED]
    if freed == 0:
        return
    if words[super_block + S_FREE] != 0:
        last = words[super_block + S_FREED_LAST] - 1
        table = words[super_block + S_TABLE]
        make_writable(
            words, halves, octets, words[super_block + S_TABLE] + TABLE_HEAD + (last >> halves[table + T_SHIFT])
        )
        words[address_in(halves, table, last)] = words[super_block + S_FREE] << STAMP_SHIFT
    words[super_block + S_FREE] = freed
    words[super_block + S_FREED] = 0


@kernel
def roll_back_records(words: Words, halves: Halves, octets: Octets, super_block: int, number: int) -> int:
    """Restore published before-images from `number` on; return where it stopped, or the end of the log."""
    table = words[super_block + S_TABLE]
    log_table = words[super_block + LOG + S_TABLE]
    end = words[super_block + LOG + S_PUBLISHED]
    while number < end:
        if words[H_FREE_COUNT] < 2:
            return number
        image = address_in(halves, log_table, number)
        record = words[image]
        make_writable(
            words, halves, octets, words[super_block + S_TABLE] + TABLE_HEAD + (record >> halves[table + T_SHIFT])
        )
        start = address_in(halves, table, record)
        words[start] = words[image + 1]
        first = start + words[super_block + S_FIRST_VALUE]
        for word in range(words[super_block + S_VALUES]):
            words[first + word] = words[image + 2 + word]
        number = following(halves, log_table, number)
    return number


@kernel
def reindex_records(words: Words, halves: Halves, octets: Octets, super_block: int, number: int, wave: int) -> int:
    """Rebuild index and chain of dead records from record `number` on; records born in `wave` die. Resumable.

    Called with `number` 0 it begins anew; the index and overflow sets have no pages then.
    """
    table = words[super_block + S_TABLE]
    if number == 0:
        reset_index(words, halves, octets, super_block)
        words[super_block + S_FREE] = 0
        words[super_block + S_FREED] = 0
    tail = words[super_block + S_TAIL]
    while number < tail:
        if words[H_FREE_COUNT] < 8:
            return number
        start = address_in(halves, table, number)
        header = words[start]
        born = (wave << STAMP_SHIFT) | BORN | LIVE
        if header & LIVE != 0 and header != born:
            index_record(words, halves, octets, super_block, number, words[start + 1])
        else:
            link = words[super_block + S_FREE] << STAMP_SHIFT
            if header != link:
                make_writable(
                    words,
                    halves,
                    octets,
                    words[super_block + S_TABLE] + TABLE_HEAD + (number >> halves[table + T_SHIFT]),
                )
                words[address_in(halves, table, number)] = link
            words[super_block + S_FREE] = number + 1
        number = following(halves, table, number)
    return number


@kernel
def live_records(words: Words, halves: Halves, super_block: int, number: int, records: Words) -> tuple[int, int]:
    """List live records from `number` on; return where the list was full (or the end), and how many are in it."""
    table = words[super_block + S_TABLE]
    count = 0
    while number < words[super_block + S_TAIL] and count < len(records):
        if words[address_in(halves, table, number)] & LIVE != 0:
            records[count] = number
            count += 1
        number = following(halves, table, number)
    return number, count


@kernel
def read_words(words: Words, halves: Halves, super_block: int, records: Words, word: int, out: Words) -> None:
    """Copy one word of each record."""
    table = words[super_block + S_TABLE]
    for index in range(len(records)):
        out[index] = words[address_in(halves, table, records[index]) + word]
