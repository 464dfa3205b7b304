"""Keys to records: what operators keep a value in.

Invariants:
    * `locate` and `touch` only add to the wave log; call `UnitState.publish` before a kernel changes values of records
      that were there before.
    * A record number stays the same while its key lives. The number of a freed one is not used again in the same wave.

```python
records, is_new = counts.locate(hashes, keys)
state.publish()
add_one(state.words, counts.table, counts.first_value, records)
```
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from holdfast.state.compiled import Halves, Hashes, Octets, Words
from holdfast.state.layout import S_COUNT, RecordLayout
from holdfast.state.map_kernels import (
    BLOCK,
    block_pages,
    find_records,
    kill_records,
    locate_records,
    read_words,
    touch_records,
)
from holdfast.state.pages import PageFile

NO_OFFSETS: Words = np.zeros(0, np.int64)
NO_DATA: Octets = np.zeros(0, np.uint8)


class Wave(Protocol):
    """What a map needs of the unit's state: that a wave is open, and to publish its before-images."""

    @property
    def file(self) -> PageFile: ...
    def check_open(self, action: str) -> None: ...
    def publish(self) -> None: ...


class HashMap:
    """The records of one set, found by key. `first_value` is the position of a record's first value word."""

    def __init__(self, wave: Wave, layout: RecordLayout) -> None:
        self.layout = layout
        self.first_value = layout.first_value
        self.first_key = 2
        self._wave = wave
        self._set = wave.file.set_of(layout.name)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def table(self) -> Halves:
        """Return the page table for `address(table, record)`; ask again after every call that may grow the state."""
        return self._wave.file.tables[self._set.number]

    @property
    def count(self) -> int:
        """Return how many keys there are."""
        return int(self._wave.file.words[self._set.super + S_COUNT])

    def locate(
        self, hashes: Hashes, keys: Words, offsets: Words = NO_OFFSETS, data: Octets = NO_DATA
    ) -> tuple[Words, Octets]:
        """Return the record of each row, made where the key is new (all its values 0), and 1 where it was made.

        `keys` has a row of fixed words each; the variable part of row i is `data[offsets[i]:offsets[i + 1]]`. Of
        several rows with the same new key the first made it.
        """
        self._wave.check_open("locate")
        self._check(hashes, keys, offsets)
        rows = len(hashes)
        records = np.empty(rows, np.int64)
        is_new = np.empty(rows, np.uint8)
        file = self._wave.file
        done = 0
        while True:
            done = locate_records(
                file.words,
                file.halves,
                file.octets,
                self._set.super,
                hashes.view(np.int64),
                keys,
                offsets,
                data,
                done,
                records,
                is_new,
            )
            if done == rows:
                return records, is_new
            self._make_room(done, offsets)

    def find(self, hashes: Hashes, keys: Words, offsets: Words = NO_OFFSETS, data: Octets = NO_DATA) -> Words:
        """Return the record of each row, -1 where there is none. Changes nothing."""
        self._check(hashes, keys, offsets)
        records = np.empty(len(hashes), np.int64)
        file = self._wave.file
        find_records(
            file.words, file.halves, file.octets, self._set.super, hashes.view(np.int64), keys, offsets, data, records
        )
        return records

    def touch(self, records: Words) -> None:
        """Save before-images of records that were found in another way than by `locate`."""
        self._wave.check_open("touch")
        file = self._wave.file
        done = 0
        while True:
            done = touch_records(file.words, file.halves, file.octets, self._set.super, records, done)
            if done == len(records):
                return
            file.require(64)

    def free(self, records: Words) -> None:
        """Forget these keys now; the records and what they name in the heap are used again after the next `begin`."""
        self.touch(records)
        self._wave.publish()
        file = self._wave.file
        done = 0
        while True:
            done = kill_records(file.words, file.halves, file.octets, self._set.super, records, done)
            if done == len(records):
                return
            file.require(64 + self.layout.values)

    def read(self, records: Words, word: int) -> Words:
        """Return one word of each record; `first_key` and `first_value` say where keys and values begin."""
        out = np.empty(len(records), np.int64)
        file = self._wave.file
        read_words(file.words, file.halves, self._set.super, records, word, out)
        return out

    def _check(self, hashes: Hashes, keys: Words, offsets: Words) -> None:
        assert hashes.dtype == np.uint64 and keys.dtype == np.int64, "hashes are uint64 and key words int64"
        assert keys.shape == (len(hashes), self.layout.keys), f"{self.name} has {self.layout.keys} key words a row"
        assert not self.layout.variable or len(offsets) == len(hashes) + 1, "one offset more than there are rows"

    def _make_room(self, done: int, offsets: Words) -> None:
        file = self._wave.file
        pages = block_pages(file.words, file.halves, self._set.super, BLOCK) + BLOCK
        if self.layout.variable:
            pages += 2 * (int(offsets[done + 1] - offsets[done]) * 3 // 2 // 16384 + 8)
        file.require(pages)
