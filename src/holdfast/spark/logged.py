"""What is logged of a stream, as an ordinary batch DataFrame: the input of the oracle, `Stream.toSpark()`.

Guarantees:
    * It holds every row that was committed when it was made, once, and no other; rows that were trimmed are gone, which
      is said.
    * Spark tasks read the frames, each frame whole; every frame is verified against its checksum.
    * Partitions follow each other in the order of commits, and only a long log has several: Spark folds the rows of a
      short one in the order in which a stage does, so that even sums of reals are the same to the last bit.
    * It works while the stream is written, and starts nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from holdfast.connect.catalog import locate
from holdfast.log.segment import read_frame
from holdfast.log.store import open_store
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FrameRef, Published
from holdfast.spark.types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_PARTITION: Final = 1 << 20
_log = logging.getLogger("holdfast")


def logged_input(spark: SparkSession, store_url: str, stream: str) -> DataFrame:
    """Return the committed rows of `pipeline/stream`, with the stream's schema."""
    found = locate(store_url, stream)
    with closing(StreamReader(found.store, found.stream)) as reader:
        reader.poll()
        frames = reader.ledger.frames(found.stream, FIRST_BUCKET, END_OF_TIME) if reader.started else []
        first = reader.ledger.trimmed_before(found.stream)
    if first is not None:
        _log.warning("stream %r is kept from bucket %d on: toSpark() does not see the rows before", stream, first)
    parts = [msgspec.msgpack.encode([frame.frame for frame in part]) for part in _parts(frames)]
    earlier = [schema.serialize().to_pybytes() for schema in found.earlier]
    read = _FrameRows(found.store.url, found.schema.serialize().to_pybytes(), earlier, parts)
    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, struct_type(found.schema))


class _FrameRows:
    """Turns the numbers of parts into the rows of their frames, in a task."""

    def __init__(self, store_url: str, schema: bytes, earlier: Sequence[bytes], parts: Sequence[bytes]) -> None:
        self._store_url = store_url
        self._schema = schema
        self._earlier = earlier
        self._parts = parts

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self._store_url)
        schema = pa.ipc.read_schema(pa.py_buffer(self._schema))
        earlier = [pa.ipc.read_schema(pa.py_buffer(each)) for each in self._earlier]
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for ref in msgspec.msgpack.decode(self._parts[number], type=list[FrameRef]):
                    yield read_frame(store, ref, schema, others=earlier)[1]


def _parts(frames: Sequence[Published]) -> list[list[Published]]:
    """Return the frames in runs of about `ROWS_PER_PARTITION` rows."""
    parts: list[list[Published]] = []
    rows = ROWS_PER_PARTITION
    for frame in frames:
        if rows >= ROWS_PER_PARTITION:
            parts.append([])
            rows = 0
        parts[-1].append(frame)
        rows += frame.rows
    return parts
