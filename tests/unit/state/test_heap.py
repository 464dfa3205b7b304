import itertools

import numpy as np
import pytest
from tests.unit.state.driver import contents, crash, create, flat, reopen, update

from holdfast.state import UnitState
from holdfast.state.heap_kernels import class_bytes, class_of

MEGABYTE = bytes(range(256)) * 4096


@pytest.fixture
def state(tmp_path):
    state = create(tmp_path)
    state.begin(0)
    yield state
    state.close()


def test_values_of_every_length_come_back(state: UnitState) -> None:
    values = [b"", b"a", b"x" * 15, b"y" * 16, b"z" * 17, MEGABYTE, b"", MEGABYTE[:16384], MEGABYTE[1:40000]]
    addresses = state.heap.store(*flat(values))
    lengths = np.array([len(value) for value in values], np.int64)
    offsets, data = state.heap.gather(addresses, lengths)
    assert [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == values


def test_a_size_class_holds_its_lengths_and_wastes_at_most_half() -> None:
    lengths = [*range(1, 5000), 2**20, 2**20 + 1, 2**28]
    for length in lengths:
        size = class_bytes(class_of(length))
        assert length <= size <= max(16, length * 3 // 2 + 16) and size % 16 == 0
        assert class_of(size) == class_of(length)


def test_a_value_that_is_replaced_wave_by_wave_takes_no_more_room(state: UnitState) -> None:
    text = b"the longest text so far " * 300
    model: dict = {}
    sizes = []
    for bucket in range(1, 30):
        update(state, model, [((number, b""), 1, 0, text + bytes([bucket])) for number in range(20)])
        state.finish(bucket)
        sizes.append(state.heap.size_bytes)
        state.begin(bucket)
    assert sizes[2] == sizes[-1]
    assert contents(state, [(number, b"") for number in range(20)]) == model


def test_free_room_is_found_again_after_a_crash(state: UnitState) -> None:
    keys = [(number, b"key %d" % number * 20) for number in range(50)]
    model: dict = {}
    update(state, model, [(key, 1, 0, MEGABYTE[: 1000 * key[0]]) for key in keys])
    state.finish(1)
    finished = dict(model)
    state.begin(1)
    update(state, model, [(key, 1, 0, MEGABYTE[:20_000]) for key in keys])
    size = state.heap.size_bytes
    crash(state)
    again = reopen(state)
    again.begin(1)
    assert contents(again, keys) == finished
    update(again, finished, [(key, 1, 0, MEGABYTE[:20_000]) for key in keys])
    # Of what the interrupted wave took, little is too small to be cut to this size.
    assert again.heap.size_bytes <= size * 5 // 4
    assert contents(again, keys) == finished
    again.close()


def test_keys_of_a_megabyte_and_of_nothing_are_keys(state: UnitState) -> None:
    keys = [(1, b""), (1, MEGABYTE), (1, MEGABYTE[:-1] + b"!"), (1, MEGABYTE + b"."), (1, b"\0")]
    model: dict = {}
    update(state, model, [(key, position, 0, b"") for position, key in enumerate(keys)])
    update(state, model, [(key, 10, 0, b"") for key in keys])
    assert contents(state, [*keys, (2, MEGABYTE), (1, MEGABYTE[1:])]) == model
    assert state.maps["groups"].count == len(keys)
