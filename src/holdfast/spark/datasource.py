"""`spark.read` and `spark.readStream` with `.format("holdfast")`: any stream of a store, from any Spark application.

    spark.read.format("holdfast").option("view", "changes").load("retail-store/averages")

Guarantees:
    * Only complete buckets are read, each once; an offset is a bucket, so a range of offsets always has the same rows.
    * One partition for each shard that may have rows; rows come in the stream's order within it.
    * Nothing is started or changed: the stream may be in use by a running node. With `consumer` the query's place is
      stored, as a `Consumer` stores it, and retention keeps what the query has not committed.
    * Rows that retention has deleted are never skipped silently: `ConsumerExpired` names the first bucket there is.

Options, beside `view`: `columns` (names, with commas between; only these are read), `startingBucket` ("earliest",
"latest" or a bucket), `endingBucket` (batch only), `maxRowsPerTrigger`, `consumer` and `lease` (streaming only).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.config import absolute, duration_us
from holdfast.connect.catalog import locate, schema_of
from holdfast.connect.following import Following, range_end
from holdfast.connect.lease import LEASE_US, Lease, write_lease
from holdfast.connect.reading import read_range
from holdfast.connect.views import View, check_view, view_schema, viewed
from holdfast.errors import HoldfastError, Misconfigured, UnsupportedQuery
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame, shard_rows
from holdfast.log.store import open_store, validate_name
from holdfast.model import FIRST_BUCKET, MANY_SHARDS, Published
from holdfast.plan import Source
from holdfast.spark.types import struct_type

_OPTIONS: Final = frozenset(
    {"path", "view", "columns", "startingbucket", "endingbucket", "maxrowspertrigger", "consumer", "lease"}
)
_FRAMES: Final = msgspec.msgpack.Decoder(list[Published])
_BUCKET: Final = "bucket"
ROWS_PER_BATCH: Final = 1 << 16
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Chosen(msgspec.Struct, frozen=True):
    """The options of one query, checked."""

    store: str
    stream: str
    view: View = "stable"
    columns: list[str] | None = None
    start: int | None = None
    """None: the newest bucket; `FIRST_BUCKET`: the oldest that is kept."""
    end: int | None = None
    rows_max: int | None = None
    consumer: str | None = None
    lease_us: int = LEASE_US


def _plainly(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let Spark show our errors without the way to them: the sentence is all that they say.

    Spark asks its Python process for the text of an error and puts it into one of its own. The process, which ends with
    the error, looks at this variable then.
    """

    @wraps(function)
    def called(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        try:
            return function(*arguments, **options)
        except HoldfastError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return called


class HoldfastSource(DataSource):
    """The data source `holdfast`."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    @_plainly
    def schema(self) -> StructType:
        chosen = chosen_from(self.options)
        return struct_type(_result_schema(chosen, locate(chosen.store, chosen.stream).schema))

    @_plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(chosen_from(self.options))

    @_plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return BucketReader(chosen_from(self.options))

    @_plainly
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise _not_written()

    @_plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        raise _not_written()


class ShardPartition(InputPartition):
    """The rows of one shard in a range of buckets. `frames` is MessagePack."""

    def __init__(self, shard: int, bucket_from: int, bucket_to: int, frames: bytes) -> None:
        super().__init__(shard)
        self.shard = shard
        self.bucket_from = bucket_from
        self.bucket_to = bucket_to
        self.frames = frames


class _Ranges:
    """What both kinds of reader do: plan a range of buckets in the driver, read a part of it in a task."""

    def __init__(self, chosen: Chosen) -> None:
        self.chosen = chosen
        self.schema = locate(chosen.store, chosen.stream).schema.serialize().to_pybytes()
        """The stream's columns when the query was planned: it keeps them, though the stream may get more."""
        self._following: Following | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"chosen": self.chosen, "schema": self.schema, "_following": None}

    @_plainly
    def following(self) -> Following:
        """Return the stream as of now."""
        if self._following is None:
            self._following = Following(locate(self.chosen.store, self.chosen.stream))
        self._following.poll()
        return self._following

    def first(self) -> int:
        """Return the bucket that the query begins with."""
        stream = self.following()
        if self.chosen.start is None:
            return max(stream.complete_to, stream.kept_from)
        return stream.kept_from if self.chosen.start == FIRST_BUCKET else self.chosen.start

    @_plainly
    def plan(self, bucket_from: int, bucket_to: int) -> list[ShardPartition]:
        """Return a partition for each shard with frames in the range."""
        stream = self.following()
        stream.check_kept(bucket_from, "a Spark query")
        if bucket_to <= bucket_from:
            return []
        frames = stream.frames(bucket_from, bucket_to)
        return [
            ShardPartition(shard, bucket_from, bucket_to, msgspec.msgpack.encode(of_shard))
            for shard, of_shard in _by_shard(stream, frames).items()
        ]

    @_plainly
    def read_part(self, partition: ShardPartition) -> list[pa.RecordBatch]:
        """Return the rows of a partition, in the task."""
        found = locate(self.chosen.store, self.chosen.stream)
        store = open_store(found.store.url)
        declared = found.declared
        shard = partition.shard
        schema = schema_of(self.schema)
        others = [found.schema, *found.earlier]

        def read(frame: Published) -> tuple[FrameHeader, pa.RecordBatch]:
            header, batch = read_frame(store, frame.frame, schema, others=others)
            if not header.shard_row_ends:
                return header, batch
            row_from, row_to = shard_rows(header, shard, shard + 1)
            return msgspec.structs.replace(header, shard_row_ends=[]), batch.slice(row_from, row_to - row_from)

        frames = [msgspec.structs.replace(frame, shard=shard) for frame in _FRAMES.decode(partition.frames)]
        tuple_time = declared.tuple_time if isinstance(declared, Source) else None
        width_us = found.topology.bucket_width_us
        rows = read_range(frames, read, schema, partition.bucket_from, partition.bucket_to, width_us, tuple_time)
        table = viewed(rows, schema, self.chosen.view)
        if self.chosen.columns is not None:
            table = table.select(self.chosen.columns)
        batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=ROWS_PER_BATCH)
        return batches


