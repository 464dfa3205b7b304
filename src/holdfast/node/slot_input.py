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

import numpy as np
import pyarrow as pa

from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame, shard_rows
from holdfast.model import MANY_SHARDS
from holdfast.node.messages import FrameOfInput
from holdfast.operators.bucket_table import output_times
from holdfast.operators.columns import Words
from holdfast.operators.union import InputRows, read_schema
from holdfast.plan import Source, Stage
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

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verified: set[tuple[str, int]] = set()

    def read(self, stage: Stage, frames: Iterable[FrameOfInput]) -> list[ReadFrame]:
        schemas = [read_schema(read.schema) for read in stage.inputs]
        found = []
        for frame in frames:
            place = (frame.frame.segment, frame.frame.offset)
            header, batch = read_frame(self._store, frame.frame, schemas[frame.input], place not in self._verified)
            self._verified.add(place)
            found.append(ReadFrame(frame, header, batch))
        if len(self._verified) > VERIFIED_MAX:
            self._verified.clear()
        return found


def input_rows(
    stage: Stage, sources: Mapping[str, Source], shard: int, frames: Sequence[ReadFrame], bucket_width_us: int
) -> list[list[InputRows]]:
    """Return each input's frames with the rows that the unit of `shard` has to see."""
    runs: list[list[InputRows]] = [[] for _ in stage.inputs]
    for read in frames:
        source = sources.get(stage.inputs[read.frame.input].stream)
        own = shard if stage.sharded else None
        if source is None:
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
