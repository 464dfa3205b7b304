import os

import numpy as np
import pytest
from tests.unit.state.driver import IDENTITY, LAYOUT, contents, create, reopen, update

from holdfast.errors import SnapshotCorrupt, StateBusy
from holdfast.state import SnapshotHead, UnitState

ROWS = [((number, b"key"), 1, number, b"text %d" % number) for number in range(5_000)]
KEYS = [row[0] for row in ROWS]


@pytest.fixture
def state(tmp_path):
    state = create(tmp_path)
    yield state
    state.close()


def wave(state: UnitState, model: dict, rows: list) -> None:
    state.begin(state.bucket_end)
    update(state, model, rows)
    state.finish(state.bucket_end + 1)
    state.end()


def collect(snapshot, since: int = -1) -> dict:
    return {(page.set_number, page.logical): bytes(page.data) for page in snapshot.pages(since)}


def restore(state: UnitState, head: SnapshotHead, images: dict) -> UnitState:
    pages = [(*place, data) for place, data in images.items()]
    return UnitState.restore(os.path.join(os.path.dirname(state.file.path), "other"), IDENTITY, LAYOUT, head, pages)


def test_a_snapshot_is_of_its_moment_whatever_is_changed_while_it_is_written(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, ROWS)
    then = dict(model)
    with state.prepare() as snapshot:
        pages = snapshot.pages()
        first = next(pages)
        images = {(first.set_number, first.logical): bytes(first.data)}
        wave(state, model, ROWS)
        images |= {(page.set_number, page.logical): bytes(page.data) for page in pages}
    restored = restore(state, snapshot.head, images)
    restored.begin(1)
    assert contents(restored, KEYS) == then
    state.begin(2)
    assert contents(state, KEYS) == model
    restored.close()


def test_an_increment_holds_the_changed_pages_only(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, ROWS)
    with state.prepare() as snapshot:
        images = collect(snapshot)
    wave(state, model, ROWS[:3])
    with state.prepare() as later:
        increment = collect(later, since=snapshot.wave)
    assert 0 < len(increment) <= 4 < len(images)
    restored = restore(state, later.head, images | increment)
    restored.begin(2)
    assert contents(restored, KEYS) == model
    wave_before = restored.wave
    restored.finish(3)
    restored.end()
    wave(restored, model, ROWS[-2:])
    with restored.prepare() as after:
        assert len(collect(after, since=later.wave)) <= 4
    assert wave_before > later.wave
    restored.close()


def test_a_page_that_is_written_out_is_not_copied(state: UnitState) -> None:
    wave(state, {}, ROWS)
    wave(state, {}, ROWS)
    with state.prepare() as snapshot:
        before = [table.copy() for table in (state.file.pages_of(state.file.sets[number]) for number in (0, 2))]
        collect(snapshot)
        wave(state, {}, ROWS)
        after = [state.file.pages_of(state.file.sets[number]) for number in (0, 2)]
        assert np.array_equal(before[1], after[1])


def test_copies_are_free_again_when_the_snapshot_is_written(state: UnitState) -> None:
    model: dict = {}
    rows = [((number, b""), 1, 0, b"") for number in range(30_000)]
    for _ in range(3):
        wave(state, model, rows)
        state.prepare().release()
    size = None
    for number in range(8):
        with state.prepare():
            wave(state, model, rows)
        wave(state, model, rows)
        size = size or state.size_bytes
        assert state.size_bytes == size, number
    state.begin(state.bucket_end)
    assert contents(state, [row[0] for row in rows]) == model


def test_one_snapshot_at_a_time_and_a_dead_one_does_not_count(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, ROWS)
    snapshot = state.prepare()
    other = reopen(state)
    with pytest.raises(StateBusy, match="still being written"):
        other.prepare()
    wave(state, model, ROWS)
    # The system does this when a process dies.
    os.close(snapshot._lock)
    snapshot._lock = -1
    other.begin(2)
    assert contents(other, KEYS) == model
    other.rollback()
    other.prepare().release()
    other.close()


def test_a_wave_rolled_back_under_a_snapshot_leaves_the_snapshot_alone(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, ROWS)
    first = dict(model)
    wave(state, model, ROWS)
    snapshot = state.prepare()
    state.begin(1)
    assert contents(state, KEYS) == first
    state.end()
    images = collect(snapshot)
    snapshot.release()
    restored = restore(state, snapshot.head, images)
    restored.begin(2)
    assert contents(restored, KEYS) == model
    restored.close()


def test_a_snapshot_that_lacks_or_invents_a_page_is_named(state: UnitState) -> None:
    wave(state, {}, ROWS)
    with state.prepare() as snapshot:
        images = collect(snapshot)
    lacking = dict(list(images.items())[:-1])
    with pytest.raises(SnapshotCorrupt, match="lacks 1 pages of set groups"):
        restore(state, snapshot.head, lacking)
    with pytest.raises(SnapshotCorrupt, match="set 9, page 0"):
        restore(state, snapshot.head, images | {(9, 0): bytes(16384)})
    with pytest.raises(SnapshotCorrupt, match="100 bytes"):
        restore(state, snapshot.head, images | {(2, 0): bytes(100)})
    assert not os.path.exists(os.path.join(os.path.dirname(state.file.path), "other"))


def test_a_snapshot_is_written_on_when_its_unit_has_been_let_go(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, ROWS)
    snapshot = state.prepare()
    state.close()
    other = reopen(state)
    wave(other, dict(model), ROWS[:100])
    images = collect(snapshot)
    snapshot.release()
    restored = restore(other, snapshot.head, images)
    restored.begin(1)
    assert contents(restored, KEYS) == model
    restored.close()
    other.begin(2)
    other.close()
