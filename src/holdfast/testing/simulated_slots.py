"""Slots that carry out real orders on the faulty disk: they can be late, die anywhere, and go on as zombies.

Guarantees:
    * What a slot reads and writes are real frames in real segments; a receipt is what a real slot would send.
    * Between any two steps of an order everybody else may act, and the process may die; locks end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError, Retryable, SnapshotCorrupt, StateAbsent, StoreUnfit
from holdfast.log.frame import FrameHeader, checksum
from holdfast.log.segment import SegmentWriter, read_frame, segment_folder
from holdfast.model import FIRST_BUCKET, MANY_SHARDS, NO_BUCKET, FrameKind, FrameRef, Published
from holdfast.node import messages
from holdfast.node.messages import (
    Attached,
    AttachWork,
    Delivered,
    DeliverWork,
    Failed,
    ForgetWork,
    Forgotten,
    FrameOfInput,
    Ingested,
    IngestWork,
    Order,
    Processed,
    ProcessWork,
    Receipt,
    Result,
    Skipped,
    UnitProcessed,
    UnitWork,
)
from holdfast.node.ranges import bucket_slices, rows_in_order
from holdfast.testing.faulty_store import FaultyStore
from holdfast.testing.simulated_memory import HostMemory
from holdfast.testing.simulated_stage import (
    SCHEMA,
    Row,
    StageState,
    batch_of,
    digest_of,
    echoed,
    in_shard_order,
    rows_of,
    shard_of,
)
from holdfast.testing.timeline import Process, Timeline


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a simulated file, with its rows."""

    path: str
    start: int
    end: int
    last: bool
    rows: list[Row]


class Surroundings(Protocol):
    """What a slot meets beside the disk."""

    shards: int
    segment_bytes: int
    transforms: frozenset[str]

    def wrote(self, stream: str, ref: FrameRef, rows: list[Row]) -> None: ...
    def put_out(self, sink: str, name: str, rows: list[Row]) -> int: ...


