import gc
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tests.unit.state.driver import IDENTITY, LAYOUT, contents, crash, create, reopen, update

from holdfast.errors import StateAbsent, StateBusy, StoreUnavailable
from holdfast.state import Identity, RecordLayout, StateLayout, UnitState, pages
from holdfast.state.pages import PageFile

ROWS = [((number, b"k" * (number % 3)), number, number % 5, b"text %d" % number) for number in range(300)]
KEYS = [row[0] for row in ROWS]
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


@pytest.fixture
def state(tmp_path):
    state = create(tmp_path)
    yield state
    state.close()


def wave(state: UnitState, model: dict, bucket: int, rows: list = ROWS) -> None:
    state.begin(bucket - 1)
    update(state, model, rows)
    state.finish(bucket, b"meta of %d" % bucket)
    state.end()


def test_a_finished_wave_is_there_for_the_next_process(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, 1)
    other = reopen(state)
    assert (other.bucket_end, other.meta) == (1, b"meta of 1")
    other.begin(1)
    assert contents(other, KEYS) == model
    other.close()


def test_a_wave_that_the_journal_does_not_name_is_rolled_back(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, 1)
    first = dict(model)
    wave(state, model, 2)
    other = reopen(state)
    other.begin(1)
    assert contents(other, KEYS) == first
    assert (other.bucket_end, other.meta) == (1, b"meta of 1")
    other.close()


def test_only_one_wave_can_be_rolled_back(state: UnitState) -> None:
    for bucket in (1, 2):
        wave(state, {}, bucket)
    with pytest.raises(StateAbsent, match="as of bucket 2, expected 0"):
        state.begin(0)
    state.begin(1)
    state.rollback()
    state.end()
    with pytest.raises(StateAbsent, match="as of bucket 1, expected 0"):
        state.begin(0)


@pytest.mark.parametrize("stop", ["located", "published", "changed"])
def test_a_crash_at_any_step_of_a_wave_leaves_the_wave_before(state: UnitState, stop: str) -> None:
    model: dict = {}
    wave(state, model, 1)
    before = dict(model)
    state.begin(1)
    update(state, model, [*ROWS[:50], *[((number, b"new"), 1, 1, b"t") for number in range(2000)]], stop)
    crash(state)
    other = reopen(state)
    assert other.is_dirty
    other.begin(1)
    assert contents(other, [*KEYS, (5, b"new")]) == before
    other.close()


