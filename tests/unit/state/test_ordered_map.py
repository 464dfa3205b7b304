import numpy as np
import pytest
from tests.unit.state.driver import LAYOUT, create, reopen

from holdfast.state import UnitState


@pytest.fixture
def state(tmp_path):
    state = create(tmp_path)
    state.begin(0)
    yield state
    state.close()


def test_a_million_distinct_keys_come_out_in_order(state: UnitState) -> None:
    keys = np.random.default_rng(0).permutation(1_000_000).astype(np.int64) - 500_000
    closing = state.ordered["closing"]
    closing.add(keys, np.arange(len(keys)))
    assert closing.keys_count == len(keys)
    below, records = closing.pop_until(0)
    assert np.array_equal(below, np.arange(-500_000, 0))
    assert np.array_equal(keys[records], below)
    rest, _ = closing.pop_until(2**62)
    assert np.array_equal(rest, np.arange(500_000))
    assert closing.keys_count == 0


@pytest.mark.parametrize("order", ["ascending", "descending", "random"])
def test_lists_of_any_length_keep_every_record(state: UnitState, order: str) -> None:
    random = np.random.default_rng(1)
    keys = random.integers(0, 500, 40_000)
    keys[:20_000] = 77
    keys = {"ascending": np.sort(keys), "descending": np.sort(keys)[::-1].copy(), "random": keys}[order]
    closing = state.ordered["closing"]
    closing.add(keys, np.arange(len(keys)))
    seen = []
    for limit in (1, 77, 78, 78, 499, 1000):
        popped, records = closing.pop_until(limit)
        assert np.all(np.diff(popped) >= 0) and np.all(popped < limit)
        assert np.array_equal(keys[records], popped)
        seen.append(records)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(keys)))


def test_windows_that_move_forward_reuse_their_pages(state: UnitState) -> None:
    closing = state.ordered["closing"]
    closing.add(np.arange(10_000), np.arange(10_000))
    size = state.size_bytes
    for start in range(10_000, 400_000, 5_000):
        popped, _ = closing.pop_until(start - 5_000)
        assert len(popped) in (5_000, 0)
        closing.add(np.arange(start, start + 5_000), np.arange(5_000))
    assert state.size_bytes <= size + (4 << 20)


def test_the_extreme_keys_are_keys(state: UnitState) -> None:
    closing = state.ordered["closing"]
    keys = np.array([2**63 - 2, -(2**63) + 1, 0, 2**62], np.int64)
    closing.add(keys, np.arange(4))
    popped, records = closing.pop_until(2**63 - 1)
    assert popped.tolist() == sorted(keys.tolist())
    assert records.tolist() == [1, 2, 3, 0]


def test_another_process_pops_what_this_one_added(state: UnitState) -> None:
    state.ordered["closing"].add(np.array([5, 3], np.int64), np.array([10, 11], np.int64))
    state.finish(1)
    state.end()
    other = reopen(state)
    other.begin(1)
    assert other.ordered["closing"].pop_until(4)[1].tolist() == [11]
    other.close()
    assert LAYOUT.ordered[0].name == "closing"
