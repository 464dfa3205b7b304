"""The paged state with its wave log against the same kernel over one flat table without any safety.

Three questions. What do pages and before-images cost (count, sum, min, max of uniformly random keys, a wave of
1,000,000 tuples)? How long is a unit stopped for a snapshot? Does growth ever make it wait?
"""

from __future__ import annotations

import gc
import os
import tempfile
import time

import numpy as np
import numpy.typing as npt
from numba import njit

from bench import measure
from holdfast.state import Identity, RecordLayout, StateLayout, UnitState, address, warm
from holdfast.state.compiled import prefetch

TUPLES = 1_000_000
CHUNK = 4_096
"""Tuples that are located and then changed: their records are still in the second cache when the change comes."""
VALUES = 4
ROW_WORDS = 8
LAYOUT = StateLayout(records=(RecordLayout("groups", keys=1, variable=False, values=VALUES),))
Words = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


@njit(cache=True, nogil=True)
def update_paged(
    words: Words, table: npt.NDArray[np.int32], first: int, records: Words, is_new: npt.NDArray[np.uint8], values: Words
) -> None:
    """Fold each tuple into its record."""
    for row in range(len(records)):
        if row + 16 < len(records):
            prefetch(words, address(table, records[row + 16]) + first)
        start = address(table, records[row]) + first
        value = values[row]
        if is_new[row] != 0:
            words[start + 2] = value
            words[start + 3] = value
        words[start] += 1
        words[start + 1] += value
        words[start + 2] = min(words[start + 2], value)
        words[start + 3] = max(words[start + 3], value)


@njit(cache=True, nogil=True)
def update_flat(flat: Words, mask: int, hashes: Hashes, keys: Words, values: Words) -> None:
    """Fold each tuple into its row of an open-addressing table: used, key, count, sum, min, max."""
    for row in range(len(keys)):
        key = keys[row, 0]
        value = values[row]
        place = np.int64(hashes[row]) & mask
        while flat[place, 0] != 0 and flat[place, 1] != key:
            place = (place + 1) & mask
        if flat[place, 0] == 0:
            flat[place, 0] = 1
            flat[place, 1] = key
            flat[place, 4] = value
            flat[place, 5] = value
        flat[place, 2] += 1
        flat[place, 3] += value
        flat[place, 4] = min(flat[place, 4], value)
        flat[place, 5] = max(flat[place, 5], value)


@njit(cache=True, nogil=True)
def update_flat_ahead(flat: Words, mask: int, hashes: Hashes, keys: Words, values: Words) -> None:
    """Do the same as `update_flat`, and ask for each row 16 tuples ahead."""
    for row in range(len(keys)):
        if row + 16 < len(keys):
            prefetch(flat, (np.int64(hashes[row + 16]) & mask) * ROW_WORDS)
        key = keys[row, 0]
        value = values[row]
        place = np.int64(hashes[row]) & mask
        while flat[place, 0] != 0 and flat[place, 1] != key:
            place = (place + 1) & mask
        if flat[place, 0] == 0:
            flat[place, 0] = 1
            flat[place, 1] = key
            flat[place, 4] = value
            flat[place, 5] = value
        flat[place, 2] += 1
        flat[place, 3] += value
        flat[place, 4] = min(flat[place, 4], value)
        flat[place, 5] = max(flat[place, 5], value)


def hashes_of(keys: Words) -> Hashes:
    """Return well mixed hashes (the finish of MurmurHash3); both contestants get the same."""
    mixed = keys.astype(np.uint64)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    return mixed ^ (mixed >> np.uint64(33))


