"""A slot's work on units: bring their state here, and run them over buckets.

Guarantees:
    * A unit's state is begun, changed and finished under its file's lock, one wave at a time.
    * Rows of buckets that are published already are computed again and not written.
    * Where a unit's state came from, and what was wrong with better places, is in the answer.
"""

from __future__ import annotations

import contextlib
import os
import time

import pyarrow as pa

from holdfast.checkpoint.snapshot_files import read_manifest, read_pages, snapshot_path
from holdfast.checkpoint.snapshot_writer import SnapshotWriter, note_base
from holdfast.errors import SnapshotCorrupt, StateAbsent, StateBusy, StoreUnfit
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame, shard_rows
from holdfast.model import FIRST_BUCKET, MANY_SHARDS, FrameKind, Published
from holdfast.node.messages import Attached, AttachWork, FrameOfInput, Processed, ProcessWork, UnitProcessed, UnitWork
from holdfast.node.slot import SlotContext
from holdfast.operators.stage import StreamRows, UnitOperator, UnitOutput, layout_of
from holdfast.operators.union import InputRows
from holdfast.plan import Stage
from holdfast.state import Identity, UnitState

Frames = list[tuple[FrameOfInput, FrameHeader, pa.RecordBatch]]


class HeldUnit:
    """A unit that this process has open: its operator and, if the stage keeps any, its state."""

    def __init__(self, operator: UnitOperator, state: UnitState | None) -> None:
        self.operator = operator
        self.state = state

    @property
    def generation(self) -> int:
        return 0 if self.state is None else self.state.identity.generation

    def close(self) -> None:
        if self.state is not None:
            self.state.close()


