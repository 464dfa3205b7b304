"""A slot's work on units: run them over buckets, and write what comes out to their streams.

Guarantees:
    * A unit's state is begun, changed and finished under its file's lock, one wave at a time. A wave that fails in the
      middle is rolled back by the next one.
    * Rows of buckets that are published already are computed again and not written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.base import life_of
from holdfast.checkpoint.snapshot_files import snapshot_path
from holdfast.checkpoint.snapshot_writer import SnapshotOrder, SnapshotWriter
from holdfast.errors import StateBusy
from holdfast.log.frame import FrameHeader, encode
from holdfast.model import FrameKind, Published
from holdfast.node.messages import (
    Attached,
    AttachWork,
    ForgetWork,
    Forgotten,
    Processed,
    ProcessWork,
    UnitProcessed,
    UnitWork,
)
from holdfast.node.slot_context import SlotContext
from holdfast.node.slot_input import FrameReader, ReadFrame, event_times, input_rows, with_event_times
from holdfast.node.slot_states import SlotStates
from holdfast.operators.bucket_table import output_table
from holdfast.operators.destinations import stored_ends
from holdfast.operators.gathering import Gathered
from holdfast.operators.phases import Phases
from holdfast.operators.stage import StreamRows, UnitOperator, UnitOutput, watermark_of
from holdfast.state import UnitState


class HeldUnit:
    """A unit that this process has open: its operator and, if the stage keeps any, its state."""

    def __init__(self, operator: UnitOperator, state: UnitState | None) -> None:
        self.operator = operator
        self.state = state

    def is_of(self, generation: int) -> bool:
        """Return whether it is of that life or a later one."""
        return self.state is not None and self.state.identity.generation >= generation

    def fits(self, generation: int) -> bool:
        return self.state is None or self.state.identity.generation == generation

    def close(self) -> None:
        if self.state is not None:
            self.state.close()


class _Wave:
    """What the units of a piece of work share: the frames, read once, and where they pick rows, the rows too."""

    def __init__(self, context: SlotContext, work: ProcessWork, frames: list[ReadFrame]) -> None:
        self.work = work
        self._context = context
        self._stage = context.stages[work.stage]
        self._width_us = context.topology.bucket_width_us
        self._frames = with_event_times(self._stage, context.sources, frames, self._width_us)
        self._seen = event_times(self._stage, self._frames, self._width_us)
        self._shards = sorted(unit.shard for unit in work.units)
        self._shared: Gathered | None = None

    def gathered(self, operator: UnitOperator) -> Gathered:
        """Return what the unit has to see."""
        if self._stage.sharded:
            return self._gather(operator, [operator.shard])
        if self._shared is None:
            self._shared = self._gather(operator, self._shards)
        return self._shared

    def _gather(self, operator: UnitOperator, shards: Sequence[int]) -> Gathered:
        shards_in_all = self._context.topology.shards
        runs = input_rows(self._stage, self._context.sources, shards, self._frames, self._width_us, shards_in_all)
        return operator.gather(runs, self.work.bucket_from, self.work.bucket_to, self._seen)


class SlotUnits:
    """The units that this process has worked on."""

    def __init__(self, context: SlotContext) -> None:
        self.snapshots = SnapshotWriter(context.store)
        self._context = context
        self._shards = context.topology.shards
        self._states = SlotStates(context)
        self._frames = FrameReader(context.store, context.sources, context.topology.bucket_width_us)
        self._phases = Phases()
        self._held: dict[tuple[str, int], HeldUnit] = {}
        self._at: tuple[str, int] = ("", 0)

    def let_go(self) -> tuple[str, int]:
        """Close the unit that was worked on last, and return its stage and shard."""
        held = self._held.pop(self._at, None)
        if held is not None:
            held.close()
        return self._at

    def close(self) -> None:
        self.snapshots.close()
        for held in self._held.values():
            held.close()
        self._held.clear()

    def attach(self, work: AttachWork) -> Attached:
        """Bring a unit's state here."""
        self._at = (work.stage, work.shard)
        self.let_go()
        state, attached = self._states.attach(work)
        self._hold(work.stage, work.shard, state)
        if state is None:
            return attached
        return msgspec.structs.replace(attached, state_rows=state.records, state_bytes=state.size_bytes)

    def forget(self, work: ForgetWork) -> Forgotten:
        """Delete an older life of a unit that has gone to another host."""
        held = self._held.get((work.stage, work.shard))
        if held is None or not held.is_of(work.generation):
            self._at = (work.stage, work.shard)
            self.let_go()
            self._states.forget(work)
        return Forgotten(work.stage, work.shard)

    def process(self, work: ProcessWork) -> Processed:
        """Run the units over the buckets; their frames are appended, and durable when the order's sync is done."""
        started = time.perf_counter()
        self._phases.take()
        self._phases.begin()
        frames = self._frames.read(self._context.stages[work.stage], work.frames)
        self._phases.end("read")
        wave = _Wave(self._context, work, frames)
        units = [self._process_unit(wave, unit) for unit in work.units]
        seconds = self._phases.take() | {"total": time.perf_counter() - started}
        return Processed(work.stage, units, work.bucket_from, work.bucket_to, seconds)

    def _process_unit(self, wave: _Wave, unit: UnitWork) -> UnitProcessed:
        work = wave.work
        held = self._open(work.stage, unit)
        state = held.state
        try:
            if state is not None:
                state.begin(unit.bucket_memory)
            self._phases.end("state")
            output = held.operator.process_gathered(wave.gathered(held.operator), work.ended)
            published = self._append(work.stage, unit, output)
            snapshot = None
            rows: int | None = None
            size_bytes: int | None = None
            if state is not None:
                state.finish(work.bucket_to, output.meta)
                if output.rows_in or output.rows:
                    rows, size_bytes = state.records, state.size_bytes
                snapshot = self._snapshot(state, unit, work) if unit.snapshot else None
        finally:
            if state is not None:
                state.end()
        self._phases.end("state")
        rejected = sum(rows.batch.num_rows for rows in output.rejects)
        return UnitProcessed(
            unit.shard,
            published,
            output.digests,
            output.rows_in,
            output.rows_late,
            rejected,
            snapshot,
            rows,
            size_bytes,
            watermark_of(held.operator.stage, output.meta) if unit is work.units[0] else None,
        )

    # Holding units

    def _hold(self, stage: str, shard: int, state: UnitState | None) -> HeldUnit:
        topology = self._context.topology
        operator = UnitOperator(
            self._context.stages[stage],
            shard,
            topology.shards,
            state,
            self._context.setup.functions,
            topology.session_time_zone,
            topology.bucket_width_us,
            self._phases,
            self._context.setup.lines,
        )
        held = self._held[stage, shard] = HeldUnit(operator, state)
        return held

    def _open(self, stage: str, unit: UnitWork) -> HeldUnit:
        """Return the unit as this process holds it; another process of this host may have attached it."""
        self._at = (stage, unit.shard)
        held = self._held.get(self._at)
        if held is not None and held.fits(unit.generation):
            return held
        self.let_go()
        return self._hold(stage, unit.shard, self._states.open(stage, unit.shard, unit.generation))

    # Writing

    def _append(self, stage: str, unit: UnitWork, output: UnitOutput) -> list[Published]:
        published: list[Published] = []
        for rows in output.rows:
            published += append_output(self._context, self._phases, unit, rows, rows.stream, unit.publish_from)
        sides_from = max(unit.publish_from, unit.sides_from)
        for rows in output.late:
            published += append_output(self._context, self._phases, unit, rows, f"{rows.stream}.late", sides_from)
        for rows in output.rejects:
            # What a stage rejects of its own rows nobody else puts where it does.
            first = unit.publish_from if rows.stream == stage else sides_from
            published += append_output(self._context, self._phases, unit, rows, f"{rows.stream}.rejects", first)
        return published

    def _snapshot(self, state: UnitState, unit: UnitWork, work: ProcessWork) -> str | None:
        """Prepare a snapshot of the wave that has just ended; None while another one is being written."""
        path = snapshot_path(work.stage, unit.shard, work.bucket_to, unit.generation, state.wave)
        with contextlib.suppress(StateBusy):
            order = SnapshotOrder(path, state.file.path, life_of(state))
            self.snapshots.write(order, state.prepare())
            return path
        return None


