"""A pipeline without Spark or node: rows are logged, a slot does orders, a journal names results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from tests.unit.operators.harness import WIDTH_US

from holdfast import plan
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import SegmentWriter, read_frame
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.model import (
    FIRST_BUCKET,
    MANY_SHARDS,
    NO_BUCKET,
    NO_WATERMARK,
    Advanced,
    Ended,
    FrameKind,
    JournalItem,
    Published,
    SnapshotVerified,
    Trimmed,
    UnitCommitted,
)
from holdfast.node.messages import Attached, AttachWork, Order, Processed, ProcessWork, Result, UnitWork, Work
from holdfast.node.planning import frames_between
from holdfast.node.ranges import rows_in_order
from holdfast.node.slot import Slot, SlotSetup
from holdfast.operators.bucket_table import bucket_table, microseconds
from holdfast.operators.sharding import sort_by_shard
from holdfast.ports import Store
from holdfast.testing.faulty_store import FaultyStore

OPTIONS = LogOptions(commit_thread=False)
PIPELINE = "0f0f"


def topology_of(
    stage: plan.Stage, shards: int = 2, shard_by: Sequence[str] = ("item",), tuple_time: str | None = None
) -> plan.Topology:
    """Return a pipeline of one stage whose inputs are fed by hand."""
    sources = [
        plan.Source(
            read.stream,
            read.schema,
            plan.ProducerSource(),
            list(shard_by) if stage.sharded else [],
            tuple_time,
            read.event_time,
            read.late,
            read.on_error,
        )
        for read in stage.inputs
    ]
    return plan.Topology("retail", shards, WIDTH_US, sources, [stage], [])


class SlotSession:
    """What a node does for one stage at a time, said step by step by a test."""

    def __init__(
        self,
        folder: Path,
        topology: plan.Topology,
        functions: Sequence[Callable[..., Any]] = (),
        store: Store | None = None,
        log: StreamLog | None = None,
    ) -> None:
        self.folder = folder
        self.store: Store = FaultyStore() if store is None else store
        self.topology = topology
        self.stage = topology.stages[0]
        self.setup = SlotSetup(PIPELINE, "", msgspec.json.encode(topology), str(folder / "state"), tuple(functions))
        self.slot = self.new_slot()
        self.generation = 1
        self.bucket_memory: dict[int, int] = {}
        self._memories: dict[str, dict[int, int]] = {}
        self.warnings: list[str] = []
        self._wave = 0
        self.log = self.open_log() if log is None else log
        self._writers = {source.name: self._source_writer(source.name) for source in topology.sources}

    @property
    def shards(self) -> int:
        return self.topology.shards

    def new_slot(self) -> Slot:
        """Return a slot as another process would have it."""
        return Slot(self.setup, f"node-{id(self)}", self.store)

    def restart(self, memory: bool = True) -> None:
        """Begin again as a new node after a crash; without `memory`, on a host that has never seen the pipeline."""
        self.slot.close()
        self.log.close()
        self.log = self.open_log()
        self.slot = self.new_slot()
        self.generation += 1 << 20
        self.bucket_memory.clear()
        self._memories.clear()
        if not memory:
            for path in (self.folder / "state").rglob("*.state*"):
                path.unlink()

    def close(self) -> None:
        self.slot.close()
        self.log.close()

    def turn_to(self, stage: str) -> SlotSession:
        """Go on with another stage of the pipeline, from where it is."""
        self._memories[self.stage.name] = self.bucket_memory
        self.stage = next(each for each in self.topology.stages if each.name == stage)
        self.bucket_memory = self._memories.get(stage, {})
        return self

    def commit(self, *items: JournalItem) -> None:
        future = self.log.commit(list(items))
        self.log.flush()
        future.result()

    # Input

    def feed(self, stream: str, batch: pa.RecordBatch, bucket: int | None = None) -> None:
        """Log a frame: in a bucket, as of its arrival, or by its column of tuple_times."""
        source = next(each for each in self.topology.sources if each.name == stream)
        table = bucket_table(batch, source.tuple_time, source.event_time, WIDTH_US)
        newest = NO_WATERMARK
        if source.event_time is not None:
            seen = microseconds(batch.column(source.event_time)).drop_null().to_pylist()
            newest = max(seen, default=NO_WATERMARK)
        rows, ends = sort_by_shard(batch, source.shard_by, self.shards, source.tuple_time)
        start, end = (table[0][0], table[-1][0] + 1) if table else (NO_BUCKET, NO_BUCKET)
        header = FrameHeader(
            FrameKind.DATA,
            stream,
            MANY_SHARDS,
            0,
            start,
            end,
            shard_row_ends=ends,
            bucket_table=table,
            event_time_max_us=newest,
        )
        ref = self._writers[stream].append(header, rows)
        self._writers[stream].sync()
        if bucket is not None:
            frame = Published(
                stream, MANY_SHARDS, bucket, bucket + 1, rows.num_rows, ref, bucket * WIDTH_US, event_time_max_us=newest
            )
        else:
            frame = Published(stream, MANY_SHARDS, start, end, rows.num_rows, ref, event_time_max_us=newest)
        self.commit(frame)

    def promise(self, bucket_end: int) -> None:
        """Log for every input that no more rows come before a bucket."""
        self.commit(*(Advanced(source.name, bucket_end * WIDTH_US) for source in self.topology.sources))

    # Orders

    def perform(self, *works: Work, slot: Slot | None = None) -> list[Result]:
        self._wave += 1
        return (slot or self.slot).perform(Order(self._wave, 0, "node", list(works)))

    def committed(self, shard: int) -> int:
        unit = self.log.ledger.unit(self.stage.name, shard)
        return FIRST_BUCKET if unit is None else unit.bucket_end

    def attach_work(self, shard: int) -> AttachWork:
        self.generation += 1
        ledger = self.log.ledger
        trimmed = [ledger.trimmed_before(read.stream) for read in self.stage.inputs]
        kept_from = max((bucket for bucket in trimmed if bucket is not None), default=FIRST_BUCKET)
        snapshots = [(kept.bucket_end, kept.path) for kept in reversed(ledger.snapshots(self.stage.name, shard))]
        return AttachWork(
            self.stage.name,
            shard,
            self.generation,
            self.committed(shard),
            kept_from,
            snapshots,
            kept_from == FIRST_BUCKET,
        )

    def attach(self, shard: int, slot: Slot | None = None) -> Attached:
        """Attach one unit, which has to succeed."""
        work = self.attach_work(shard)
        (result,) = self.perform(work, slot=slot)
        assert isinstance(result, Attached), result
        self.bucket_memory[shard] = result.bucket_memory
        self.warnings += result.warnings
        return result

    def attach_all(self) -> list[Attached]:
        return [self.attach(shard) for shard in range(self.shards)]

    def work(
        self, bucket_to: int, shards: Sequence[int] | None = None, snapshot: bool = False, ended: bool = False
    ) -> ProcessWork:
        """Return the work of units that are equally far, up to a bucket."""
        chosen = list(range(self.shards)) if shards is None else list(shards)
        (bucket_from,) = {self.bucket_memory[shard] for shard in chosen}
        frames = frames_between(
            [read.stream for read in self.stage.inputs], self.log.ledger.frames, bucket_from, bucket_to
        )
        units = [
            UnitWork(shard, self.generation_of(shard), bucket_from, self.committed(shard), snapshot) for shard in chosen
        ]
        return ProcessWork(self.stage.name, units, bucket_from, bucket_to, frames, ended)

    def generation_of(self, shard: int) -> int:
        held = self.slot.units._held.get((self.stage.name, shard))
        return self.generation if held is None or held.state is None else held.state.identity.generation

    def process(
        self,
        bucket_to: int,
        shards: Sequence[int] | None = None,
        snapshot: bool = False,
        ended: bool = False,
        commit: bool = True,
    ) -> Processed:
        """Run a wave, which has to succeed; without `commit` its receipt is lost."""
        if ended and commit:
            self.commit(Ended(self.stage.name, bucket_to))
        work = self.work(bucket_to, shards, snapshot, ended)
        (result,) = self.perform(work)
        assert isinstance(result, Processed), result
        self.slot.units.snapshots.wait_until_written()
        if commit:
            self.take(work, result)
        return result

    def take(self, work: ProcessWork, result: Processed) -> None:
        """Commit a receipt as the node does."""
        items: list[JournalItem] = []
        for unit, done in zip(work.units, result.units, strict=True):
            before = self.committed(unit.shard)
            self.bucket_memory[unit.shard] = work.bucket_to
            if work.bucket_to <= before:
                continue
            digests = [digest for digest in done.digests if digest[0] >= unit.publish_from]
            items += done.published
            items.append(
                UnitCommitted(
                    self.stage.name, unit.shard, unit.generation, before, work.bucket_to, digests, done.rows_in
                )
            )
            if done.snapshot is not None:
                items.append(SnapshotVerified(self.stage.name, unit.shard, work.bucket_to, done.snapshot))
        if items:
            self.commit(*items)

    def catch_up(self) -> None:
        """Process again, for each unit alone, what the journal says it has processed."""
        for shard in range(self.shards):
            if self.bucket_memory[shard] < self.committed(shard):
                self.process(self.committed(shard), [shard])

    def idle(self, bucket_end: int) -> None:
        """Let all units pass buckets without rows, as the node does now and then."""
        self.commit(
            *(
                UnitCommitted(self.stage.name, shard, self.generation, self.committed(shard), bucket_end)
                for shard in range(self.shards)
            )
        )

    def trim(self, before_bucket: int) -> None:
        self.commit(*(Trimmed(read.stream, before_bucket) for read in self.stage.inputs))

    # Output

    def digests(self) -> dict[tuple[int, int], tuple[int, int]]:
        return self.log.ledger.digests(self.stage.name)

    def rows(self, stream: str | None = None) -> list[dict[str, Any]]:
        """Return the committed rows of a stream, in its order."""
        name = stream or self.stage.name
        frames = self.log.ledger.frames(name, FIRST_BUCKET, 2**62)
        if name == self.stage.name:
            schema = pa.ipc.read_schema(pa.py_buffer(self.stage.schema))
        elif name.endswith(".late"):
            schema = pa.ipc.read_schema(pa.py_buffer(self.stage.inputs[0].schema))
        else:
            schema = pa.schema([(column, pa.string()) for column in plan.REJECTS_COLUMNS])
        batches = rows_in_order(self.store, frames, schema, FIRST_BUCKET, 2**62)
        return [row for batch in batches for row in batch.to_pylist()]

    def frame_rows(self, stream: str) -> list[int]:
        return [frame.rows for frame in self.log.ledger.all_frames(stream)]

    def read(self, frame: Published, schema: pa.Schema) -> tuple[FrameHeader, pa.RecordBatch]:
        return read_frame(self.store, frame.frame, schema)

    def open_log(self) -> StreamLog:
        names = [source.name for source in self.topology.sources]
        names += [f"{stage.name}{side}" for stage in self.topology.stages for side in ("", ".rejects")]
        names += [f"{source.name}{side}" for source in self.topology.sources for side in (".late", ".rejects")]
        return StreamLog.open(self.store, names, "node", shards=self.shards, bucket_width_us=WIDTH_US, options=OPTIONS)

    def _source_writer(self, stream: str) -> SegmentWriter:
        return SegmentWriter(self.store, f"streams/{stream}/source/0-1")