def test_a_process_killed_in_the_middle_of_a_wave_loses_only_that_wave(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, 1)
    program = f"""
        import os, signal
        from tests.unit.state.driver import IDENTITY, LAYOUT, update
        from holdfast.state import UnitState
        state = UnitState.open({state.file.path!r}, IDENTITY, LAYOUT)
        state.begin(1)
        rows = [((number, b"k" * (number % 3)), 7, 1, b"other") for number in range(300)]
        update(state, {{}}, rows, "changed")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, timeout=120)
    assert child.returncode == -signal.SIGKILL
    state.begin(1)
    assert contents(state, KEYS) == model


def test_an_older_generation_is_refused_and_a_later_one_takes_over(state: UnitState) -> None:
    model: dict = {}
    wave(state, model, 1)
    successor = reopen(state)
    successor.adopt(2)
    with pytest.raises(StateAbsent, match="generation 2, expected 1"):
        state.begin(1)
    successor.begin(1)
    assert contents(successor, KEYS) == model
    successor.end()
    with pytest.raises(StateAbsent, match="generation 2, later than 1"):
        state.adopt(1)
    successor.close()


def test_two_processes_never_work_at_once(state: UnitState) -> None:
    state.begin(0)
    other = reopen(state)
    with pytest.raises(StateBusy, match="in use by another process"):
        other.begin(0)
    state.end()
    other.begin(0)
    other.close()


def test_what_belongs_to_somebody_else_is_refused(state: UnitState, monkeypatch: pytest.MonkeyPatch) -> None:
    path = state.file.path
    with pytest.raises(StateAbsent, match="no state file"):
        UnitState.open(path + "x", IDENTITY, LAYOUT)
    with pytest.raises(StateAbsent, match="belongs to"):
        UnitState.open(path, Identity("retail", "averages", 4, 1), LAYOUT)
    with pytest.raises(StateAbsent, match="magic, version and layout"):
        UnitState.open(path, IDENTITY, StateLayout(records=(RecordLayout("groups", 1, True, 6, (3,)),)))
    monkeypatch.setattr("holdfast.state.unit_state.boot_id", lambda: "another boot")
    with pytest.raises(StateAbsent, match="another boot"):
        UnitState.open(path, IDENTITY, LAYOUT)


def test_a_file_that_was_torn_or_replaced_is_refused(state: UnitState, tmp_path) -> None:
    create(tmp_path).close()
    with pytest.raises(StateAbsent, match="removed or replaced"):
        state.begin(0)
    for size in (0, 100, 1 << 20):
        os.truncate(state.file.path, size)
        with pytest.raises(StateAbsent):
            reopen(state)


def test_a_state_grown_by_one_process_is_seen_whole_by_the_other(state: UnitState) -> None:
    other = reopen(state)
    model: dict = {}
    rows = [((number, b""), 1, 1, b"") for number in range(20_000)]
    wave(state, model, 1, rows)
    other.begin(1)
    update(other, model, rows[:100])
    other.finish(2)
    other.end()
    state.begin(2)
    assert contents(state, [row[0] for row in rows]) == model
    other.close()


def test_a_mapping_that_is_outgrown_is_replaced(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "RESERVE_PAGES_MIN", pages.HUGE_PAGES)
    state = create(tmp_path)
    mapped = state.file.mapped_pages
    state.begin(0)
    keys = np.arange(200_000, dtype=np.int64).reshape(-1, 1)
    offsets, data = np.zeros(len(keys) + 1, np.int64), np.zeros(0, np.uint8)
    hashes = keys[:, 0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    records, is_new = state.maps["groups"].locate(hashes, keys, offsets, data)
    assert is_new.all() and len(np.unique(records)) == len(keys)
    assert state.file.mapped_pages > mapped
    assert np.array_equal(state.maps["groups"].find(hashes, keys, offsets, data), records)
    assert np.array_equal(state.maps["groups"].read(records, 2), keys[:, 0])
    state.close()


def test_a_full_file_system_stops_the_wave_and_loses_nothing(state: UnitState, monkeypatch) -> None:
    model: dict = {}
    wave(state, model, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    state.begin(1)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", full)
        rows = [((number, b"n"), 1, 1, b"t" * 100) for number in range(100_000)]
        with pytest.raises(StoreUnavailable, match="cannot grow"):
            update(state, {}, rows)
    state.rollback()
    state.end()
    state.begin(1)
    assert contents(state, KEYS) == model


def test_freed_keys_are_gone_at_once_and_their_records_are_used_again_later(state: UnitState) -> None:
    groups = state.maps["groups"]
    model: dict = {}
    wave(state, model, 1)
    state.begin(1)
    _, records = state.ordered["closing"].pop_until(5)
    groups.free(records)
    assert groups.count == 0 and contents(state, KEYS) == {}
    fresh: dict = {}
    update(state, fresh, ROWS)
    assert contents(state, KEYS) == fresh
    state.finish(2)
    size = state.size_bytes
    for bucket in range(2, 20):
        state.begin(bucket)
        groups.free(state.ordered["closing"].pop_until(5)[1])
        fresh = {}
        update(state, fresh, ROWS)
        state.finish(bucket + 1)
    assert contents(state, KEYS) == fresh
    assert state.size_bytes == size


def test_meta_has_its_limit_and_buckets_move_forward(state: UnitState) -> None:
    state.begin(0)
    with pytest.raises(AssertionError, match="6000"):
        state.finish(1, b"x" * 6001)
    with pytest.raises(AssertionError, match="forward"):
        state.finish(0)
    state.finish(1, b"x" * 6000)
    assert state.meta == b"x" * 6000


def maps_of(folder: os.PathLike[str]) -> int:
    """Return how many of this process's maps are of files in a folder."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum(str(folder) in line for line in maps)


def test_a_thousand_attachments_leave_no_descriptor_and_no_map(tmp_path) -> None:
    """Without the garbage collector, which a worker seldom runs: a map keeps the memory of a file that was replaced."""
    gc.collect()
    gc.disable()
    try:
        descriptors = len(os.listdir("/proc/self/fd"))
        for number in range(1000):
            if number % 10 == 0:
                create(tmp_path).close()
            state = UnitState.open(str(tmp_path / "unit"), IDENTITY, LAYOUT)
            state.begin(0)
            if number % 100 == 1:
                update(state, {}, ROWS)
            state.rollback()
            state.end()
            if number % 3 == 0:
                state.prepare().release()
            state.close()
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert maps_of(tmp_path) == 0
        assert sorted(os.listdir(tmp_path)) == ["unit", "unit.snapshot"]
    finally:
        gc.enable()


def test_what_a_killed_process_began_to_make_is_removed_by_the_next(tmp_path) -> None:
    """It may be as large as the state, and in memory."""
    dead = tmp_path / "unit.4711.new"
    dead.write_bytes(b"x" * 100_000)
    other = tmp_path / "unit-10.4711.new"
    other.write_bytes(b"another unit's")
    living = PageFile.create(str(tmp_path / "unit"), IDENTITY, LAYOUT)
    held = tmp_path / "unit.1.new"
    os.rename(living.path, held)
    create(tmp_path).close()
    assert not dead.exists() and other.exists() and held.exists()
    living.close()
