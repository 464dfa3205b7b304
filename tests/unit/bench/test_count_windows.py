"""The hand-vectorised peer has to be right before it is worth beating."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from bench.peers import count_windows
from bench.peers.count_windows import WINDOW_SIZE


def plain_windows(batches: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[int, int, float]]:
    """Every full window by a loop over tuples: key, number, average."""
    held: dict[int, list[float]] = defaultdict(list)
    numbers: dict[int, int] = defaultdict(int)
    found = []
    for keys, values in batches:
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            held[key].append(value)
            if len(held[key]) == WINDOW_SIZE:
                found.append((key, numbers[key], sum(held[key]) / WINDOW_SIZE))
                numbers[key] += 1
                held[key] = []
    return sorted(found)


@pytest.mark.parametrize(("seed", "keys", "rows"), [(0, 1, 35), (1, 3, 100), (2, 50, 400), (3, 1000, 3000)])
def test_the_vectorised_form_gives_the_windows_of_a_plain_loop(seed: int, keys: int, rows: int) -> None:
    generator = np.random.default_rng(seed)
    batches = [
        (generator.integers(-keys, keys, rows), generator.integers(0, 100, rows).astype(np.float64)) for _ in range(6)
    ]
    kept, found = count_windows.empty(), []
    for key, value in batches:
        # State goes through its packed form, as between two triggers.
        kept, results = count_windows.advance(count_windows.unpack(count_windows.pack(kept)), key, value)
        found += list(zip(*(column.tolist() for column in results), strict=True))
    assert sorted(found) == plain_windows(batches)


def test_a_window_that_is_not_full_stays_in_the_state() -> None:
    key, value = np.full(WINDOW_SIZE - 1, 7), np.ones(WINDOW_SIZE - 1)
    kept, results = count_windows.advance(count_windows.empty(), key, value)
    assert not len(results[0])
    assert [column.tolist() for column in kept] == [[7], [WINDOW_SIZE - 1], [WINDOW_SIZE - 1.0]]
