"""What a unit reads of the frames of a wave: its own rows, in commit order, with what moves the watermark.

Invariants:
    * Every unit is shown every frame, if only without rows: its event times move the watermark of all units alike.
    * Rows of a column-timed slice are sorted by tuple_time, as the union expects: a frame of many shards is sorted
      within each of them only, so a unit that reads all shards gets it shard by shard.
    * A row of a stage's output has the start of its bucket as its tuple_time, whichever wave has made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.connect.catalog import locate
from holdfast.errors import SchemaMismatch
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame, shard_rows
from holdfast.log.store import open_store
from holdfast.model import MANY_SHARDS, NO_WATERMARK
from holdfast.node.messages import FrameOfInput
from holdfast.operators.bucket_table import bucket_table, highest_event_time, output_table, output_times
from holdfast.operators.columns import Words
from holdfast.operators.union import InputRows, read_schema
from holdfast.plan import Source, Stage, StageInput, StreamSource
from holdfast.ports import Store

VERIFIED_MAX = 100_000
_NO_TIMES: Final = np.zeros(0, np.int64)


class ReadFrame(NamedTuple):
    """A frame of an input, read."""

    frame: FrameOfInput
    header: FrameHeader
    batch: pa.RecordBatch


class FrameReader:
    """Reads the frames of waves. A frame's bytes are verified the first time that this process meets them."""

    def __init__(self, store: Store, sources: Mapping[str, Source], bucket_width_us: int) -> None:
        self._store = store
        self._sources = sources
        self._width_us = bucket_width_us
        self._foreign = {
            name: open_store(source.origin.url)
            for name, source in sources.items()
            if isinstance(source.origin, StreamSource)
        }
        self._known = {
            name: [read_schema(each) for each in (source.schema, *source.earlier)] for name, source in sources.items()
        }
        self._verified: set[tuple[str, str, int]] = set()

    def read(self, stage: Stage, frames: Iterable[FrameOfInput]) -> list[ReadFrame]:
        schemas = [read_schema(read.schema) for read in stage.inputs]
        found = []
        for frame in frames:
            read = stage.inputs[frame.input]
            place = (read.stream, frame.frame.segment, frame.frame.offset)
            header, batch = self._read(read.stream, frame, schemas[frame.input], place not in self._verified)
            self._verified.add(place)
            found.append(self._with_event_times(ReadFrame(frame, header, batch), read))
        if len(self._verified) > VERIFIED_MAX:
            self._verified.clear()
        return found

    def _read(
        self, stream: str, frame: FrameOfInput, schema: pa.Schema, verify: bool
    ) -> tuple[FrameHeader, pa.RecordBatch]:
        store = self._foreign.get(stream, self._store)
        try:
            return read_frame(store, frame.frame, schema, verify, self._known.get(stream, ()))
        except SchemaMismatch:
            source = self._sources.get(stream)
            if source is None or not isinstance(source.origin, StreamSource):
                raise
        # The other pipeline's stream has got columns since; this one goes on with those that it was made for.
        located = locate(source.origin.url, source.origin.stream)
        self._known[stream] = [located.schema, *located.earlier]
        return read_frame(store, frame.frame, schema, verify, self._known[stream])

    def _with_event_times(self, read: ReadFrame, of: StageInput) -> ReadFrame:
        """Return a frame with its highest event times, also where no stage asked for them when it was written."""
        header = read.header
        known = [read.frame.event_time_max_us, *(highest for _, highest in header.bucket_table)]
        if of.event_time is None or not header.rows or max(known) != NO_WATERMARK or of.stream in self._foreign:
            return read
        if read.frame.stamp_us is not None:
            highest = highest_event_time(read.batch, of.event_time)
            return read._replace(frame=msgspec.structs.replace(read.frame, event_time_max_us=highest))
        if header.bucket_row_ends:
            buckets = [bucket for bucket, _ in header.bucket_table]
            table = output_table(read.batch, of.event_time, buckets, header.bucket_row_ends)
        else:
            table = bucket_table(read.batch, self._sources[of.stream].tuple_time, of.event_time, self._width_us)
        return read._replace(header=msgspec.structs.replace(header, bucket_table=table))


