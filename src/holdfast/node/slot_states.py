"""Bring the states of units to this host: what is in memory if it fits, else a snapshot, else nothing.

Guarantees:
    * A state that was brought here is as of a bucket that the journal has reached, and from which input is still kept.
      What the journal does not know is rolled back first.
    * The place that needs least replay comes first; of two that need the same, memory does. What was wrong with a
      better place is in the answer, and the next one serves.
    * Another process that is still at work on the unit is waited for (`StateBusy`), never worked around.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from holdfast.checkpoint.base import forget_base, life_of, note_base
from holdfast.checkpoint.snapshot_files import read_manifest, read_pages
from holdfast.errors import SnapshotCorrupt, StateAbsent, StateBusy, StoreUnfit
from holdfast.node.messages import Attached, AttachWork, ForgetWork
from holdfast.node.slot_context import SlotContext
from holdfast.node.state_folder import units_folder
from holdfast.operators.stage import layout_of
from holdfast.state import Identity, StateLayout, UnitState


class SlotStates:
    """The state files of one pipeline on this host."""

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._layouts: dict[str, StateLayout | None] = {}
        self._folder: str | None = None

    def layout(self, stage: str) -> StateLayout | None:
        """Return what a unit of the stage keeps; None for a stage without state."""
        if stage not in self._layouts:
            self._layouts[stage] = layout_of(self._context.stages[stage])
        return self._layouts[stage]

    def open(self, stage: str, shard: int, generation: int) -> UnitState | None:
        """Return the state that this or another process of the host attached; None for a stage without state."""
        layout = self.layout(stage)
        if layout is None:
            return None
        return UnitState.open(self._path(stage, shard), self._identity(stage, shard, generation), layout)

    def attach(self, work: AttachWork) -> tuple[UnitState | None, Attached]:
        """Return the unit's state in its new life, and the answer that says where it came from."""
        layout = self.layout(work.stage)
        if layout is None:
            return None, Attached(work.stage, work.shard, work.bucket_committed, "empty")
        warnings: list[str] = []
        memory = self._from_memory(work, layout)
        with _closed_on_error(memory):
            bucket_memory = None if memory is None else memory.bucket_end
            restored = self._from_snapshots(work, layout, bucket_memory, warnings)
        if restored is not None:
            if memory is not None:
                memory.close()
            return restored, Attached(work.stage, work.shard, restored.bucket_end, "snapshot", warnings)
        if memory is not None:
            return memory, Attached(work.stage, work.shard, memory.bucket_end, "memory", warnings)
        empty = self._empty(work, layout, warnings)
        return empty, Attached(work.stage, work.shard, work.bucket_empty, "empty", warnings)

    def forget(self, work: ForgetWork) -> None:
        """Delete the state of an older life; that of this life, or a later one, stays, and one that is in use."""
        layout = self.layout(work.stage)
        if layout is None:
            return
        path = self._path(work.stage, work.shard)
        try:
            state = UnitState.open(path, self._identity(work.stage, work.shard, work.generation), layout)
        except StateAbsent:
            return
        with _closed_on_error(state), contextlib.suppress(StateAbsent, StateBusy):
            if state.generation < work.generation:
                # Who still has it open is refused from now on.
                state.adopt(work.generation)
                state.remove()
                forget_base(path)
        state.close()

    # What is in memory

    def _from_memory(self, work: AttachWork, layout: StateLayout) -> UnitState | None:
        try:
            state = UnitState.open(self._path(work.stage, work.shard), self._identity_of(work), layout)
        except StateAbsent:
            return None
        with _closed_on_error(state):
            try:
                if state.generation < work.generation_committed:
                    raise StateAbsent(f"the state is of generation {state.generation}, which others have overtaken")
                state.adopt(work.generation)
                _return_to(state, _reachable(state, work))
                return state
            except StateAbsent:
                state.close()
                return None

    # What is on the store

    def _from_snapshots(
        self, work: AttachWork, layout: StateLayout, bucket_memory: int | None, warnings: list[str]
    ) -> UnitState | None:
        """Return the state of the newest snapshot that can be read and that is ahead of what is in memory."""
        for bucket, path in sorted(work.snapshots, reverse=True):
            if bucket > work.bucket_committed or bucket < work.bucket_replay:
                continue
            if bucket_memory is not None and bucket <= bucket_memory:
                return None
            try:
                return self._restore(work, layout, bucket, path)
            except SnapshotCorrupt as error:
                warnings.append(str(error))
        return None

    def _restore(self, work: AttachWork, layout: StateLayout, bucket: int, path: str) -> UnitState:
        manifest = read_manifest(self._context.store, path)
        if manifest.head.bucket_end != bucket:
            raise SnapshotCorrupt(
                f"snapshot {path} is as of bucket {manifest.head.bucket_end}, expected {bucket} as the journal says; "
                "an older snapshot and more replay will serve"
            )
        pages = read_pages(self._context.store, path, manifest)
        target = self._path(work.stage, work.shard)
        forget_base(target)
        state = UnitState.restore(target, self._identity_of(work), layout, manifest.head, pages)
        with _closed_on_error(state):
            note_base(target, life_of(state), path)
            _return_to(state, bucket)
        return state

    def _empty(self, work: AttachWork, layout: StateLayout, warnings: list[str]) -> UnitState:
        if not work.empty_allowed:
            raise StoreUnfit(
                f"unit {work.shard} of stage {work.stage!r} cannot be rebuilt: its input is kept from bucket "
                f"{work.bucket_replay} on, and no snapshot at or after that can be read. "
                + (" ".join(warnings) or "There is no snapshot.")
                + " Run `holdfast log verify`, and bring the snapshots back from a copy of the store"
            )
        target = self._path(work.stage, work.shard)
        forget_base(target)
        return UnitState.create(target, self._identity_of(work), layout, work.bucket_empty)

    # Names

    def _identity_of(self, work: AttachWork) -> Identity:
        return self._identity(work.stage, work.shard, work.generation)

    def _identity(self, stage: str, shard: int, generation: int) -> Identity:
        return Identity(self._context.setup.pipeline_id, stage, shard, generation)

    def _path(self, stage: str, shard: int) -> str:
        if self._folder is None:
            setup = self._context.setup
            self._folder = units_folder(setup.state_folder, setup.pipeline_id, self._context.store.url)
        return os.path.join(self._folder, f"{stage}-{shard}.state")


def _reachable(state: UnitState, work: AttachWork) -> int:
    """Return the bucket to which the state in memory can go: its own, or the one before its last wave.

    The journal may be beyond it: it is behind, or no rows came since. It is ahead when its last wave was not committed.
    """
    bucket: int | None = state.bucket_end
    if bucket is not None and bucket > work.bucket_committed:
        bucket = state.bucket_end_before
    if bucket is None or bucket > work.bucket_committed or bucket < work.bucket_replay:
        raise StateAbsent(
            f"the state of unit {work.shard} of stage {work.stage!r} is as of bucket {state.bucket_end}; the journal "
            f"is at {work.bucket_committed}, and input is kept from {work.bucket_replay} on: rebuild it"
        )
    return bucket


def _return_to(state: UnitState, bucket: int) -> None:
    """Take back what is not committed, and build what is derived: an empty wave, rolled back."""
    state.begin(bucket)
    state.rollback()
    state.end()


@contextlib.contextmanager
def _closed_on_error(state: UnitState | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if state is not None:
            state.close()
        raise