class SlotProcess(Process):
    """One worker process of a slot. It does one order at a time, and holds on to its segments in between."""

    def __init__(self, timeline: Timeline, name: str, disk: FaultyStore, node: str, memory: HostMemory) -> None:
        super().__init__(timeline, name, disk.process(name))
        self.node = node
        self.memory = memory
        self.busy = False
        self.zombie = False
        """Nobody waits for it any more, but it does not know."""
        self.sluggish = 1
        self.world: Surroundings
        self.on_gone: Callable[[str], None] = lambda reason: None
        self._writers: dict[str, SegmentWriter] = {}
        self._folder_number = 0

    def start(self, order: Order, send: Callable[[Receipt], None]) -> None:
        """Begin an order; its receipt goes to `send`."""
        self.busy = True
        self._go_on(order, send, self._perform(order))

    def died(self, reason: str) -> None:
        self.busy = False
        self.on_gone(reason)

    def _go_on(self, order: Order, send: Callable[[Receipt], None], steps: Generator[None, None, list[Result]]) -> None:
        try:
            next(steps)
        except StopIteration as stop:
            self.busy = False
            if self.zombie:
                self.timeline.count("a zombie finished its order")
            send(Receipt(order.wave, order.slot, order.node, "host", 1, stop.value))
            return
        self.soon(3_000 * self.sluggish, lambda: self._go_on(order, send, steps))

    # As in `node.slot`

    def _perform(self, order: Order) -> Generator[None, None, list[Result]]:
        results: list[Result] = []
        for number, work in enumerate(order.works):
            if any(isinstance(result, Failed) for result in results):
                results.append(Skipped(number))
                continue
            yield
            results.append((yield from self._guarded(number, work)))
        yield
        try:
            for writer in self._writers.values():
                writer.sync()
        except HoldfastError as error:
            self._forget_writers()
            return [_failed(number, error) for number in range(len(order.works))]
        yield
        return results

    def _guarded(self, number: int, work: messages.Work) -> Generator[None, None, Result]:
        try:
            match work:
                case ProcessWork():
                    return (yield from self._process(work))
                case AttachWork():
                    return self._attach(work)
                case IngestWork():
                    return self._ingest(work)
                case DeliverWork():
                    return self._deliver(work)
                case ForgetWork():
                    return self._forget(work)
        except HoldfastError as error:
            self.timeline.count(f"work failed: {type(error).__name__}")
            return _failed(number, error)
        except FileNotFoundError as error:
            return Failed(number, "StoreUnavailable", f"a file of the store is gone: {error}", retry=True)

    def _append(self, stream: str, header: FrameHeader, rows: list[Row]) -> FrameRef:
        ref = self._writer(stream).append(header, batch_of(rows))
        if self.zombie:
            self.timeline.count("a zombie wrote a frame")
        return ref

    def _writer(self, stream: str) -> SegmentWriter:
        writer = self._writers.get(stream)
        if writer is None:
            self._folder_number += 1
            folder = segment_folder(stream, self.node, self.name, self._folder_number)
            writer = self._writers[stream] = SegmentWriter(self.store, folder, self.world.segment_bytes)
        return writer

    def _forget_writers(self) -> None:
        writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()

    # As in `node.slot_units`

    def _attach(self, work: AttachWork) -> Result:
        if work.stage in self.world.transforms:
            return Attached(work.stage, work.shard, work.bucket_committed, "empty")
        bucket = self._from_memory(work)
        if bucket is not None:
            self.timeline.count("a state was attached from memory")
            return Attached(work.stage, work.shard, bucket, "memory")
        warnings: list[str] = []
        for bucket, path in work.snapshots:
            if bucket > work.bucket_committed:
                continue
            try:
                content = read_snapshot(self.store, path)
            except SnapshotCorrupt as error:
                self.timeline.count("a snapshot could not be read")
                warnings.append(str(error))
                continue
            self.memory.install((work.stage, work.shard), work.generation, bucket, content)
            self.timeline.count("a state was attached from a snapshot")
            return Attached(work.stage, work.shard, bucket, "snapshot", warnings)
        if not work.empty_allowed:
            raise StoreUnfit(f"unit {work.shard} of {work.stage} cannot be rebuilt: {work}, {warnings}")
        self.memory.install((work.stage, work.shard), work.generation, work.bucket_empty, b"")
        self.timeline.count("a state was attached empty")
        if work.bucket_empty > FIRST_BUCKET:
            self.timeline.count("a stage began behind rows that were gone")
        return Attached(work.stage, work.shard, work.bucket_empty, "empty", warnings)

    def _forget(self, work: ForgetWork) -> Result:
        state = self.memory.states.get((work.stage, work.shard))
        if state is not None and state.generation < work.generation:
            self.timeline.count("a state was left behind and is forgotten")
            state.adopt(self, work.generation)
            del self.memory.states[work.stage, work.shard]
        return Forgotten(work.stage, work.shard)

    def _from_memory(self, work: AttachWork) -> int | None:
        try:
            state = self.memory.find((work.stage, work.shard))
            if state.generation < work.generation_committed:
                self.timeline.count("a state in memory was overtaken")
                return None
            state.adopt(self, work.generation)
            bucket = state.bucket_end
            if bucket > work.bucket_committed:
                before = None if state.before is None else state.before[0]
                bucket = work.bucket_committed if before is None or before > work.bucket_committed else before
            if bucket < work.bucket_replay:
                return None
            state.begin(self, work.generation, bucket)
            state.end(self)
            return bucket
        except StateAbsent:
            return None

    def _process(self, work: ProcessWork) -> Generator[None, None, Result]:
        rows = self._read(work)
        yield
        units: list[UnitProcessed] = []
        if work.stage in self.world.transforms:
            for unit in work.units:
                yield
                units.append(self._transform_unit(work, unit, rows))
            self.timeline.count("a job was done")
            return Processed(work.stage, units, work.bucket_from, work.bucket_to)
        for unit in work.units:
            try:
                units.append((yield from self._process_unit(work, unit, rows)))
            except StateAbsent as error:
                self.timeline.count("a state was absent")
                return messages.StateAbsent(work.stage, unit.shard, str(error))
        return Processed(work.stage, units, work.bucket_from, work.bucket_to)

    def _read(self, work: ProcessWork) -> dict[tuple[int, int], list[Row]]:
        """Return the rows per (bucket, shard), in the order of the union: tuple_time, input, shard, position."""
        pieces: list[tuple[int, int, int, int, int, list[Row]]] = []
        for number, frame in enumerate(work.frames):
            for bucket, rows in self._buckets_of(frame):
                if work.bucket_from <= bucket < work.bucket_to:
                    pieces.append((bucket, frame.stamp_us or 0, frame.input, frame.shard, number, rows))
        found: dict[tuple[int, int], list[Row]] = {}
        for piece in sorted(pieces, key=lambda piece: piece[:5]):
            for row in piece[5]:
                found.setdefault((piece[0], shard_of(row[0], self.world.shards)), []).append(row)
        return found

    def _buckets_of(self, frame: FrameOfInput) -> list[tuple[int, list[Row]]]:
        header, batch = read_frame(self.store, frame.frame, SCHEMA)
        rows = rows_of(batch)
        if frame.stamp_us is not None:
            return [(frame.bucket_start, rows)]
        return [(bucket, rows[start:end]) for bucket, start, end in bucket_slices(header)]

    def _process_unit(
        self, work: ProcessWork, unit: UnitWork, rows: dict[tuple[int, int], list[Row]]
    ) -> Generator[None, None, UnitProcessed]:
        key = (work.stage, unit.shard)
        state = self.memory.find(key)
        if state.bucket_end != unit.bucket_memory:
            self.timeline.count("a state was to be rolled back")
        stage = StageState(state.begin(self, unit.generation, unit.bucket_memory))
        try:
            yield
            buckets = {bucket for bucket, shard in rows if shard == unit.shard}
            buckets |= {work.bucket_to - 1} if work.ended else set()
            out: list[tuple[int, list[Row]]] = []
            for bucket in sorted(buckets):
                left = stage.process(rows.get((bucket, unit.shard), []), work.ended and bucket == work.bucket_to - 1)
                out += [(bucket, left)] if left else []
            published = self._publish(work.stage, unit, [each for each in out if each[0] >= unit.publish_from])
            state.finish(work.bucket_to, stage.encode())
        finally:
            state.end(self)
        snapshot = self._snapshot(work, unit, stage.encode()) if unit.snapshot else None
        digests = [(bucket, len(left), digest_of(left)) for bucket, left in out]
        rows_in = sum(len(some) for (_, shard), some in rows.items() if shard == unit.shard)
        return UnitProcessed(unit.shard, published, digests, rows_in, 0, 0, snapshot)

    def _transform_unit(
        self, work: ProcessWork, unit: UnitWork, rows: dict[tuple[int, int], list[Row]]
    ) -> UnitProcessed:
        """As a job of Spark's does it: there is no state, and all of the range is written."""
        found = [(bucket, echoed(some)) for (bucket, shard), some in sorted(rows.items()) if shard == unit.shard]
        out = [each for each in found if each[1]]
        digests = [(bucket, len(left), digest_of(left)) for bucket, left in out]
        rows_in = sum(len(some) for (_, shard), some in rows.items() if shard == unit.shard)
        return UnitProcessed(unit.shard, self._publish(work.stage, unit, out), digests, rows_in, 0)

    def _publish(self, stream: str, unit: UnitWork, out: list[tuple[int, list[Row]]]) -> list[Published]:
        if not out:
            return []
        ends: list[int] = []
        for _, left in out:
            ends.append((ends[-1] if ends else 0) + len(left))
        header = FrameHeader(
            FrameKind.DATA,
            stream,
            unit.shard,
            unit.generation,
            out[0][0],
            out[-1][0] + 1,
            bucket_table=[(bucket, 0) for bucket, _ in out],
            bucket_row_ends=ends,
        )
        ref = self._append(stream, header, [row for _, left in out for row in left])
        return [Published(stream, unit.shard, out[0][0], out[-1][0] + 1, ends[-1], ref)]

    # Snapshots, in the background

    def _snapshot(self, work: ProcessWork, unit: UnitWork, content: bytes) -> str:
        path = f"snapshots/{work.stage}/{unit.shard}/b{work.bucket_to}-{unit.generation}"
        self.soon(60_000 * self.sluggish, lambda: self._write_snapshot(path, content))
        return path

    def _write_snapshot(self, path: str, content: bytes) -> None:
        try:
            self.store.write_new(f"{path}/manifest", checksum(content).to_bytes(4, "little") + content)
            self.timeline.count("a snapshot was written")
        except HoldfastError:
            self.timeline.count("a snapshot was given up")
            try:
                self.store.write_new(f"{path}/failed", b"")
            except HoldfastError:
                return

    # As in `node.slot_edges`

    def _ingest(self, work: IngestWork) -> Result:
        chunk = msgspec.json.decode(work.chunk, type=Chunk)
        ordered, ends = in_shard_order(chunk.rows, self.world.shards)
        header = FrameHeader(FrameKind.DATA, work.source, MANY_SHARDS, 0, NO_BUCKET, NO_BUCKET, shard_row_ends=ends)
        ref = self._append(work.source, header, ordered)
        self.world.wrote(work.source, ref, ordered)
        published = [Published(work.source, MANY_SHARDS, NO_BUCKET, NO_BUCKET, len(ordered), ref)]
        return Ingested(
            work.source,
            work.number,
            published,
            chunk.path,
            100,
            1,
            chunk.start,
            chunk.end,
            chunk.last,
            None,
            None,
            0,
        )

    def _deliver(self, work: DeliverWork) -> Result:
        batches = rows_in_order(self.store, work.frames, SCHEMA, work.bucket_from, work.bucket_to)
        rows = [row for batch in batches for row in rows_of(batch)]
        return Delivered(work.sink, work.stream, work.bucket_to, self.world.put_out(work.sink, work.name, rows))


def _failed(number: int, error: HoldfastError) -> Failed:
    return Failed(number, type(error).__name__, str(error), isinstance(error, Retryable))


def read_snapshot(store: FaultyStore, path: str) -> bytes:
    """Return the content of a snapshot, checked."""
    try:
        data = bytes(store.read(f"{path}/manifest"))
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"snapshot {path} has no manifest") from error
    if checksum(data[4:]) != int.from_bytes(data[:4], "little"):
        raise SnapshotCorrupt(f"snapshot {path} does not match its checksum")
    return data[4:]