def input_rows(
    stage: Stage,
    sources: Mapping[str, Source],
    shard: int,
    frames: Sequence[ReadFrame],
    bucket_width_us: int,
    shards: int,
) -> list[list[InputRows]]:
    """Return each input's frames with the rows that the unit of `shard`, one of `shards`, has to see."""
    runs: list[list[InputRows]] = [[] for _ in stage.inputs]
    for read in frames:
        taken = stage.inputs[read.frame.input]
        source = sources.get(taken.stream)
        own = shard if stage.sharded else None
        if source is not None and isinstance(source.origin, StreamSource):
            timed = _timed(read, taken.event_time, source, bucket_width_us)
            part = None if own is None else (own, shards)
            runs[read.frame.input] += _foreign_rows(timed, part, source, bucket_width_us)
        elif source is None:
            runs[read.frame.input].append(_rows_of_output(read, own, bucket_width_us))
        else:
            runs[read.frame.input] += _rows_of(read, own, source.tuple_time)
    return runs


def _rows_of_output(read: ReadFrame, shard: int | None, bucket_width_us: int) -> InputRows:
    """Return a frame of a stage's output, which is of one shard, with its rows or without."""
    header = read.header
    if shard is not None and shard != header.shard:
        return _slice(read, 0, 0, times=_NO_TIMES)
    times = output_times(header.bucket_table, header.bucket_row_ends, bucket_width_us)
    return _slice(read, 0, read.batch.num_rows, times=times)


def _timed(read: ReadFrame, event_time: str | None, source: Source, bucket_width_us: int) -> ReadFrame:
    """Return a frame of another pipeline, which knows nothing of our event time, with what moves our watermark."""
    if event_time is None or read.batch.num_rows == 0:
        return read
    if read.frame.stamp_us is not None:
        highest = highest_event_time(read.batch, event_time)
        frame = msgspec.structs.replace(read.frame, event_time_max_us=highest)
        return read._replace(frame=frame)
    if source.tuple_time is not None:
        table = bucket_table(read.batch, source.tuple_time, event_time, bucket_width_us)
    else:
        buckets = [bucket for bucket, _ in read.header.bucket_table]
        table = output_table(read.batch, event_time, buckets, read.header.bucket_row_ends)
    return read._replace(header=msgspec.structs.replace(read.header, bucket_table=table))


def _foreign_rows(
    read: ReadFrame, part: tuple[int, int] | None, source: Source, bucket_width_us: int
) -> list[InputRows]:
    """Return all rows of a frame of another pipeline, or those of every so many-th of its shards.

    How many shards it has is its own affair; what has no keys takes each of them somewhere.
    """
    header = read.header
    if isinstance(source.origin, StreamSource) and source.origin.kind == "stage":
        is_mine = part is None or header.shard % part[1] == part[0]
        return [_rows_of_output(read, None if is_mine else header.shard + 1, bucket_width_us)]
    if part is None:
        return _rows_of(read, None, source.tuple_time)
    own, shards = part
    ends = header.shard_row_ends or [header.rows]
    table = read.header.bucket_table
    rows: list[InputRows] = []
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if number % shards == own:
            rows.append(_slice(read, start, end, source.tuple_time, number, () if rows else table))
    return rows or [_slice(read, 0, 0, source.tuple_time)]


def _rows_of(read: ReadFrame, shard: int | None, tuple_time: str | None) -> list[InputRows]:
    """Return a frame's rows of one shard, or of all of them in slices that are in the order of their tuple_times."""
    header = read.header
    if shard is not None:
        return [_slice(read, *_rows_of_shard(header, shard), tuple_time)]
    if read.frame.stamp_us is not None or len(header.shard_row_ends) < 2:
        return [_slice(read, 0, read.batch.num_rows, tuple_time)]
    ends = header.shard_row_ends
    parts = [
        (number, start, end)
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > start
    ]
    # Once is enough for what moves the watermark.
    return [
        _slice(read, start, end, tuple_time, number, read.header.bucket_table if place == 0 else ())
        for place, (number, start, end) in enumerate(parts)
    ]


def _rows_of_shard(header: FrameHeader, shard: int) -> tuple[int, int]:
    if header.shard == MANY_SHARDS and not header.shard_row_ends:
        return 0, header.rows
    return shard_rows(header, shard, shard + 1)


def _slice(
    read: ReadFrame,
    start: int,
    end: int,
    tuple_time: str | None = None,
    shard: int | None = None,
    bucket_table: Sequence[tuple[int, int]] | None = None,
    times: Words | None = None,
) -> InputRows:
    frame = read.frame
    whole = start == 0 and end == read.batch.num_rows
    return InputRows(
        read.batch if whole else read.batch.slice(start, end - start),
        frame.stamp_us,
        frame.event_time_max_us,
        read.header.bucket_table if bucket_table is None else bucket_table,
        shard if shard is not None else max(frame.shard, 0),
        None if frame.stamp_us is not None else tuple_time,
        times,
    )
