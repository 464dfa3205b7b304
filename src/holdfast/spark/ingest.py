"""A Structured Streaming query that feeds a source: its batches become frames of the stream, each exactly once.

1. Spark has planned the batch; what it has planned is made durable (`spark_checkpoint`).
2. A task of the batch writes the rows of its partition to a segment of its own, and syncs it.
3. The places of the frames come back to the driver, which stamps them and names them in one entry of the journal,
   together with the query's id and the batch's.
4. Only then does the batch count as done for Spark. A batch that comes again after a crash is known by its id.

Guarantees:
    * The boundary moves when a trigger has ended, with rows or without: the query says so. Nothing else moves it, so a
      query that is dead, or hangs, is an input that is missing.
    * A query that dies is started again from its checkpoint, with a pause that grows; the cause is kept for `status`.
    * What starting again would not mend, ends the pipeline.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.connect.batch_writer import BatchWriter, WriterOptions
from holdfast.connect.catalog import Located
from holdfast.connect.query_state import QueryState, ingest_folder, new_query, write_query_state
from holdfast.errors import HoldfastError, PipelineFailed, Retryable
from holdfast.log.local_store import LocalStore
from holdfast.model import Published
from holdfast.node.slot_context import SlotContext, SlotSetup
from holdfast.ports import Clock
from holdfast.spark.spark_checkpoint import SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("holdfast")

ROWS_PER_FRAME_MAX: Final = 1 << 20
LOOK_EVERY: Final = "spark.sql.streaming.noDataProgressEventInterval"
LOOK_EVERY_MS_MIN: Final = 20
PLACES: Final = "frame binary, lowest bigint, highest bigint"
_PLACES: Final = pa.schema([("frame", pa.binary()), ("lowest", pa.int64()), ("highest", pa.int64())])
_PUBLISHED: Final = msgspec.msgpack.Decoder(Published)
_SPARK_GONE: Final = (PySparkException, Py4JError, OSError)


class Ingest:
    """The query of one source."""

    def __init__(
        self,
        frame: DataFrame,
        located: Located,
        setup: SlotSetup,
        owner: str,
        adopt: bool,
        clock: Clock,
        options: WriterOptions | None = None,
    ) -> None:
        self._frame = frame
        self._located = located
        self._setup = setup
        self._adopt = adopt
        self._clock = clock
        self._writer = BatchWriter(located, owner, clock, options)
        self._state = new_query(clock.now_us())
        self._query: StreamingQuery | None = None
        self._name = ""
        self._available_now = False
        self._raised: Exception | None = None
        """What a batch raised: Spark only tells of it in its own words."""
        self._has_stream = False
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._looks = _Looks(self._looked)
        self._told = ""
        path = f"{ingest_folder(located.stream)}/spark_checkpoint"
        self._checkpoint = f"{located.store.url}/{path}"
        store = located.store
        self._plans = SparkCheckpoint(store.absolute(path)) if isinstance(store, LocalStore) else None
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix=f"holdfast-plans-{located.stream}")

    @property
    def query(self) -> StreamingQuery | None:
        """The query that was started last."""
        return self._query

    def take_what_is_there(self) -> None:
        """Run until everything that the source has now is in the stream."""
        self._available_now = True
        self._become(self._state.started(self._clock.now_us()))
        try:
            self._start().awaitTermination()
        except _SPARK_GONE as error:
            raised = self._raised or error
            self._become(self._state.died(self._clock.now_us(), cause_of(raised)))
            if isinstance(raised, HoldfastError):
                raise raised from None
            raise PipelineFailed(
                f"the query of source {self._located.stream!r} has ended: {cause_of(raised)}. Nothing committed is "
                "lost: mend the cause and start the pipeline again"
            ) from error

    def start(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None:
        """Run until `close`, on a thread of its own; `fail` is told of what starting again would not mend."""
        self._frame.sparkSession.streams.addListener(self._looks)
        name = f"holdfast-ingest-{self._located.stream}"
        self._thread = threading.Thread(target=self._guarded, args=(fail, warn), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the query, and let go of the stream."""
        self._stopping.set()
        # A batch that waits for room holds its query up, and nobody makes room any more.
        self._writer.stop_waiting()
        with contextlib.suppress(*_SPARK_GONE):
            if self._query is not None:
                self._query.stop()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(*_SPARK_GONE):
                self._frame.sparkSession.streams.removeListener(self._looks)
        self._syncing.shutdown(wait=True)
        self._become(self._state.stopped(self._clock.now_us()))
        # Only who has looked ends the bucket: not a query that was down, nor one that may not write the stream.
        self._writer.close(complete=self._has_stream and self._state.phase == "stopped")

    # The query

    def _start(self) -> StreamingQuery:
        """Start the query, and say who it is to whoever waits for that."""
        stream = self._located.stream
        writer = self._frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", self._checkpoint)
        writer = writer.queryName(f"holdfast-{self._located.topology.name}-{stream}")
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        look_every_ms = max(LOOK_EVERY_MS_MIN, self._located.topology.bucket_width_us // 1000)
        self._known.clear()
        self._raised = None
        with _setting(self._frame.sparkSession, LOOK_EVERY, f"{look_every_ms}ms"):
            query = writer.start()
        self._query = query
        self._name = f"query-{query.id}"
        try:
            self._writer.take_over(self._name, self._adopt)
        except Exception as error:
            self._raised = error
            self._known.set()
            query.stop()
            raise
        self._has_stream = True
        self._looks.run = str(query.runId)
        self._known.set()
        if self._stopping.is_set():
            # Whoever stops has not seen this one.
            query.stop()
        return query

    def _batch(self, rows: DataFrame, batch: int) -> None:
        """Log one batch; Spark calls it on the query's thread."""
        self._known.wait()
        try:
            if self._raised is not None:
                raise self._raised
            self._log_batch(rows, batch)
        except Exception as error:
            self._raised = error
            raise

    def _log_batch(self, rows: DataFrame, batch: int) -> None:
        if self._writer.is_logged(self._name, batch):
            return
        if not self._available_now:
            # Nobody reads before everything is there: what fits on the disk fits.
            self._writer.wait_for_room()
        plans = None if self._plans is None else self._syncing.submit(self._plans.sync)
        write = WriteFrames(self._setup, self._located.stream, self._writer.begin().writer)
        places = rows.coalesce(_slots(rows.sparkSession)).mapInArrow(write, PLACES).toArrow()
        frames = [_PUBLISHED.decode(frame) for frame in places["frame"].to_pylist()]
        lowest = [time_us for time_us in places["lowest"].to_pylist() if time_us is not None]
        highest = [time_us for time_us in places["highest"].to_pylist() if time_us is not None]
        times = (min(lowest, default=None), max(highest, default=None))
        if plans is not None:
            plans.result()
        self._writer.log(self._name, batch, frames, times)

    # Its life

    def _guarded(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None:
        """A thread that fails ends the node: it never goes on with a part of it gone."""
        try:
            self._keep_running(warn)
        except HoldfastError as error:
            fail(error)
        except Exception as error:
            _log.exception("the thread of a query failed")
            fail(PipelineFailed(f"the node failed: {error!r}. Nothing committed is lost; start it again"))

    def _keep_running(self, warn: Callable[[str], None]) -> None:
        while not self._stopping.is_set():
            cause = self._run_once()
            self._looks.run = ""
            if self._stopping.is_set():
                return
            self._become(self._state.died(self._clock.now_us(), cause))
            self._tell(f"the query of source {self._located.stream!r} has died: {cause}. It is started again", warn)
            self._wait_for_next_try()

    def _run_once(self) -> str:
        """Run the query until it ends, and return why it did; raise what starting it again would not mend."""
        self._become(self._state.started(self._clock.now_us()))
        try:
            self._start().awaitTermination()
        except Retryable as error:
            return cause_of(error)
        except _SPARK_GONE as error:
            raised = self._raised or error
            if isinstance(raised, HoldfastError) and not isinstance(raised, Retryable):
                raise raised from error
            return cause_of(raised)
        return "it was stopped by somebody else"

    def _wait_for_next_try(self) -> None:
        until_us = self._state.next_try_us or 0
        while (left_us := until_us - self._clock.now_us()) > 0:
            if self._stopping.wait(left_us / 1e6):
                return

    def _looked(self) -> None:
        """The query has looked at its source."""
        if not self._stopping.is_set():
            self._become(self._state.looked(self._clock.now_us()))
        # What cannot be logged now is met by the next batch, which can tell somebody.
        with contextlib.suppress(HoldfastError):
            self._writer.looked()

    def _become(self, state: QueryState) -> None:
        """Take a new state, and leave it where `status` looks."""
        if state is self._state:
            return
        self._state = state
        # `status` has it a little later if the store is full just now.
        with contextlib.suppress(HoldfastError):
            write_query_state(self._located.store, self._located.stream, state)

    def _tell(self, message: str, warn: Callable[[str], None]) -> None:
        """Tell of a death; one that is like the last is in the query's state already."""
        if message == self._told and self._state.deaths > 1:
            return
        self._told = message
        warn(message)
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

        context = _context(self._setup, self._source, self._owner)
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


_contexts: dict[tuple[str, str], tuple[str, SlotContext]] = {}
"""Of each pipeline and source in this process, with whose it is: a segment is continued by the next batch."""


def _context(setup: SlotSetup, source: str, owner: str) -> SlotContext:
    key = (setup.pipeline_id, source)
    held = _contexts.get(key)
    if held is not None and held[0] == owner:
        return held[1]
    if held is not None:
        held[1].forget_writers()
    context = SlotContext(setup, owner)
    _contexts[key] = (owner, context)
    return context


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
    """Tells each time the query has looked at its source; what comes late, of a run that is over, is not told."""

    def __init__(self, looked: Callable[[], None]) -> None:
        self.run = ""
        self._looked = looked

    def onQueryStarted(self, event: Any) -> None:
        """Nothing was looked at yet."""

    def onQueryProgress(self, event: Any) -> None:
        self._told(event.progress.runId)

    def onQueryIdle(self, event: Any) -> None:
        self._told(event.runId)

    def onQueryTerminated(self, event: Any) -> None:
        """Whoever waits for the query starts it again."""

    def _told(self, run: Any) -> None:
        if str(run) == self.run:
            self._looked()


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


def _slots(spark: SparkSession) -> int:
    """Return how many tasks run at once: more of them would only mean more and smaller frames."""
    return max(1, spark.sparkContext.defaultParallelism)


_QUERY_FAILED: Final = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_TASK_LOST: Final = re.compile(r"^.*\(\S+ executor \S+\): (?:[\w.]+: )?")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+$")
CAUSED_BY: Final = "Caused by: "
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:: .*)?$")


def cause_of(error: Exception) -> str:
    """Return the line of an error that says why: of a traceback what was raised, of Spark's texts what they wrap."""
    if isinstance(error, HoldfastError):
        return f"{type(error).__name__}: {error}"
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    start = next((number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line), None)
    if start is not None:
        raised = next((line for line in lines[start + 1 :] if _RAISED.match(line)), None)
        if raised is not None:
            return _STATE.sub("", raised.strip())
    # Where Java tells of an error by another one, the task's own words are in one of them.
    lost = next((line for line in lines if _TASK_LOST.match(line)), None)
    caused = [line for line in lines if line.startswith(CAUSED_BY)]
    line = lost or (caused[-1].removeprefix(CAUSED_BY) if caused else lines[0])
    return _STATE.sub("", _TASK_LOST.sub("", _QUERY_FAILED.sub("", line)))
