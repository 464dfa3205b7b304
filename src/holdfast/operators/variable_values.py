"""Text and bytes that aggregates keep (min, max, first, last), while kernels run over them.

Invariants:
    * During a wave a value's address is a place in one array of bytes: what the touched records held before, then the
      wave's own arguments. So kernels compare and replace values without allocating anything.
    * Afterwards each address is one of the state's heap again: a value that stayed keeps its cell, a new one gets one,
      a replaced one gives its cell back.
"""

from __future__ import annotations

import numpy as np

from holdfast.operators.columns import Bytes, Words
from holdfast.operators.keys import copy_spans
from holdfast.operators.window_kernels import gather_words, scatter_words
from holdfast.state.hash_map import HashMap
from holdfast.state.heap import Heap
from holdfast.state.unit_state import UnitState

NO_BYTES = np.zeros(0, np.uint8)


class VariableValues:
    """The variable values of the records that one wave touches. `heap_values` are value words that hold a length."""

    def __init__(self, state: UnitState, records_map: HashMap, heap: Heap, heap_values: tuple[int, ...]) -> None:
        self._state = state
        self._map = records_map
        self._heap = heap
        self._heap_values = heap_values
        self._records: Words = np.zeros(0, np.int64)
        self._kept: list[tuple[Words, Words, Words, Words]] = []
        self._kept_bytes = 0

    def enter(self, records: Words) -> Bytes:
        """Take what these records keep out of the heap, point them to it, and return it."""
        if not self._heap_values:
            return NO_BYTES
        self._records = np.unique(records)
        parts: list[Bytes] = []
        self._kept = []
        self._kept_bytes = 0
        for word in self._heap_values:
            pairs = self._read(word)
            held = np.flatnonzero(pairs[:, 0] > 0)
            lengths, addresses = np.ascontiguousarray(pairs[held, 0]), np.ascontiguousarray(pairs[held, 1])
            offsets, data = self._heap.gather(addresses, lengths)
            starts = offsets[:-1] + self._kept_bytes
            pairs[held, 1] = starts
            self._write(word, pairs)
            self._kept.append((held, starts, addresses, lengths))
            self._kept_bytes += len(data)
            parts.append(data)
        return np.concatenate(parts)

    def leave(self, data: Bytes) -> None:
        """Put into the heap what the records have come to keep of the wave's bytes, and free what they gave up."""
        for word, (held, starts, addresses, lengths) in zip(self._heap_values, self._kept, strict=True):
            pairs = self._read(word)
            before = np.full(len(pairs), -1, np.int64)
            before[held] = starts
            stayed = (pairs[:, 0] > 0) & (pairs[:, 1] == before)
            heap_addresses = np.zeros(len(pairs), np.int64)
            heap_addresses[held] = addresses
            fresh = np.flatnonzero((pairs[:, 0] > 0) & ~stayed)
            heap_addresses[fresh] = self._heap.store(
                *gather_spans(np.ascontiguousarray(pairs[fresh, 1]), np.ascontiguousarray(pairs[fresh, 0]), data)
            )
            gone = ~stayed[held]
            self._heap.free(np.ascontiguousarray(addresses[gone]), np.ascontiguousarray(lengths[gone]))
            pairs[:, 1] = np.where(pairs[:, 0] > 0, heap_addresses, 0)
            self._write(word, pairs)

    def _read(self, word: int) -> Words:
        first = self._map.first_value + word
        pairs: Words = gather_words(self._state.words, self._map.table, self._records, first, 2)
        return pairs

    def _write(self, word: int, pairs: Words) -> None:
        first = self._map.first_value + word
        scatter_words(self._state.words, self._map.table, self._records, first, np.ascontiguousarray(pairs))


def gather_spans(starts: Words, lengths: Words, data: Bytes) -> tuple[Words, Bytes]:
    """Return spans of `data` one behind the other, as offsets and data; a length below 1 is no bytes."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    target = np.empty(int(offsets[-1]), np.uint8)
    copy_spans(np.ascontiguousarray(starts), data, offsets, target)
    return offsets, target
