"""Variable-length values of a unit: keys' variable parts, strings that aggregates keep.

Invariants:
    * What is stored does not change; an update stores a new value and frees the old one.
    * A freed value keeps its bytes until the next `begin`, so rolling back needs no copy of it.
    * A value is found again after a crash only through a record: the words that hold length and address are named in
      the record's layout (`heap_values`). What no record names is free.
"""

from __future__ import annotations

import numpy as np

from holdfast.state.compiled import Octets, Words
from holdfast.state.hash_map import Wave
from holdfast.state.heap_kernels import class_bytes, class_of, free_values, gather_values, store_values
from holdfast.state.layout import HEAP_SET, PAGE_BYTES, S_TAIL


class Heap:
    """Bytes by address. The caller keeps length and address in two value words of a record."""

    def __init__(self, wave: Wave) -> None:
        self._wave = wave
        self._super = wave.file.sets[HEAP_SET].super

    @property
    def size_bytes(self) -> int:
        """Return the bytes between the first cell and the last, free ones included."""
        return int(self._wave.file.words[self._super + S_TAIL])

    def store(self, offsets: Words, data: Octets) -> Words:
        """Store `data[offsets[i]:offsets[i + 1]]` for each i and return the addresses; no bytes have the address 0."""
        self._wave.check_open("store")
        file = self._wave.file
        addresses = np.empty(max(len(offsets) - 1, 0), np.int64)
        file.resume(
            lambda done: store_values(
                file.words, file.halves, file.octets, self._super, offsets, data, done, addresses
            ),
            len(addresses),
            lambda done: 2 * (class_bytes(class_of(int(offsets[done + 1] - offsets[done]))) // PAGE_BYTES + 8),
        )
        return addresses

    def gather(self, addresses: Words, lengths: Words) -> tuple[Words, Octets]:
        """Return the values one behind the other, as offsets and data; a length below 1 is no bytes."""
        file = self._wave.file
        offsets = np.zeros(len(addresses) + 1, np.int64)
        np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
        data = np.empty(int(offsets[-1]), np.uint8)
        gather_values(file.words, file.halves, file.octets, self._super, addresses, offsets, data)
        return offsets, data

    def free(self, addresses: Words, lengths: Words) -> None:
        """Give values back that no record names any more when the wave is finished."""
        self._wave.check_open("free")
        file = self._wave.file
        file.resume(
            lambda done: free_values(file.words, file.halves, file.octets, self._super, addresses, lengths, done),
            len(addresses),
            lambda _: 16,
        )
