"""Snapshots on a store: whole and incremental ones, what is kept of them, and what damage to them is called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from tests.unit.state.driver import IDENTITY, LAYOUT, Model, contents, create, update

from holdfast.checkpoint import manifest as manifests
from holdfast.checkpoint.base import base_of, forget_base, life_of, note_base
from holdfast.checkpoint.manifest import Manifest, decode, encode
from holdfast.checkpoint.snapshot_files import (
    is_complete,
    read_manifest,
    read_pages,
    remove_unneeded,
    snapshot_path,
    write_snapshot,
)
from holdfast.checkpoint.snapshot_writer import SnapshotOrder, SnapshotWriter
from holdfast.errors import SnapshotCorrupt, StoreUnavailable
from holdfast.log.local_store import LocalStore
from holdfast.state import UnitState
from holdfast.testing.faulty_store import FaultyStore, How

ROWS = [((number, b"key"), 1, number, b"text %d" % number) for number in range(3_000)]
KEYS = [row[0] for row in ROWS]
Store = LocalStore | FaultyStore


@pytest.fixture
def state(tmp_path: Path) -> Iterator[UnitState]:
    (tmp_path / "memory").mkdir()
    state = create(tmp_path / "memory")
    yield state
    state.close()


def wave(state: UnitState, model: Model, rows: list[tuple[tuple[int, bytes], int, int, bytes]]) -> None:
    state.begin(state.bucket_end)
    update(state, model, rows)
    state.finish(state.bucket_end + 1, b"meta")
    state.end()


def write(store: Store, state: UnitState, base: str | None = None) -> str:
    path = snapshot_path("averages", 3, state.bucket_end, 1, state.wave)
    with state.prepare() as snapshot:
        write_snapshot(store, path, snapshot, base)
    return path


def restored(store: Store, state: UnitState, path: str) -> Model:
    manifest = read_manifest(store, path)
    pages = read_pages(store, path, manifest)
    other = UnitState.restore(f"{state.file.path}-other", IDENTITY, LAYOUT, manifest.head, pages)
    try:
        other.begin(manifest.head.bucket_end)
        assert other.meta == b"meta"
        return contents(other, KEYS)
    finally:
        other.remove()


def chain(store: Store, state: UnitState, length: int) -> tuple[list[str], list[Model]]:
    """Write a whole snapshot and increments upon it; return their paths and what they hold."""
    paths: list[str] = []
    models: list[Model] = []
    model: Model = {}
    for number in range(length):
        wave(state, model, ROWS if number == 0 else ROWS[number * 10 : number * 10 + 3])
        paths.append(write(store, state, paths[-1] if paths else None))
        models.append(dict(model))
    return paths, models


def test_each_snapshot_of_a_chain_stands_for_itself(tmp_path: Path, state: UnitState) -> None:
    store = LocalStore(tmp_path / "store")
    paths, models = chain(store, state, 4)
    assert [restored(store, state, path) for path in paths] == models
    sizes = [store.size(f"{path}/pages") for path in paths]
    assert max(sizes[1:]) * 5 < sizes[0], "an increment holds what changed"


def test_what_is_not_kept_goes_but_for_the_pages_that_kept_ones_name(tmp_path: Path, state: UnitState) -> None:
    store = LocalStore(tmp_path / "store")
    paths, models = chain(store, state, 4)
    newer = snapshot_path("averages", 3, 99, 1, 99)
    store.write_new(f"{newer}/pages", b"still being written")
    kept = paths[2:]
    remove_unneeded(store, "averages", 3, kept, newest_bucket=4)
    assert not is_complete(store, paths[0]) and not is_complete(store, paths[1])
    assert [restored(store, state, path) for path in kept] == models[2:]
    assert store.exists(f"{newer}/pages")
    # A whole one later names nothing of the others: then they go.
    wave(state, {}, ROWS)
    last = write(store, state)
    removed = remove_unneeded(store, "averages", 3, [last], newest_bucket=5)
    assert set(paths) == set(removed)
    assert store.list("snapshots/averages/3") == sorted(path.rpartition("/")[2] for path in (last, newer))


def test_damage_is_named_and_the_older_snapshot_serves(tmp_path: Path, state: UnitState) -> None:
    store = LocalStore(tmp_path / "store")
    paths, models = chain(store, state, 2)
    pages = tmp_path / "store" / paths[1] / "pages"
    content = bytearray(pages.read_bytes())
    content[100] ^= 1
    pages.write_bytes(content)
    with pytest.raises(SnapshotCorrupt, match=rf"{paths[1]}: page \d+ of set \d+, at 0 in {paths[1]}/pages"):
        restored(store, state, paths[1])
    pages.write_bytes(content[:-1])
    assert not is_complete(store, paths[1])
    pages.unlink()
    with pytest.raises(SnapshotCorrupt, match="is gone"):
        restored(store, state, paths[1])
    assert restored(store, state, paths[0]) == models[0]


def test_an_increment_is_never_built_on_what_cannot_be_read(tmp_path: Path, state: UnitState) -> None:
    store = LocalStore(tmp_path / "store")
    paths, models = chain(store, state, 1)
    (tmp_path / "store" / paths[0] / "manifest").write_bytes(b"not a manifest")
    model = dict(models[0])
    wave(state, model, ROWS[:3])
    later = write(store, state, paths[0])
    assert restored(store, state, later) == model


@pytest.mark.parametrize("how", How)
def test_a_snapshot_that_fails_at_any_step_is_no_snapshot_and_harms_no_other(state: UnitState, how: How) -> None:
    store = FaultyStore()
    paths, models = chain(store, state, 1)
    first = len(store.operations)
    model = dict(models[0])
    wave(state, model, ROWS[:300])
    write(store.process("dry run"), state, paths[0])
    steps = len(store.operations) - first
    assert steps >= 4
    store.delete(snapshot_path("averages", 3, state.bucket_end, 1, state.wave))
    for step in range(steps):
        wave(state, model, ROWS[:300])
        store.fail_at(len(store.operations) + step, how)
        path = snapshot_path("averages", 3, state.bucket_end, 1, state.wave)
        try:
            write(store, state, paths[0])
        except StoreUnavailable:
            assert how is not How.BEFORE or not is_complete(store, path)
        if is_complete(store, path):
            assert restored(store, state, path) == model
        assert restored(store, state, paths[0]) == models[0]


def test_a_writer_tells_of_what_it_could_not_write_and_lets_its_pages_go(state: UnitState) -> None:
    store = FaultyStore()
    model: Model = {}
    wave(state, model, ROWS)
    writer = SnapshotWriter(store)
    for path, fault in (("snapshots/averages/3/b1-1-1", True), ("snapshots/averages/3/b1-1-2", False)):
        if fault:
            store.fail_at(len(store.operations) + 1, How.BEFORE)
        writer.write(SnapshotOrder(path, state.file.path, life_of(state)), state.prepare())
        writer.wait_until_written()
        assert store.exists(f"{path}/failed") == fault == (not is_complete(store, path))
        assert store.exists(f"{path}/pages") != fault
    assert base_of(state.file.path, life_of(state)) == "snapshots/averages/3/b1-1-2"
    assert restored(store, state, "snapshots/averages/3/b1-1-2") == model
    writer.close()


def test_a_note_is_of_one_file_and_not_of_its_path(state: UnitState) -> None:
    path, life = state.file.path, life_of(state)
    note_base(path, life, "snapshots/a")
    assert base_of(path, life) == "snapshots/a" and base_of(path, life + 1) is None
    Path(f"{path}.base").write_bytes(b"\xff\xfe garbage")
    assert base_of(path, life) is None
    forget_base(path)
    forget_base(path)
    assert base_of(path, life) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_manifest_is_whole_or_corrupt(state: UnitState, data: st.DataObject) -> None:
    """Also one whose checksum is right: what it names is not believed before it fits together."""
    store = FaultyStore()
    if state.bucket_end == 0:
        wave(state, {}, ROWS[:50])
    whole = read_manifest(store, write(store, state))
    fields = list(msgspec.structs.asdict(whole))
    changed: dict[str, object] = {}
    for name in data.draw(st.lists(st.sampled_from(fields[1:]), unique=True)):
        value = getattr(whole, name)
        junk = st.lists(st.text(max_size=5), max_size=3) if name == "files" else st.binary(max_size=len(value) + 8)
        changed[name] = data.draw(junk)
    head = msgspec.structs.replace(
        whole.head,
        pages=data.draw(st.just(whole.head.pages) | st.lists(st.integers(-1, 2**40), max_size=3)),
        wave=data.draw(st.just(whole.head.wave) | st.integers(-1, 2**63)),
    )
    made = Manifest(head, *(changed.get(name, getattr(whole, name)) for name in fields[1:]))  # type: ignore[arg-type]
    try:
        places = decode(encode(made), "snapshots/x").places()
    except SnapshotCorrupt as error:
        assert "snapshots/x" in str(error)
    else:
        assert len(places) == sum(made.head.pages)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_no_manifest(data: bytes, with_checksum: bool) -> None:
    if with_checksum:
        data = manifests._MAGIC + data + int(google_crc32c.value(data)).to_bytes(4, "little")
    with pytest.raises(SnapshotCorrupt, match="snapshots/x"):
        decode(data, "snapshots/x")