def append_output(
    context: SlotContext, phases: Phases, unit: UnitWork, rows: StreamRows, stream: str, publish_from: int
) -> list[Published]:
    """Append one frame with the rows of the buckets from `publish_from` on, if there are any."""
    first = next((n for n, bucket in enumerate(rows.buckets) if bucket >= publish_from), None)
    if first is None:
        return []
    skip = rows.row_ends[first - 1] if first else 0
    batch = rows.batch.slice(skip) if skip else rows.batch
    if batch.num_rows == 0:
        return []
    buckets = rows.buckets[first:]
    row_ends = [end - skip for end in rows.row_ends[first:]]
    stage = context.stages.get(stream)
    event_time = None if stage is None else stage.event_time
    shards = context.topology.shards
    destinations = None if rows.destination_ends is None else rows.destination_ends[first * shards :] - skip
    header = FrameHeader(
        FrameKind.DATA,
        stream,
        unit.shard,
        unit.generation,
        buckets[0],
        buckets[-1] + 1,
        bucket_table=output_table(batch, event_time, buckets, row_ends, rows.reached_us[first:]),
        bucket_row_ends=row_ends,
        destination_by=[] if destinations is None or stage is None else stage.shard_by,
        destination_ends=b"" if destinations is None else stored_ends(destinations),
    )
    frame = encode(header, batch)
    phases.end("encode")
    ref = context.writer(stream).append_encoded([frame])[0]
    phases.end("write")
    return [Published(stream, unit.shard, buckets[0], buckets[-1] + 1, batch.num_rows, ref)]
