"""What closes next: records by an int64 of theirs, lowest first.

Invariants:
    * Every live record whose key word is not `NO_KEY` is in the map, under that word: so the map can be derived.
      Who pops a record frees it, or gives it a new key word and adds it again, in the same wave.
    * `pop_until` gives keys in ascending order; the order of records with the same key is not defined.

```python
closing.add(window_ends, records)                        # the key word of each record holds its window's end
ends, records = closing.pop_until(watermark + 1)         # ends are exclusive
```
"""

from __future__ import annotations

from typing import Final

import numpy as np

from holdfast.state.compiled import Words
from holdfast.state.hash_map import Wave
from holdfast.state.layout import S_COUNT, OrderedLayout
from holdfast.state.tree import LINE_RECORDS, add_records, has_below, pop_records

NO_KEY: Final = -(2**63)
"""In the key word of a record: it is not in the map."""
POP_RECORDS: Final = 65536


class OrderedMap:
    """Lists of records by key."""

    def __init__(self, wave: Wave, layout: OrderedLayout) -> None:
        self.layout = layout
        self._wave = wave
        self._super = wave.file.set_of(f"{layout.name}.tree").super

    @property
    def keys_count(self) -> int:
        """Return how many distinct keys there are."""
        return int(self._wave.file.words[self._super + S_COUNT])

    def add(self, keys: Words, records: Words) -> None:
        """Enter each record under its key, which its key word holds too when the wave is finished."""
        self._wave.check_open("add")
        file = self._wave.file
        file.resume(
            lambda done: add_records(file.words, file.halves, file.octets, self._super, keys, records, done),
            len(records),
            lambda _: 16,
        )

    def has_before(self, limit: int) -> bool:
        """Return whether there is a record with a key below `limit`."""
        file = self._wave.file
        return bool(has_below(file.words, file.halves, self._super, limit))

    def pop_until(self, limit: int) -> tuple[Words, Words]:
        """Take out everything with a key below `limit`; return keys and records, in order of key."""
        self._wave.check_open("pop_until")
        file = self._wave.file
        keys: list[Words] = []
        records: list[Words] = []
        room = 1024
        while True:
            some_keys = np.empty(room, np.int64)
            some_records = np.empty(room, np.int64)
            count = pop_records(file.words, file.halves, self._super, limit, some_keys, some_records)
            keys.append(some_keys[:count])
            records.append(some_records[:count])
            if room - count >= LINE_RECORDS:
                return np.concatenate(keys), np.concatenate(records)
            room = POP_RECORDS
