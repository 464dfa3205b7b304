"""What a unit reads of the frames of a wave: its own rows, in commit order, with what moves the watermark.

Invariants:
    * The event times of every frame move the watermark of all units alike, whoever reads its rows.
    * Rows of a column-timed slice are sorted by tuple_time, as the union expects: a frame of many shards is sorted
      within each of them only, so a unit that reads all shards gets it shard by shard.
    * A row of a stage's output has the start of its bucket as its tuple_time, whichever wave has made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.connect.catalog import locate
from holdfast.errors import SchemaMismatch
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame, shard_rows
from holdfast.log.store import open_store
from holdfast.model import MANY_SHARDS, NO_WATERMARK, bucket_of
from holdfast.node.messages import FrameOfInput
from holdfast.operators.bucket_table import bucket_table, highest_event_time, output_table, output_times
from holdfast.operators.columns import Words
from holdfast.operators.destinations import rows_for
from holdfast.operators.sharding import take_rows
from holdfast.operators.union import InputRows, Seen, read_schema
from holdfast.plan import Source, Stage, StageInput, StreamSource
from holdfast.ports import Store

VERIFIED_MAX: Final = 8192
"""So many frames are known as sound; those that were met longest ago are verified again."""


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
        self._verified: dict[tuple[str, str, int], None] = {}

    def read(self, stage: Stage, frames: Iterable[FrameOfInput]) -> list[ReadFrame]:
        schemas = [read_schema(read.schema) for read in stage.inputs]
        found = []
        for frame in frames:
            read = stage.inputs[frame.input]
            place = (read.stream, frame.frame.segment, frame.frame.offset)
            header, batch = self._read(read.stream, frame, schemas[frame.input], place not in self._verified)
            self._verified[place] = None
            found.append(self._with_event_times(ReadFrame(frame, header, batch), read))
        for place in list(islice(self._verified, max(0, len(self._verified) - VERIFIED_MAX))):
            del self._verified[place]
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
    shards: Sequence[int],
    frames: Sequence[ReadFrame],
    bucket_width_us: int,
    shards_in_all: int,
) -> list[list[InputRows]]:
    """Return each input's frames with the rows that units of these shards may have to see; frames without are left out.

    One shard, where the stage is sharded as its inputs are; else all units of a wave, and what they pick from.
    """
    runs: list[list[InputRows]] = [[] for _ in stage.inputs]
    for read in frames:
        inputs = stage.inputs[read.frame.input]
        source = sources.get(inputs.stream)
        found = runs[read.frame.input]
        own = shards[0] if stage.sharded else None
        if source is not None and isinstance(source.origin, StreamSource):
            part = None if own is None else (own, shards_in_all)
            found += _foreign_rows(read, part, source, bucket_width_us)
        elif source is not None:
            found += _rows_of(read, own, source.tuple_time)
        elif own is None and inputs.keyed_by and read.header.destination_by == inputs.keyed_by:
            found += _rows_sent_to(read, shards, bucket_width_us)
        elif own is None or read.header.shard == own:
            found.append(_rows_of_output(read, bucket_width_us))
    return runs


def event_times(stage: Stage, frames: Sequence[ReadFrame], bucket_width_us: int) -> Seen:
    """Return the event times of all frames, which move the watermark of all units alike."""
    found: list[tuple[int, int, int]] = []
    for read in frames:
        frame = read.frame
        if stage.inputs[frame.input].event_time is None:
            continue
        table = read.header.bucket_table
        if frame.stamp_us is not None:
            table = [(bucket_of(frame.stamp_us, bucket_width_us), frame.event_time_max_us)]
        found += [(bucket, frame.input, highest) for bucket, highest in table if highest != NO_WATERMARK]
    return sorted(found)


def _rows_of_output(read: ReadFrame, bucket_width_us: int) -> InputRows:
    """Return a frame of a stage's output, which is of one shard."""
    times = output_times(read.header.bucket_table, read.header.bucket_row_ends, bucket_width_us)
    return _slice(read, 0, read.batch.num_rows, times=times)


def with_event_times(
    stage: Stage, sources: Mapping[str, Source], frames: Sequence[ReadFrame], bucket_width_us: int
) -> list[ReadFrame]:
    """Return the frames, those of another pipeline with the event times that this one's stage asks for."""
    found = []
    for read in frames:
        inputs = stage.inputs[read.frame.input]
        source = sources.get(inputs.stream)
        is_foreign = source is not None and isinstance(source.origin, StreamSource)
        found.append(_timed(read, inputs.event_time, source, bucket_width_us) if is_foreign and source else read)
    return found


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
        return [_rows_of_output(read, bucket_width_us)] if is_mine else []
    if part is None:
        return _rows_of(read, None, source.tuple_time)
    own, shards = part
    ends = header.shard_row_ends or [header.rows]
    return [
        _slice(read, start, end, source.tuple_time, number)
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if number % shards == own
    ]


def _rows_sent_to(read: ReadFrame, shards: Sequence[int], bucket_width_us: int) -> list[InputRows]:
    """Return the rows of a frame that are in the order of the shards they go to: those for these shards."""
    header = read.header
    rows, places, counts = rows_for(header.destination_ends, len(header.bucket_table), shards)
    if len(rows) == 0:
        return []
    if len(rows) == header.rows:
        return [_rows_of_output(read, bucket_width_us)]
    times = output_times(header.bucket_table, np.cumsum(counts), bucket_width_us)
    start, end = int(rows[0]), int(rows[-1]) + 1
    # One bucket's rows for shards that lie side by side are a piece of the frame as it is in the segment.
    batch = read.batch.slice(start, end - start) if end - start == len(rows) else take_rows(read.batch, rows)
    return [InputRows(batch, None, shard=read.frame.shard, times=times, places=places)]


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
    return [_slice(read, start, end, tuple_time, number) for number, start, end in parts]


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
    times: Words | None = None,
) -> InputRows:
    frame = read.frame
    whole = start == 0 and end == read.batch.num_rows
    return InputRows(
        read.batch if whole else read.batch.slice(start, end - start),
        frame.stamp_us,
        frame.event_time_max_us,
        read.header.bucket_table,
        shard if shard is not None else max(frame.shard, 0),
        None if frame.stamp_us is not None else tuple_time,
        times,
    )
