"""A node's slow errands, on one thread: look for snapshots, print rows, delete what nobody needs.

Guarantees:
    * Nothing is deleted that a unit's replay, a sink, a named consumer or the time to retain needs; what goes is taken
      out of the journal first.
    * An errand that fails is tried again the next time it is asked for. Only rows that cannot be printed stop the
      pipeline: its sink would wait for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa

from holdfast.checkpoint.snapshot_files import is_complete, remove_unneeded
from holdfast.connect.chunk import FileChunk
from holdfast.connect.console import show_rows
from holdfast.connect.foreign import hold
from holdfast.errors import HoldfastError, PipelineFailed
from holdfast.log.stream_log import StreamLog
from holdfast.model import FIRST_BUCKET
from holdfast.node import events
from holdfast.node.options import NodeOptions
from holdfast.node.ranges import rows_in_order
from holdfast.node.trimming import StreamTrimmer
from holdfast.plan import ConsoleSink, Topology
from holdfast.ports import Store

_log = logging.getLogger("holdfast")
Errand = events.LookForSnapshot | events.DisplayRows | events.Trim


def chunk_found(chunk: FileChunk) -> events.ChunkFound:
    """Return a chunk as the decider knows it: a key, a size, and bytes for the slot."""
    return events.ChunkFound(chunk.key, chunk.rows, msgspec.Raw(msgspec.json.encode(chunk)))


class Housekeeping:
    """One thread for errands."""

    def __init__(
        self,
        topology: Topology,
        store: Store,
        log: StreamLog,
        options: NodeOptions,
        put: Callable[[events.Event], None],
        fail: Callable[[HoldfastError], None],
    ) -> None:
        self._topology = topology
        self._store = store
        self._journal = log
        self._put = put
        self._fail = fail
        retain_buckets = options.retain_us // topology.bucket_width_us
        self._trimmer = StreamTrimmer(store, log, retain_buckets, lambda items: put(events.ItemsRead(items)))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-housekeeping")
        self._waiting: set[str] = set()
        """What is asked for again and again: once it waits for its turn, asking more often adds nothing."""

    def submit(self, errand: Errand) -> None:
        name = _repeated(errand)
        if name not in self._waiting:
            self._waiting.update([] if name is None else [name])
            self._pool.submit(self._do, errand)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _do(self, errand: Errand) -> None:
        self._waiting.discard(_repeated(errand) or "")
        try:
            match errand:
                case events.LookForSnapshot():
                    self._look_for_snapshot(errand)
                case events.DisplayRows():
                    self._display(errand)
                case events.Trim(keep_from):
                    self._trim(keep_from)
        except Exception as error:
            if isinstance(errand, events.DisplayRows):
                self._fail(error if isinstance(error, HoldfastError) else _not_displayed(errand, error))
            elif isinstance(error, HoldfastError):
                _log.warning("%s", error)
            else:
                _log.exception("housekeeping failed: %s", type(errand).__name__)

    def _look_for_snapshot(self, wanted: events.LookForSnapshot) -> None:
        failed = "its writer gave up" if self._store.exists(f"{wanted.path}/failed") else None
        if failed is not None or is_complete(self._store, wanted.path):
            self._put(events.SnapshotFound(wanted.stage, wanted.shard, wanted.bucket_end, wanted.path, failed))

    def _display(self, wanted: events.DisplayRows) -> None:
        stage = next(stage for stage in self._topology.stages if stage.name == wanted.stream)
        sink = next(sink for sink in self._topology.sinks if sink.name == wanted.sink)
        schema = pa.ipc.read_schema(pa.py_buffer(stage.schema))
        table = pa.Table.from_batches(self._rows(wanted, schema), schema)
        assert isinstance(sink.target, ConsoleSink), "only a console displays"
        if table.num_rows:
            show_rows(wanted.stream, table, sink.target.rows)
        self._put(events.Displayed(wanted.sink, wanted.stream, wanted.bucket_to, table.num_rows))

    def _rows(self, wanted: events.DisplayRows, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Return the rows to print; where a frame has moved since they were asked for, from where it is now."""
        frames = wanted.frames
        while True:
            try:
                return list(rows_in_order(self._store, frames, schema, wanted.bucket_from, wanted.bucket_to))
            except FileNotFoundError:
                now = self._journal.ledger.frames(wanted.stream, wanted.bucket_from, wanted.bucket_to)
                if now == frames:
                    raise
                frames = now

    def _trim(self, keep_from: dict[str, int]) -> None:
        self._trimmer.trim(keep_from, time.time_ns() // 1000)
        for source in self._topology.sources:
            if source.is_foreign:
                # At the same place as before, if nothing may go: for longer.
                hold(source, self._topology, keep_from.get(source.name, FIRST_BUCKET))
        self._trim_snapshots()

    def _trim_snapshots(self) -> None:
        for stage in self._topology.stages:
            for shard in range(self._topology.shards):
                kept = self._journal.ledger.snapshots(stage.name, shard)
                if kept:
                    newest = max(snapshot.bucket_end for snapshot in kept)
                    remove_unneeded(self._store, stage.name, shard, [snapshot.path for snapshot in kept], newest)


def _repeated(errand: Errand) -> str | None:
    """Return the name of an errand that the node repeats until it is answered; None for one that it asks for once."""
    match errand:
        case events.LookForSnapshot():
            return errand.path
        case events.Trim():
            return "trim"
        case _:
            return None


def _not_displayed(wanted: events.DisplayRows, error: Exception) -> PipelineFailed:
    return PipelineFailed(
        f"the rows of {wanted.stream!r} in buckets [{wanted.bucket_from}, {wanted.bucket_to}) could not be printed: "
        f"{error!r}. Nothing committed is lost; they are printed when the pipeline is started again"
    )
