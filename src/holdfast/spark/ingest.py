"""A Structured Streaming query that feeds a source: its batches become frames of the stream, each exactly once.

1. A task of the batch writes the rows of its partition to a segment of its own, and syncs it.
2. The places of the frames come back to the driver, which stamps them and names them in one entry of the journal,
   together with the query's id and the batch's.
3. Only then does the batch count as done for Spark. A batch that comes again after a crash is known by its id.

Guarantees:
    * The boundary moves when a trigger has ended, with rows or without: the query says so. Nothing else moves it, so a
      query that is dead, or hangs, is an input that is missing.
    * A query that dies is started again from its checkpoint, with a pause that grows; the cause is kept in the journal.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.connect.batch_writer import BatchWriter
from holdfast.connect.catalog import Located
from holdfast.errors import HoldfastError, StoreUnfit
from holdfast.model import Published
from holdfast.node.slot_context import SlotContext, SlotSetup
from holdfast.ports import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("holdfast")

BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
HEALTHY_S: Final = 60.0
ROWS_PER_FRAME_MAX: Final = 1 << 20
LOOK_EVERY: Final = "spark.sql.streaming.noDataProgressEventInterval"
LOOK_EVERY_MS_MIN: Final = 20
PLACES: Final = "frame binary, lowest bigint, highest bigint"
_PLACES: Final = pa.schema([("frame", pa.binary()), ("lowest", pa.int64()), ("highest", pa.int64())])
_PUBLISHED: Final = msgspec.msgpack.Decoder(Published)


class Ingest:
    """The query of one source."""

    def __init__(
        self, frame: DataFrame, located: Located, setup: SlotSetup, owner: str, adopt: bool, clock: Clock
    ) -> None:
        self._frame = frame
        self._located = located
        self._adopt = adopt
        self._rows = WriteFrames(setup, located.stream, owner)
        self._writer = BatchWriter(located, owner, clock)
        self._query: StreamingQuery | None = None
        self._name = ""
        self._refused: HoldfastError | None = None
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._looks = _Looks(self._writer)

    def take_what_is_there(self) -> None:
        """Run until everything that the source has now is in the stream."""
        query = self._start(available_now=True)
        try:
            query.awaitTermination()
        except PySparkException:
            if self._refused is not None:
                raise self._refused from None
            raise

    def start(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None:
        """Run until `close`, on a thread of its own; `fail` is told of what starting again would not mend."""
        self._frame.sparkSession.streams.addListener(self._looks)
        name = f"holdfast-ingest-{self._located.stream}"
        self._thread = threading.Thread(target=self._keep_running, args=(fail, warn), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the query, and let go of the stream."""
        self._stopping.set()
        with contextlib.suppress(PySparkException, Py4JError):
            if self._query is not None:
                self._query.stop()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(Py4JError):
                self._frame.sparkSession.streams.removeListener(self._looks)
        self._writer.close(complete=self._refused is None)

    # The query

    def _start(self, available_now: bool = False) -> StreamingQuery:
        """Start the query, and say who it is to whoever waits for that."""
        stream = self._located.stream
        checkpoint = f"{self._located.store.url}/ingest/{stream}/spark_checkpoint"
        writer = self._frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", checkpoint)
        writer = writer.queryName(f"holdfast-{self._located.topology.name}-{stream}")
        look_every_ms = max(LOOK_EVERY_MS_MIN, self._located.topology.bucket_width_us // 1000)
        self._known.clear()
        with _setting(self._frame.sparkSession, LOOK_EVERY, f"{look_every_ms}ms"):
            query = (writer.trigger(availableNow=True) if available_now else writer).start()
        self._query = query
        self._name = f"query-{query.id}"
        self._looks.query_id = str(query.id)
        try:
            self._writer.take_over(self._name, self._adopt)
        except StoreUnfit as error:
            self._refused = error
        finally:
            self._known.set()
        if self._refused is not None:
            query.stop()
            raise self._refused
        return query

    def _batch(self, rows: DataFrame, batch: int) -> None:
        """Log one batch; Spark calls it on the query's thread."""
        self._known.wait()
        if self._refused is not None:
            raise self._refused
        if self._writer.is_logged(self._name, batch):
            return
        self._writer.wait_for_room()
        places = rows.mapInArrow(self._rows, PLACES).toArrow()
        frames = [_PUBLISHED.decode(frame) for frame in places["frame"].to_pylist()]
        lowest = [time_us for time_us in places["lowest"].to_pylist() if time_us is not None]
        highest = [time_us for time_us in places["highest"].to_pylist() if time_us is not None]
        times = (min(lowest, default=None), max(highest, default=None))
        self._writer.log(self._name, batch, frames, times)

    def _keep_running(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None:
        pause_s = BACKOFF_FIRST_S
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self._start().awaitTermination()
                cause = "it was stopped"
            except HoldfastError as error:
                fail(error)
                return
            except (PySparkException, Py4JError) as error:
                cause = _first_line(error)
            if self._stopping.is_set():
                return
            if time.monotonic() - started >= HEALTHY_S:
                pause_s = BACKOFF_FIRST_S
            self._tell(f"the query of source {self._located.stream!r} has ended: {cause}. It starts again", warn)
            self._stopping.wait(pause_s)
            pause_s = min(BACKOFF_MAX_S, 2 * pause_s)

    def _tell(self, message: str, warn: Callable[[str], None]) -> None:
        warn(message)
        # `status` has it a little later if the store is full just now.
        with contextlib.suppress(HoldfastError):
            self._writer.report(message)


class WriteFrames:
    """Writes the rows of a partition as frames, in a task, and yields where they are."""

    def __init__(self, setup: SlotSetup, source: str, owner: str) -> None:
        self._setup = setup
        self._source = source
        self._owner = owner

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from holdfast.node.slot_edges import append_rows
        from holdfast.operators.phases import Phases
        from holdfast.operators.union import conform, read_schema

        context = _context(self._setup, self._owner)
        source = context.sources[self._source]
        schema = read_schema(source.schema)
        what = f"the streaming DataFrame of source {source.name!r}"
        frames: list[bytes] = []
        lowest: list[int | None] = []
        highest: list[int | None] = []
        try:
            for rows in _large_batches(batches):
                published, times = append_rows(context, source, conform(rows, schema, what), Phases())
                frames.append(msgspec.msgpack.encode(published))
                lowest.append(times[0])
                highest.append(times[1])
            context.sync()
        except BaseException:
            context.forget_writers()
            raise
        yield pa.RecordBatch.from_arrays([pa.array(frames, pa.binary()), lowest, highest], schema=_PLACES)


_contexts: dict[tuple[str, str], SlotContext] = {}
"""One per pipeline and writer in this process: a segment is continued by the next batch."""


def _context(setup: SlotSetup, owner: str) -> SlotContext:
    key = (setup.pipeline_id, owner)
    if key not in _contexts:
        for old in [each for each in _contexts if each[0] == setup.pipeline_id]:
            _contexts.pop(old).forget_writers()
        _contexts[key] = SlotContext(setup, owner)
    return _contexts[key]


def _large_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about `ROWS_PER_FRAME_MAX` rows: a frame for each of Spark's would be many small ones."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
        if rows >= ROWS_PER_FRAME_MAX:
            yield pa.concat_batches(held)
            held, rows = [], 0
    if held:
        yield pa.concat_batches(held)


class _Looks(StreamingQueryListener):
    """Moves the boundary each time the query has looked at its source."""

    def __init__(self, writer: BatchWriter) -> None:
        self.query_id = ""
        self._writer = writer

    def onQueryStarted(self, event: Any) -> None:
        """Nothing was looked at yet."""

    def onQueryProgress(self, event: Any) -> None:
        self._looked(event.progress.id)

    def onQueryIdle(self, event: Any) -> None:
        self._looked(event.id)

    def onQueryTerminated(self, event: Any) -> None:
        """Whoever waits for the query starts it again."""

    def _looked(self, query: Any) -> None:
        if str(query) == self.query_id:
            # What cannot be logged now is met by the next batch, which can tell somebody.
            with contextlib.suppress(HoldfastError):
                self._writer.looked()


@contextlib.contextmanager
def _setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a session's setting for as long as a query needs to take it over."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