class Paged:
    """A unit's state, one wave a call."""

    def __init__(self, path: str) -> None:
        self.state = UnitState.create(path, Identity("bench", "groups", 0, 1), LAYOUT, 0)
        self.parts_ms = {"locate": 0.0, "change": 0.0, "wave": 0.0}

    def wave(self, hashes: Hashes, keys: Words, values: Words) -> float:
        """Process a wave and return its time in milliseconds."""
        state, groups = self.state, self.state.maps["groups"]
        bucket = state.bucket_end
        begun = time.perf_counter()
        state.begin(bucket)
        locate = change = 0.0
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            a = time.perf_counter()
            records, is_new = groups.locate(hashes[part], keys[part])
            b = time.perf_counter()
            state.publish()
            update_paged(state.words, groups.table, groups.first_value, records, is_new, values[part])
            locate, change = locate + b - a, change + time.perf_counter() - b
        state.finish(bucket + 1)
        state.end()
        took = time.perf_counter() - begun
        self.parts_ms = {"locate": locate * 1e3, "change": change * 1e3, "wave": took * 1e3}
        return took * 1e3


class Flat:
    """A flat table with twice as many places as there are groups, the same chunks."""

    def __init__(self, groups: int) -> None:
        places = 1 << (2 * groups - 1).bit_length()
        self.table = np.zeros((places, ROW_WORDS), np.int64)
        self.mask = places - 1

    def wave(self, hashes: Hashes, keys: Words, values: Words) -> float:
        begun = time.perf_counter()
        update_flat(self.table, self.mask, hashes, keys, values)
        return (time.perf_counter() - begun) * 1e3

    def wave_ahead(self, hashes: Hashes, keys: Words, values: Words) -> float:
        begun = time.perf_counter()
        update_flat_ahead(self.table.reshape(-1).reshape(self.table.shape), self.mask, hashes, keys, values)
        return (time.perf_counter() - begun) * 1e3


def measure_updates(program: measure.Program, folder: str, groups: int, limit: float, rounds: int) -> Paged:
    """Compare waves of random tuples over `groups` keys, all of which are there before."""
    random = np.random.default_rng(groups)
    paged, flat = Paged(os.path.join(folder, f"groups-{groups}")), Flat(groups)
    every_key = random.permutation(groups).astype(np.int64).reshape(-1, 1)
    for contestant in (paged, flat):
        contestant.wave(hashes_of(every_key[:, 0]), every_key, np.zeros(groups, np.int64))
    waves = []
    for _ in range(4):
        keys = random.integers(0, groups, TUPLES).reshape(-1, 1)
        waves.append((hashes_of(keys[:, 0]), keys, random.integers(-1000, 1000, TUPLES)))
    turn = {"paged": 0, "flat": 0}

    def run(name: str, contestant: Paged | Flat) -> float:
        turn[name] += 1
        return contestant.wave(*waves[turn[name] % len(waves)])

    for name, contestant in (("paged", paged), ("flat", flat)):
        run(name, contestant)
    results = measure.in_turns({"paged": lambda: run("paged", paged), "flat": lambda: run("flat", flat)}, rounds)
    ratio = measure.ratio_of(results, "paged", "flat")
    check_equal(paged, flat, every_key)
    program.figure(f"update_{groups}_ms", results)
    program.figure(f"update_{groups}_parts_ms", dict(paged.parts_ms))
    flat_ahead = [flat.wave_ahead(*waves[number % len(waves)]) for number in range(rounds)]
    program.figure(f"update_{groups}_flat_ahead_ms", flat_ahead)
    program.goal(f"paged against flat, {groups} groups", ratio, at_most=limit)
    return paged


def check_equal(paged: Paged, flat: Flat, keys: Words) -> None:
    """Both have computed the same; a fast wrong answer is no measurement."""
    groups = paged.state.maps["groups"]
    records = groups.find(hashes_of(keys[:, 0]), keys)
    rows = flat.table[flat.table[:, 0] == 1]
    rows = rows[np.argsort(rows[:, 1])]
    order = np.argsort(keys[:, 0])
    for word in range(VALUES):
        own = groups.read(records, groups.first_value + word)[order]
        assert np.array_equal(own, rows[:, 2 + word]), "the two tables differ: this is a bug"