class SlotUnits:
    """The units that this process has worked on."""

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._held: dict[tuple[str, int], HeldUnit] = {}
        self._snapshots = SnapshotWriter(context.store)
        self._at: tuple[str, int] = ("", 0)
        self._verified: set[tuple[str, int]] = set()

    def absent(self, work: ProcessWork | AttachWork) -> tuple[str, int]:
        """Return the unit whose state turned out to be absent during `work`, and let go of it."""
        held = self._held.pop(self._at, None)
        if held is not None:
            held.close()
        return self._at

    def close(self) -> None:
        self._snapshots.close()
        for held in self._held.values():
            held.close()
        self._held.clear()

    # Bringing state here

    def attach(self, work: AttachWork) -> Attached:
        """Take what is in memory if it fits, else the newest snapshot that can be read, else nothing."""
        self._at = (work.stage, work.shard)
        held = self._held.pop(self._at, None)
        if held is not None:
            held.close()
        stage = self._context.stages[work.stage]
        if layout_of(stage) is None:
            self._hold(stage, work.shard, None)
            return Attached(work.stage, work.shard, work.bucket_committed, "empty")
        state = self._from_memory(stage, work)
        if state is not None:
            self._hold(stage, work.shard, state)
            return Attached(work.stage, work.shard, state.bucket_end, "memory")
        return self._from_store(stage, work)

    def _from_memory(self, stage: Stage, work: AttachWork) -> UnitState | None:
        layout = layout_of(stage)
        assert layout is not None
        state: UnitState | None = None
        try:
            state = UnitState.open(self._path(work.stage, work.shard), self._identity(work), layout)
            state.adopt(work.generation)
            bucket = state.bucket_end
            if bucket > work.bucket_committed:
                before = state.bucket_end_before
                bucket = work.bucket_committed if before is None or before > work.bucket_committed else before
            if bucket < work.bucket_replay:
                raise StateAbsent(f"the state is as of {bucket}, and input is kept from {work.bucket_replay} only")
            # An empty wave takes back what the journal does not know.
            state.begin(bucket)
            state.rollback()
            state.end()
            return state
        except StateAbsent:
            if state is not None:
                state.close()
            return None

    def _from_store(self, stage: Stage, work: AttachWork) -> Attached:
        warnings: list[str] = []
        for bucket, path in work.snapshots:
            if bucket > work.bucket_committed:
                continue
            try:
                state = self._restore(stage, work, path)
            except SnapshotCorrupt as error:
                warnings.append(str(error))
                continue
            self._hold(stage, work.shard, state)
            return Attached(work.stage, work.shard, bucket, "snapshot", warnings)
        if not work.empty_allowed:
            raise StoreUnfit(
                f"unit {work.shard} of stage {work.stage!r} cannot be rebuilt: its input is kept from bucket "
                f"{work.bucket_replay} on, and no snapshot at or after that can be read. "
                + (" ".join(warnings) or "There is no snapshot.")
                + " Run `holdfast log verify`, and bring the snapshots back from a copy of the store"
            )
        layout = layout_of(stage)
        assert layout is not None
        state = UnitState.create(self._path(work.stage, work.shard), self._identity(work), layout, FIRST_BUCKET)
        note_base(state.file.path, None)
        self._hold(stage, work.shard, state)
        return Attached(work.stage, work.shard, FIRST_BUCKET, "empty", warnings)

    def _restore(self, stage: Stage, work: AttachWork, path: str) -> UnitState:
        layout = layout_of(stage)
        assert layout is not None
        manifest = read_manifest(self._context.store, path)
        pages = read_pages(self._context.store, path, manifest)
        target = self._path(work.stage, work.shard)
        state = UnitState.restore(target, self._identity(work), layout, manifest.head, pages)
        note_base(target, path)
        state.begin(manifest.head.bucket_end)
        state.rollback()
        state.end()
        return state

    def _hold(self, stage: Stage, shard: int, state: UnitState | None) -> HeldUnit:
        topology = self._context.topology
        operator = UnitOperator(
            stage,
            shard,
            topology.shards,
            state,
            self._context.setup.functions,
            topology.session_time_zone,
            topology.bucket_width_us,
        )
        held = self._held[stage.name, shard] = HeldUnit(operator, state)
        return held

    def _identity(self, work: AttachWork) -> Identity:
        return Identity(self._context.setup.pipeline_id, work.stage, work.shard, work.generation)

    def _path(self, stage: str, shard: int) -> str:
        folder = os.path.join(self._context.setup.state_folder, self._context.setup.pipeline_id)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, f"{stage}-{shard}.state")

    def _open(self, stage: Stage, unit: UnitWork) -> HeldUnit:
        """Return the unit as this process holds it; another process of this host may have attached it."""
        self._at = (stage.name, unit.shard)
        held = self._held.get(self._at)
        layout = layout_of(stage)
        if held is not None and (layout is None or held.generation == unit.generation):
            return held
        if held is not None:
            self._held.pop(self._at).close()
        if layout is None:
            return self._hold(stage, unit.shard, None)
        identity = Identity(self._context.setup.pipeline_id, stage.name, unit.shard, unit.generation)
        return self._hold(stage, unit.shard, UnitState.open(self._path(stage.name, unit.shard), identity, layout))

    # Running

    def process(self, work: ProcessWork) -> Processed:
        """Run the units over the buckets; their frames are appended, and durable when the order's sync is done."""
        started = time.perf_counter()
        stage = self._context.stages[work.stage]
        frames = self._read(stage, work.frames)
        seconds = {"read": time.perf_counter() - started, "kernel": 0.0, "write": 0.0}
        units = [self._process_unit(stage, work, unit, frames, seconds) for unit in work.units]
        seconds["total"] = time.perf_counter() - started
        return Processed(work.stage, units, work.bucket_from, work.bucket_to, seconds)

    def _read(self, stage: Stage, frames: list[FrameOfInput]) -> Frames:
        schemas = [pa.ipc.read_schema(pa.py_buffer(read.schema)) for read in stage.inputs]
        found: Frames = []
        for frame in frames:
            place = (frame.frame.segment, frame.frame.offset)
            verify = place not in self._verified
            header, batch = read_frame(self._context.store, frame.frame, schemas[frame.input], verify)
            self._verified.add(place)
            found.append((frame, header, batch))
        if len(self._verified) > 100_000:
            self._verified.clear()
        return found

    def _process_unit(
        self, stage: Stage, work: ProcessWork, unit: UnitWork, frames: Frames, seconds: dict[str, float]
    ) -> UnitProcessed:
        held = self._open(stage, unit)
        state = held.state
        started = time.perf_counter()
        try:
            if state is not None:
                state.begin(unit.bucket_memory)
            runs = self._runs(stage, unit.shard, frames)
            output = held.operator.process(runs, work.bucket_from, work.bucket_to, work.ended)
            computed = time.perf_counter()
            seconds["kernel"] += computed - started
            published = self._append(unit, output)
            seconds["write"] += time.perf_counter() - computed
            snapshot = None
            if state is not None:
                state.finish(work.bucket_to, output.meta)
                snapshot = self._snapshot(state, unit, work) if unit.snapshot else None
        finally:
            if state is not None:
                state.end()
        rejected = sum(rows.batch.num_rows for rows in output.rejects)
        return UnitProcessed(
            unit.shard, published, output.digests, output.rows_in, output.rows_late, rejected, snapshot
        )

    def _runs(self, stage: Stage, shard: int, frames: Frames) -> list[list[InputRows]]:
        """Return each input's frames with the rows that this unit has to see."""
        runs: list[list[InputRows]] = [[] for _ in stage.inputs]
        for frame, header, batch in frames:
            rows = batch
            if stage.sharded and header.shard_row_ends:
                row_from, row_to = shard_rows(header, shard, shard + 1)
                rows = batch.slice(row_from, row_to - row_from)
            runs[frame.input].append(
                InputRows(
                    rows,
                    frame.stamp_us,
                    frame.event_time_max_us,
                    header.bucket_table,
                    0 if frame.shard == MANY_SHARDS else frame.shard,
                    None if frame.stamp_us is not None else self._tuple_time(stage, frame.input),
                )
            )
        return runs

    def _tuple_time(self, stage: Stage, number: int) -> str | None:
        return self._context.sources[stage.inputs[number].stream].tuple_time

    def _append(self, unit: UnitWork, output: UnitOutput) -> list[Published]:
        published: list[Published] = []
        for rows in output.rows:
            published += self._append_rows(unit, rows, rows.stream)
        for rows in output.late:
            published += self._append_rows(unit, rows, f"{rows.stream}.late")
        for rows in output.rejects:
            published += self._append_rows(unit, rows, f"{rows.stream}.rejects")
        return published

    def _append_rows(self, unit: UnitWork, rows: StreamRows, stream: str) -> list[Published]:
        """Append one frame with the rows of buckets that are not published yet, if there are any."""
        first = next((n for n, bucket in enumerate(rows.buckets) if bucket >= unit.publish_from), None)
        if first is None:
            return []
        skip = rows.row_ends[first - 1] if first else 0
        batch = rows.batch.slice(skip) if skip else rows.batch
        if batch.num_rows == 0:
            return []
        buckets = rows.buckets[first:]
        header = FrameHeader(
            FrameKind.DATA,
            stream,
            unit.shard,
            unit.generation,
            buckets[0],
            buckets[-1] + 1,
            bucket_table=[(bucket, 0) for bucket in buckets],
            bucket_row_ends=[end - skip for end in rows.row_ends[first:]],
        )
        ref = self._context.writer(stream).append(header, batch)
        return [Published(stream, unit.shard, buckets[0], buckets[-1] + 1, batch.num_rows, ref)]

    def _snapshot(self, state: UnitState, unit: UnitWork, work: ProcessWork) -> str | None:
        path = snapshot_path(work.stage, unit.shard, work.bucket_to, unit.generation)
        with contextlib.suppress(StateBusy):
            self._snapshots.write(state.file.path, path, state.prepare())
            return path
        return None


def warm() -> None:
    """Load the kernels of states and operators."""
    # The operators' kernels have their signatures written down: importing them has loaded them.
    from holdfast.state import warm as warm_state

    warm_state()