class BatchReader(_Ranges, DataSourceReader):
    """`spark.read`: the complete buckets of this moment."""

    def partitions(self) -> Sequence[InputPartition]:
        end = self.following().complete_to
        return self.plan(self.first(), end if self.chosen.end is None else min(end, self.chosen.end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(self.read_part(cast("ShardPartition", partition)))


class BucketReader(_Ranges, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: offsets are buckets."""

    def __init__(self, chosen: Chosen) -> None:
        super().__init__(chosen)
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_target": self._target}

    def initialOffset(self) -> dict[str, int]:
        begin = self.first()
        self._store_place(begin)
        return {_BUCKET: begin}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        stream = self.following()
        begin = start[_BUCKET]
        end = stream.complete_to if self._target is None else min(stream.complete_to, self._target)
        if end <= begin:
            return {_BUCKET: begin}
        if isinstance(limit, ReadMaxRows):
            end = range_end(stream.frames(begin, end), end, limit.max_rows)
        return {_BUCKET: end}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.chosen.rows_max is None else ReadMaxRows(self.chosen.rows_max)

    def reportLatestOffset(self) -> dict[str, int]:
        return {_BUCKET: self.following().complete_to}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.following().complete_to

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self.plan(start[_BUCKET], end[_BUCKET])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(self.read_part(cast("ShardPartition", partition)))

    def commit(self, end: dict[str, int]) -> None:
        self._store_place(end[_BUCKET])

    def stop(self) -> None:
        if self._following is not None:
            self._following.close()
            self._following = None

    def _store_place(self, bucket: int) -> None:
        if self.chosen.consumer is None:
            return
        located = self.following().located
        now_us = time.time_ns() // 1000
        lease = Lease(
            located.stream, self.chosen.consumer, bucket, now_us, now_us + self.chosen.lease_us, self.chosen.view
        )
        write_lease(located.store, lease)


def chosen_from(options: Mapping[str, str]) -> Chosen:
    """Return the options, checked; the error names what is wrong and what can be said instead."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(given) - _OPTIONS)
    if unknown:
        raise Misconfigured(
            f"the data source holdfast has no option {unknown[0]!r}; it has {', '.join(sorted(_OPTIONS))}"
        )
    store, _, stream = given.get("path", "").rstrip("/").rpartition("/")
    if not store or not stream:
        raise Misconfigured("say which stream to load: .load('STORE/STREAM') or .load('STORE/PIPELINE/STREAM')")
    view = given.get("view", "stable")
    check_view(view)
    columns = given.get("columns")
    consumer = given.get("consumer")
    return Chosen(
        absolute(store, "the store"),
        stream,
        cast("View", view),
        None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        _start(given.get("startingbucket", "earliest")),
        None if "endingbucket" not in given else _whole(given["endingbucket"], "endingBucket"),
        None if "maxrowspertrigger" not in given else _rows_max(given["maxrowspertrigger"]),
        None if consumer is None else validate_name(consumer),
        duration_us(given["lease"], "lease") if "lease" in given else LEASE_US,
    )


def _start(text: str) -> int | None:
    if text in ("earliest", "latest"):
        return FIRST_BUCKET if text == "earliest" else None
    return _whole(text, "startingBucket")


def _rows_max(text: str) -> int:
    found = _whole(text, "maxRowsPerTrigger")
    if found < 1:
        raise Misconfigured(f"maxRowsPerTrigger is {text!r} and must be at least 1")
    return found


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        also = " 'earliest', 'latest' or" if option == "startingBucket" else ""
        raise Misconfigured(f"{option} is {text!r}; expected{also} a whole number") from None


def _result_schema(chosen: Chosen, schema: pa.Schema) -> pa.Schema:
    whole = view_schema(schema, chosen.view)
    if chosen.columns is None:
        return whole
    missing = [name for name in chosen.columns if name not in whole.names]
    if missing or not chosen.columns:
        raise Misconfigured(
            f"columns asks for {', '.join(map(repr, missing)) or 'nothing'}, and the view {chosen.view!r} of "
            f"{chosen.stream!r} has {', '.join(whole.names)}"
        )
    return pa.schema([whole.field(name) for name in chosen.columns])


def _by_shard(stream: Following, frames: Sequence[Published]) -> dict[int, list[Published]]:
    """Return the frames that each shard has to read, in the order of their commits."""
    declared = stream.located.declared
    spread = range(stream.located.topology.shards) if isinstance(declared, Source) and declared.shard_by else range(1)
    found: dict[int, list[Published]] = {}
    for frame in frames:
        for shard in spread if frame.shard == MANY_SHARDS else (frame.shard,):
            found.setdefault(shard, []).append(frame)
    return dict(sorted(found.items()))


def _not_written() -> UnsupportedQuery:
    return UnsupportedQuery(
        "a stream is not written through the data source holdfast: give the streaming DataFrame to "
        "pipeline.source(name, frame), or send rows with hf.Producer"
    )