def measure_snapshot(program: measure.Program, folder: str, rounds: int) -> None:
    """Prepare snapshots of 128 MB, and see what the wave after one costs."""
    paged = Paged(os.path.join(folder, "snapshot"))
    random = np.random.default_rng(1)
    keys = np.arange((128 << 20) // (LAYOUT.records[0].width * 8) + 4096, dtype=np.int64).reshape(-1, 1)
    paged.wave(hashes_of(keys[:, 0]), keys, keys[:, 0].copy())
    pages = 0
    prepared_ms, plain_ms, copying_ms = [], [], []
    for _ in range(rounds):
        some = random.integers(0, len(keys), 100_000).reshape(-1, 1)
        wave = (hashes_of(some[:, 0]), some, some[:, 0].copy())
        plain_ms.append(paged.wave(*wave))
        begun = time.perf_counter()
        snapshot = paged.state.prepare()
        prepared_ms.append((time.perf_counter() - begun) * 1e3)
        pages = snapshot.pages_count
        copying_ms.append(paged.wave(*wave))
        snapshot.release()
    program.figure("snapshot_mb", pages * 16384 / (1 << 20))
    program.figure("snapshot_prepare_ms", prepared_ms)
    program.figure("wave_of_100000_ms", plain_ms)
    program.figure("wave_of_100000_that_copies_every_page_ms", copying_ms)
    program.goal("snapshot of 128 MB prepared, ms", measure.median(prepared_ms), at_most=1.0)
    paged.state.remove()


def measure_inserts(program: measure.Program, folder: str, rounds: int) -> None:
    """Insert 1,000,000 new keys, 1,000 a batch, and look for the longest pause."""
    longest_ms, total_ms = [], []
    for number in range(rounds):
        paged = Paged(os.path.join(folder, f"inserts-{number}"))
        keys = np.random.default_rng(number).permutation(TUPLES).astype(np.int64).reshape(-1, 1)
        hashes = hashes_of(keys[:, 0])
        state, groups = paged.state, paged.state.maps["groups"]
        state.begin(0)
        gc.collect()
        pauses = []
        for start in range(0, TUPLES, 1000):
            begun = time.perf_counter()
            groups.locate(hashes[start : start + 1000], keys[start : start + 1000])
            pauses.append((time.perf_counter() - begun) * 1e3)
        state.publish()
        state.finish(1)
        longest_ms.append(max(pauses))
        total_ms.append(sum(pauses))
        state.remove()
    program.figure("insert_1000000_ms", total_ms)
    program.figure("insert_longest_batch_ms", longest_ms)
    program.goal("longest pause in 1,000,000 inserts, ms", measure.median(longest_ms), at_most=5.0)


def measure_rollback(program: measure.Program, paged: Paged, groups: int) -> None:
    """Say what the rare case costs: a wave that was interrupted, all derived structures rebuilt."""
    state = paged.state
    keys = np.random.default_rng(3).integers(0, groups, TUPLES).reshape(-1, 1)
    state.begin(state.bucket_end)
    state.maps["groups"].locate(hashes_of(keys[:, 0]), keys)
    state.publish()
    with measure.timed() as watch:
        state.rollback()
    state.end()
    program.figure(f"rollback_{groups}_ms", watch.seconds * 1e3)


def main() -> None:
    program = measure.program("state", __doc__ or "")
    rounds = 7 if program.quick else 21
    base = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=base, prefix="holdfast-bench-") as folder:
        warm(folder)
        measure_updates(program, folder, 100_000, 1.5, rounds).state.remove()
        paged = measure_updates(program, folder, 1_000_000, 2.0, rounds)
        program.figure("state_1000000_mb", paged.state.size_bytes / (1 << 20))
        measure_rollback(program, paged, 1_000_000)
        paged.state.remove()
        measure_snapshot(program, folder, rounds)
        measure_inserts(program, folder, 3 if program.quick else 9)
    program.finish()


if __name__ == "__main__":
    main()
