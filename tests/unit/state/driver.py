"""A unit that keeps a count, a sum, a closing time and the last text of each key, and the same as a plain dict."""

from __future__ import annotations

import itertools
import os
import zlib
from dataclasses import dataclass

import numpy as np

from holdfast.state import Identity, OrderedLayout, RecordLayout, StateLayout, UnitState, address

COUNT, SUM, CLOSE, TEXT = 0, 1, 2, 3
LAYOUT = StateLayout(
    records=(RecordLayout("groups", keys=1, variable=True, values=5, heap_values=(TEXT,)),),
    ordered=(OrderedLayout("closing", "groups", CLOSE),),
)
IDENTITY = Identity("retail", "averages", 3, 1)

Key = tuple[int, bytes]


@dataclass(frozen=True)
class Group:
    count: int
    total: int
    close: int
    text: bytes


Model = dict[Key, Group]


def flat(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return values as offsets and data."""
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(values), np.uint8)


def hash_of(number: int, text: bytes) -> int:
    """Return a hash that is good for numbers from 100 on, and one of seven below."""
    return number * 0x9E3779B97F4A7C15 % 2**64 if number >= 100 else (zlib.crc32(text) % 2) << 6 | number % 7


def key_arrays(keys: list[Key]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return hashes, fixed words, offsets and data; those of the first hundred numbers collide on purpose."""
    hashes = np.array([hash_of(number, text) for number, text in keys], np.uint64)
    fixed = np.array([number for number, _ in keys], np.int64).reshape(-1, 1)
    return hashes, fixed, *flat([text for _, text in keys])


def update(state: UnitState, model: Model, rows: list[tuple[Key, int, int, bytes]], stop: str = "") -> bool:
    """Fold rows (key, value, close, text) into state and model; with `stop`, leave the state half way instead."""
    groups, closing = state.maps["groups"], state.ordered["closing"]
    records, is_new = groups.locate(*key_arrays([row[0] for row in rows]))
    if stop == "located":
        return False
    state.publish()
    if stop == "published":
        return False
    addresses = state.heap.store(*flat([row[3] for row in rows]))
    old_addresses, old_lengths = [], []
    for position, (key, value, close, text) in enumerate(rows):
        if stop == "changed" and position >= len(rows) // 2 + 1:
            return False
        start = address(groups.table, records[position]) + groups.first_value
        words = state.words[start : start + 5]
        if is_new[position]:
            assert not words.any(), "a new record begins with zeros"
            words[CLOSE] = close
        old_lengths.append(words[TEXT])
        old_addresses.append(words[TEXT + 1])
        words[COUNT] += 1
        words[SUM] += value
        words[TEXT] = len(text)
        words[TEXT + 1] = addresses[position]
        old = model.get(key, Group(0, 0, close, b""))
        model[key] = Group(old.count + 1, old.total + value, old.close, text)
    if stop == "changed":
        return False
    state.heap.free(np.array(old_addresses, np.int64), np.array(old_lengths, np.int64))
    new = is_new == 1
    closing.add(np.array([row[2] for row in rows], np.int64)[new], records[new])
    return True


def pop(state: UnitState, model: Model, limit: int) -> None:
    """Close and free every group with a closing time below `limit`, in state and model, and compare."""
    ends, records = state.ordered["closing"].pop_until(limit)
    assert ends.tolist() == sorted(group.close for group in model.values() if group.close < limit)
    assert state.maps["groups"].read(records, state.maps["groups"].first_value + CLOSE).tolist() == ends.tolist()
    state.maps["groups"].free(records)
    for key in [key for key, group in model.items() if group.close < limit]:
        del model[key]


def contents(state: UnitState, keys: list[Key]) -> Model:
    """Return what the state says of `keys`."""
    groups = state.maps["groups"]
    records = groups.find(*key_arrays(keys))
    there = records >= 0
    found = records[there]
    words = [groups.read(found, groups.first_value + word).tolist() for word in range(5)]
    offsets, data = state.heap.gather(np.array(words[TEXT + 1], np.int64), np.array(words[TEXT], np.int64))
    texts = [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]
    names = [key for key, is_there in zip(keys, there, strict=True) if is_there]
    return {key: Group(words[COUNT][at], words[SUM][at], words[CLOSE][at], texts[at]) for at, key in enumerate(names)}


def crash(state: UnitState) -> None:
    """Leave the state as a killed process does: its lock goes, whatever it was doing stays half done."""
    if state._locked:
        state.file.unlock()
        state._locked = False
    state._open = False
    state.file.close()


def reopen(state: UnitState) -> UnitState:
    """Open the same state as another process would."""
    return UnitState.open(state.file.path, state.identity, LAYOUT)


def create(folder: os.PathLike[str] | str, name: str = "unit") -> UnitState:
    """Make an empty state."""
    return UnitState.create(os.path.join(folder, name), IDENTITY, LAYOUT, 0)
