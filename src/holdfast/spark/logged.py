"""What is logged of a stream, as an ordinary batch DataFrame: the input of the oracle, `Stream.toSpark()`.

Guarantees:
    * It holds every row that was committed when it was made, once, and no other; rows that were trimmed are gone.
    * Spark tasks read the frames, each frame whole; every frame is verified against its checksum.
    * It works while the stream is written, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.connect.catalog import locate
from holdfast.log.segment import read_frame
from holdfast.log.store import open_store
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FrameRef, Published
from holdfast.spark.types import struct_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACES = pa.schema(
    [
        ("number", pa.int64()),
        ("segment", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("crc", pa.int64()),
    ]
)


def logged_input(spark: SparkSession, store_url: str, stream: str) -> DataFrame:
    """Return the committed rows of `pipeline/stream`, in the order of their commits within each partition."""
    found = locate(store_url, stream)
    with closing(StreamReader(found.store, found.stream)) as reader:
        reader.poll()
        frames = reader.ledger.frames(found.stream, FIRST_BUCKET, END_OF_TIME) if reader.started else []
    places = spark.createDataFrame(_places(frames))
    if frames:
        count = min(len(frames), 4 * spark.sparkContext.defaultParallelism)
        places = places.repartitionByRange(count, "number").sortWithinPartitions("number")
    read = _FrameRows(found.store.url, found.schema.serialize().to_pybytes())
    return places.mapInArrow(read, struct_type(found.schema))


class _FrameRows:
    """Turns places of frames into their rows, in a task."""

    def __init__(self, store_url: str, schema: bytes) -> None:
        self._store_url = store_url
        self._schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self._store_url)
        schema = pa.ipc.read_schema(pa.py_buffer(self._schema))
        for batch in batches:
            for place in batch.to_pylist():
                ref = FrameRef(place["segment"], place["offset"], place["length"], place["crc"])
                yield read_frame(store, ref, schema)[1]


def _places(frames: Iterable[Published]) -> pa.Table:
    refs = [frame.frame for frame in frames]
    columns = [
        pa.array(range(len(refs)), pa.int64()),
        pa.array([ref.segment for ref in refs], pa.string()),
        pa.array([ref.offset for ref in refs], pa.int64()),
        pa.array([ref.length for ref in refs], pa.int64()),
        pa.array([ref.crc for ref in refs], pa.int64()),
    ]
    return pa.Table.from_arrays(columns, schema=_PLACES)
