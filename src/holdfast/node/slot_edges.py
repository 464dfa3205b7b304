"""A slot's work at the edges: a piece of a file into a stream, buckets of a stream out to a sink.

Guarantees:
    * A chunk's rows are in one frame, in shard order, with the offsets in its header: a unit reads its own rows.
    * A sink's file has the name that the journal gave it, whoever writes it and how often.
"""

from __future__ import annotations

import time

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connect.chunk import FileChunk
from holdfast.connect.chunk_reader import ReadResult, read_chunk
from holdfast.connect.parquet import range_name, write_range
from holdfast.connect.source_frame import source_frame
from holdfast.log.frame import FrameHeader, encode
from holdfast.model import MANY_SHARDS, NO_BUCKET, FrameKind, Published, bucket_of
from holdfast.node.messages import Delivered, DeliverWork, Ingested, IngestWork
from holdfast.node.ranges import rows_in_order
from holdfast.node.slot_context import SlotContext
from holdfast.operators.bucket_table import microseconds
from holdfast.operators.phases import Phases
from holdfast.plan import REJECTS, ParquetSink, Source


def ingest(context: SlotContext, work: IngestWork) -> Ingested:
    """Read a chunk, and append its rows to the source's stream; they are part of it when their entry is committed."""
    started = time.perf_counter()
    phases = Phases()
    source = context.sources[work.source]
    chunk = msgspec.json.decode(work.chunk, type=FileChunk)
    result = read_chunk(chunk, source, context.topology.session_time_zone)
    phases.end("read")
    batch = _one_batch(result, source)
    published: list[Published] = []
    times: tuple[int | None, int | None] = (None, None)
    if batch.num_rows:
        frame, times = append_rows(context, source, batch, phases)
        published.append(frame)
    if result.rejects.num_rows:
        published.append(_append_rejects(context, source, result.rejects, times))
    seconds = phases.take() | {"total": time.perf_counter() - started}
    return Ingested(
        source.name,
        work.number,
        published,
        chunk.path,
        chunk.size_bytes,
        chunk.modified_ns,
        chunk.start,
        chunk.end,
        chunk.last,
        *times,
        result.rejects.num_rows,
        seconds,
    )


def _one_batch(result: ReadResult, source: Source) -> pa.RecordBatch:
    if len(result.batches) == 1:
        return result.batches[0]
    schema = pa.ipc.read_schema(pa.py_buffer(source.schema))
    table = pa.Table.from_batches(result.batches, schema).combine_chunks()
    batches = table.to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema)


def append_rows(
    context: SlotContext, source: Source, batch: pa.RecordBatch, phases: Phases
) -> tuple[Published, tuple[int | None, int | None]]:
    """Append rows to the source's stream as one frame; return it, and its lowest and highest tuple_time."""
    times = _time_range(batch, source)
    header, sharded = source_frame(source, context.topology, batch)
    phases.end("shard")
    frame = encode(header, sharded)
    phases.end("encode")
    ref = context.writer(source.name).append_encoded([frame])[0]
    phases.end("write")
    published = Published(
        source.name,
        MANY_SHARDS,
        header.bucket_start,
        header.bucket_end,
        batch.num_rows,
        ref,
        event_time_max_us=header.event_time_max_us,
    )
    return published, times


def _append_rejects(
    context: SlotContext, source: Source, rejects: pa.RecordBatch, times: tuple[int | None, int | None]
) -> Published:
    """Rejected rows have no tuple_time of their own: they go with the first row of their chunk."""
    stream = source.name + REJECTS
    bucket = NO_BUCKET if times[0] is None else bucket_of(times[0], context.topology.bucket_width_us)
    end = NO_BUCKET if bucket == NO_BUCKET else bucket + 1
    header = FrameHeader(FrameKind.DATA, stream, 0, 0, bucket, end)
    ref = context.writer(stream).append(header, rejects)
    return Published(stream, 0, bucket, end, rejects.num_rows, ref)


def _time_range(batch: pa.RecordBatch, source: Source) -> tuple[int | None, int | None]:
    if source.tuple_time is None:
        return None, None
    found = pc.min_max(microseconds(batch.column(source.tuple_time))).as_py()
    return found["min"], found["max"]


def deliver(context: SlotContext, work: DeliverWork) -> Delivered:
    """Write a range of buckets to a sink, in the order (bucket, shard, position)."""
    sink = context.sinks[work.sink]
    assert isinstance(sink.target, ParquetSink), "other sinks are fed by the node itself"
    schema = pa.ipc.read_schema(pa.py_buffer(context.stages[work.stream].schema))
    name = range_name(work.bucket_from, work.bucket_to)
    batches = rows_in_order(context.store, work.frames, schema, work.bucket_from, work.bucket_to)
    rows = write_range(sink.target.path, name, schema, batches)
    return Delivered(work.sink, work.stream, work.bucket_to, rows)
