"""Every create, write, sync and delete of snapshots is failed in turn: what can be read afterwards is right.

A session writes three snapshots of one state, each on the one before, and deletes what is not needed any more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.state.driver import IDENTITY, LAYOUT, Model, contents, create, update

from holdfast.checkpoint.snapshot_files import (
    is_complete,
    read_manifest,
    read_pages,
    remove_unneeded,
    snapshot_path,
    write_snapshot,
)
from holdfast.errors import HoldfastError
from holdfast.state import UnitState
from holdfast.testing.faulty_store import Crashed, FaultyStore, How

WAVES = 3
KEYS = [(number, b"key") for number in range(300)]


def path_of(bucket: int) -> str:
    return snapshot_path("averages", 3, bucket, 1, bucket)


class Session:
    """One unit's snapshots: which of them the journal was told of, and what each of them has to hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = create(folder)
        self.models: dict[int, Model] = {}
        self.verified: list[int] = []
        """As the ledger keeps them: the last two that somebody found complete."""

    def run(self, store: FaultyStore) -> None:
        """Write a snapshot after each wave. One that fails is given up; the next one does without it."""
        model: Model = dict(self.models.get(self.state.bucket_end, {}))
        for wave in range(WAVES):
            bucket = self.state.bucket_end
            self.state.begin(bucket)
            update(self.state, model, [(key, 1, wave, b"text %d" % wave) for key in KEYS[wave * 50 :]])
            self.state.finish(bucket + 1)
            self.state.end()
            self.models[bucket + 1] = dict(model)
            self._snapshot(store, bucket + 1)

    def _snapshot(self, store: FaultyStore, bucket: int) -> None:
        path = path_of(bucket)
        base = path_of(self.verified[-1]) if self.verified else None
        try:
            with self.state.prepare() as snapshot:
                write_snapshot(store, path, snapshot, base)
            if is_complete(store, path):
                self.verified = [*self.verified, bucket][-2:]
                remove_unneeded(store, "averages", 3, [path_of(each) for each in self.verified], self.verified[-1])
        except HoldfastError:
            return

    def check(self, store: FaultyStore) -> None:
        """Whatever was verified can be restored and holds its wave; what was not is either that, or refused by name."""
        for bucket, model in self.models.items():
            path = path_of(bucket)
            if bucket in self.verified:
                assert is_complete(store, path), f"the journal names {path}"
            if is_complete(store, path):
                assert self.restored(store, path, bucket) == model

    def restored(self, store: FaultyStore, path: str, bucket: int) -> Model:
        manifest = read_manifest(store, path)
        target = os.path.join(self.folder, f"restored-{bucket}")
        state = UnitState.restore(target, IDENTITY, LAYOUT, manifest.head, read_pages(store, path, manifest))
        try:
            state.begin(bucket)
            return contents(state, KEYS)
        finally:
            state.close()


def operations_of_a_session(folder: Path) -> list[str]:
    store, session = FaultyStore(), Session(folder)
    session.run(store)
    operations = list(store.operations)
    session.check(store)
    session.state.close()
    assert session.verified == [2, 3] and not is_complete(store, path_of(1)), "the first one was deleted"
    kinds = {operation.split(": ")[1].split(" ")[0] for operation in operations}
    assert {"create", "append", "sync", "write_new", "delete"} <= kinds
    return operations


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("ending", ["error", "killed", "power"])
def test_no_operation_can_spoil_a_snapshot(how: How, ending: str, tmp_path: Path) -> None:
    count = len(operations_of_a_session(_folder(tmp_path, "whole")))
    for number in range(count):
        store, session = FaultyStore(seed=number), Session(_folder(tmp_path, str(number)))
        store.fail_at(number, how, crash=ending != "error")
        try:
            session.run(store)
        except Crashed:
            if ending == "power":
                store.crash()
            store = store.process("again")
            session.check(store)
            session.run(store)
        session.check(store)
        assert session.verified, "one failure leaves a snapshot to start from"
        store.crash()
        session.check(store.process("last"))
        session.state.close()


def _folder(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder
