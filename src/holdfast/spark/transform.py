"""The jobs of `transform`: a user's function from DataFrame to DataFrame, run over ranges of committed buckets.

1. When the first job is to run the function is called on a leaf, whose rows a task reads for the order of the day.
2. An order for the jobs slot becomes a job over the standing plan: the order is a local property.
3. A task reads frames, Spark does what the function says, a task writes frames, syncs them, and says so by an
   accumulator.
4. When the job has succeeded, all that its tasks said becomes one receipt, as any slot would send it.

Guarantees:
    * One job runs at a time, with fewer tasks than there are cores: a core is always left to waves.
    * What a job wrote that failed, or was abandoned, is in no receipt: what tasks say carries the number of their job.
    * An error of the user's function ends the pipeline, with its line; what Spark lost is tried again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from holdfast.connect.catalog import schema_of
from holdfast.errors import Misconfigured
from holdfast.log.segment import read_header
from holdfast.log.store import open_store
from holdfast.node.messages import (
    Attached,
    AttachWork,
    Failed,
    Order,
    Processed,
    ProcessWork,
    Receipt,
    Result,
    UnitProcessed,
    UnitWork,
    Work,
    encode_receipt,
)
from holdfast.node.planning import buckets_of, of_bucket
from holdfast.node.situation import JOBS_SLOT
from holdfast.node.slot import failure
from holdfast.node.slot_context import SlotContext, SlotSetup
from holdfast.plan import Stage, StreamSource, Topology
from holdfast.spark import transform_plan
from holdfast.spark.mailbox import Mailbox, reason
from holdfast.spark.types import arrow_schema, struct_type
from holdfast.spark.waves import Waves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.node.slot_transform import TransformReader

_Done = TypeVar("_Done")

JOB_PROPERTY: Final = "holdfast.job"
_TASK_FAILED: Final = "holdfast-task-failed: "
_TOLD: Final = re.compile(_TASK_FAILED + r"(\{.*\})")
_LOST: Final = re.compile(
    r"Python worker exited unexpectedly|ExecutorLostFailure|FetchFailed|TaskKilled|Job \d+ cancelled"
)
_REASON_LENGTH: Final = 600
ROWS_PER_BATCH: Final = 1 << 16


class JobOrder(msgspec.Struct, frozen=True):
    """What the tasks of one job are told. `bucket` is set where the function sees one bucket at a time."""

    job: int
    node: str
    work: ProcessWork
    bucket: int | None = None


class TaskTold(msgspec.Struct, frozen=True, array_like=True):
    """What one task of a job says: rows that it has read, by shard, or units that it has written."""

    job: int
    rows_in: dict[int, int] = {}
    units: list[UnitProcessed] = []


_ORDER: Final = msgspec.json.Decoder(JobOrder)
_TASK_TOLD: Final = msgspec.msgpack.Decoder(TaskTold)


class Declared(Protocol):
    """A transform as the program has it: the function over all rows of its input, and where it was given."""

    @property
    def function(self) -> transform_plan.FrameFunction: ...
    @property
    def line(self) -> str: ...


class Jobs:
    """Runs the orders of the jobs slot, one after the other, on a thread of its own."""

    def __init__(
        self, spark: SparkSession, setup: SlotSetup, topology: Topology, declared: Mapping[str, Declared]
    ) -> None:
        self._context = spark.sparkContext
        own = open_store(setup.store_url)
        foreign = {
            source.name: open_store(source.origin.url)
            for source in topology.sources
            if isinstance(source.origin, StreamSource)
        }
        inputs = {stage.name: stage.inputs[0].stream for stage in topology.stages if stage.transform is not None}
        self._stores = {stage: foreign.get(stream, own) for stage, stream in inputs.items()}
        self._told: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._mailbox = Mailbox(self._told.put)
        said = self._context.accumulator([], self._mailbox)
        self._standing = {
            stage.name: Standing(spark, setup, topology, stage, declared[stage.name], said)
            for stage in topology.stages
            if stage.transform is not None
        }
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._on_receipt: Callable[[bytes], None] = lambda receipt: None
        self._abandoned: set[int] = set()
        self._closing = threading.Event()
        self._job = 0
        self._group = f"holdfast-jobs-{setup.pipeline_id}"
        self._thread = threading.Thread(target=self._run, name="holdfast-jobs", daemon=True)

    def start(self, on_receipt: Callable[[bytes], None]) -> None:
        """Take orders from now on."""
        if self._standing:
            self._on_receipt = on_receipt
            self._thread.start()

    def send(self, order: Order) -> None:
        """Take an order; its receipt comes when its jobs are done."""
        self._orders.put(order)

    def abandon(self, wave: int) -> None:
        """Stop the jobs of an order, and say nothing more of it."""
        self._abandoned.add(wave)
        self._context.cancelJobGroup(f"{self._group}-{wave}")

    def close(self) -> None:
        """Stop what is under way, and wait for the thread."""
        self._mailbox.close()
        self._closing.set()
        self._orders.put(None)
        while self._thread.is_alive():
            # Again and again: a job may have been submitted just after the others were cancelled.
            with contextlib.suppress(Py4JError, OSError, AttributeError):
                self._context.cancelJobGroup(f"{self._group}-{self._wave}")
            self._thread.join(0.2)

    _wave = 0

    def _run(self) -> None:
        while (order := self._orders.get()) is not None and not self._closing.is_set():
            started = time.perf_counter()
            self._wave = order.wave
            results = [self._guarded(number, work, order) for number, work in enumerate(order.works)]
            seconds = time.perf_counter() - started
            receipt = Receipt(order.wave, order.slot, order.node, socket.gethostname(), os.getpid(), results, seconds)
            if not self._gives_up(order):
                self._on_receipt(encode_receipt(receipt))
            self._abandoned.discard(order.wave)

    def _gives_up(self, order: Order) -> bool:
        return self._closing.is_set() or order.wave in self._abandoned

    def _guarded(self, number: int, work: Work, order: Order) -> Result:
        try:
            if isinstance(work, AttachWork):
                # There is no state to bring anywhere.
                return Attached(work.stage, work.shard, work.bucket_committed, "empty")
            assert isinstance(work, ProcessWork), "the jobs slot has units and nothing else"
            return self._process(work, order)
        except Py4JJavaError as error:
            return self._failed(number, work, _text_of(error.java_exception), reason(error))
        except PySparkException as error:
            return self._failed(number, work, str(error), str(error).strip().partition("\n")[0])
        except Py4JError as error:
            return Failed(number, "StoreUnavailable", f"Spark did not take a job: {error!r}", retry=True)
        except Exception as error:
            return failure(number, error)

    def _process(self, work: ProcessWork, order: Order) -> Processed:
        begun = time.perf_counter()
        standing = self._standing[work.stage]
        if work.frames:
            standing.stand()
        # What is done once for all jobs says nothing of how fast they are.
        started = time.perf_counter()
        if standing.by_bucket:
            parts: list[tuple[ProcessWork, int | None]] = [
                (of_bucket(work, each), each) for each in self._buckets(work)
            ]
        else:
            parts = [(work, None)] if work.frames else []
        rows_in: Counter[int] = Counter()
        units: list[UnitProcessed] = []
        for part, bucket in parts:
            if self._gives_up(order):
                break
            read: dict[int, int] = {}
            for told in self._run_job(standing, part, bucket, order):
                read |= told.rows_in
                units += told.units
            rows_in.update(read)
        seconds = {"plan": started - begun, "total": time.perf_counter() - started}
        return Processed(work.stage, merged(work, units, rows_in), work.bucket_from, work.bucket_to, seconds)

    def _buckets(self, work: ProcessWork) -> list[int]:
        """Return the buckets that have rows, as the frames' headers say."""
        found: set[int] = set()
        for frame in work.frames:
            table = (
                [] if frame.stamp_us is not None else read_header(self._stores[work.stage], frame.frame).bucket_table
            )
            found.update(buckets_of(frame, table))
        return sorted(bucket for bucket in found if work.bucket_from <= bucket < work.bucket_to)

    def _run_job(self, standing: Standing, work: ProcessWork, bucket: int | None, order: Order) -> list[TaskTold]:
        """Run one job; return what its tasks said. Spark hands that on before it says that the job is done."""
        self._job += 1
        told = JobOrder(self._job, order.node, work, bucket)
        self._context.setLocalProperty(JOB_PROPERTY, msgspec.json.encode(told).decode())
        self._context.setLocalProperty("spark.jobGroup.id", f"{self._group}-{order.wave}")
        standing.rdd().countAsync().get()
        found = []
        while not self._told.empty():
            found.append(_TASK_TOLD.decode(self._told.get()))
        return [each for each in found if each.job == self._job]

    def _failed(self, number: int, work: Work, text: str, why: str) -> Failed:
        """Return what became of a job that Spark ended, with why: a task of ours, a loss, or the user's function."""
        told = _TOLD.search(text)
        if told is not None:
            return Failed(number, **json.loads(told[1]))
        assert isinstance(work, ProcessWork), "only these run jobs"
        what, why = f"transform {work.stage!r}", why[:_REASON_LENGTH]
        if _LOST.search(text.partition("\n")[0]):
            return Failed(number, "StoreUnavailable", f"a job of {what} was lost: {why}", retry=True)
        standing = self._standing[work.stage]
        return Failed(
            number,
            "UserFunctionFailed",
            f"the function {standing.name!r} of {what} failed on buckets [{work.bucket_from}, {work.bucket_to}) of "
            f"stream {standing.input!r}: {why}. Nothing is lost: mend it and start again. A transform rejects no "
            f"rows, as nobody knows which one it was (at {standing.line})",
            retry=False,
        )


class Standing:
    """The plan of one transform, and the RDD that stands for it."""

    def __init__(
        self, spark: SparkSession, setup: SlotSetup, topology: Topology, stage: Stage, declared: Declared, said: Any
    ) -> None:
        assert stage.transform is not None, "a stage of jobs"
        self.name = stage.transform.name
        self.line = declared.line
        self.input = stage.inputs[0].stream
        self._spark = spark
        # A session with the user's settings, but for one: what stands cannot be planned anew while it runs.
        self._session = spark._jsparkSession.cloneSession()
        self._session.conf().set("spark.sql.adaptive.enabled", "false")
        self._order_by = stage.transform.order_by
        self._rdd: Any = None
        self._is_analysed = False
        self._setup = setup
        self._said = said
        self._function = declared.function
        self._rows = struct_type(schema_of(stage.inputs[0].schema))
        self._shards = topology.shards
        # Called once without rows: what is wrong with it is said before anything is touched.
        self._carried = self._analysed(transform_plan.no_rows, 1)
        self._check_columns(schema_of(stage.schema))
        self._tasks = self._parts = 1

    @property
    def by_bucket(self) -> bool:
        return self._carried.by_bucket

    def stand(self) -> None:
        """Make what the first job needs and all later ones use again."""
        if not self._is_analysed:
            self._analyse()
        if self._rdd is None and not self._carried.united:
            frame = self._written()
            transform_plan.check_standing(frame)
            self._rdd = frame._jdf.queryExecution().toRdd().toJavaRDD()

    def rdd(self) -> Any:
        """Return the RDD of the next job: the standing one or, where the plan has a shuffle, one of its own."""
        return self._rdd or self._written()._jdf.queryExecution().toRdd().toJavaRDD()

    def _analysed(self, read: Callable[..., Any], parts: int) -> transform_plan.Carried:
        leaf = transform_plan.leaf_frame(self._spark, self._rows, read, parts)
        return transform_plan.analysed(self._function, leaf, self._order_by, self.name)

    def _written(self) -> DataFrame:
        """Return the plan of a job."""
        rows = transform_plan.frame_of(self._spark, self._carried.node, self._session)
        rows = transform_plan.in_order(rows, self._carried, self._order_by, self._tasks)
        if self._parts > self._tasks and not self._carried.united:
            rows = rows.coalesce(self._tasks)
        ordered = bool(self._order_by) or self._carried.united
        return rows.mapInArrow(WriteRows(self._setup, ordered, self._said), "nothing int")

    def _analyse(self) -> None:
        """Call the function on the rows that jobs read; only now, when executors are there and have what they need."""
        before = self._carried
        self._tasks = max(1, min(self._shards, self._spark.sparkContext.defaultParallelism - 1))
        # Where a function sees the rows of a partition together, these have to be those of one shard.
        self._parts = self._shards if before.by_bucket else self._tasks
        read = ReadRows(self._setup, self._shards, self._parts, self._said)
        self._carried = self._analysed(read, self._parts)
        if self._carried.schema != before.schema or self._carried.by_bucket != before.by_bucket:
            raise Misconfigured(
                f"the function {self.name!r} makes something else each time it is called; it has to give the same "
                f"query (at {self.line})"
            )
        self._is_analysed = True

    def _check_columns(self, schema: pa.Schema) -> None:
        found = arrow_schema(self._carried.schema)
        if found.names != schema.names or found.types != schema.types:
            raise Misconfigured(
                f"the function {self.name!r} gives {self._carried.schema.simpleString()} now, and gave "
                f"{struct_type(schema).simpleString()} when it was declared; it has to give the same columns each time "
                f"(at {self.line})"
            )


class ReadRows:
    """The leaf of a plan: reads, in a task, the rows that the job's order names."""

    def __init__(self, setup: SlotSetup, shards: int, parts: int, said: Any) -> None:
        self._setup = setup
        self._shards = shards
        self._parts = parts
        self._said = said

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = _order_of_task()
        rows_in: dict[int, int] = {}
        for part in [number for batch in batches for number in batch.column(0).to_pylist()]:
            for shard in range(part * self._shards // self._parts, (part + 1) * self._shards // self._parts):
                rows = _told_apart(partial(self._rows, order, shard))
                rows_in[shard] = rows.num_rows
                for start in range(0, rows.num_rows, ROWS_PER_BATCH):
                    yield rows.slice(start, ROWS_PER_BATCH)
        self._said.add([msgspec.msgpack.encode(TaskTold(order.job, rows_in=rows_in))])

    def _rows(self, order: JobOrder, shard: int) -> pa.RecordBatch:
        return _bench(self._setup, order.node).reader.rows(order.work, shard)


class WriteRows:
    """The top of a plan: writes, in a task, the rows that came out."""

    def __init__(self, setup: SlotSetup, ordered: bool, said: Any) -> None:
        self._setup = setup
        self._ordered = ordered
        self._said = said

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        order = _order_of_task()
        # All of it first: what the function raises comes from here, and is not ours.
        rows = list(batches)
        units = _told_apart(partial(self._write, order, rows))
        self._said.add([msgspec.msgpack.encode(TaskTold(order.job, units=units))])
        return iter(())

    def _write(self, order: JobOrder, rows: list[pa.RecordBatch]) -> list[UnitProcessed]:
        from holdfast.node.slot_transform import TransformWriter

        context = _bench(self._setup, order.node).context
        try:
            return TransformWriter(context, order.work, self._ordered).write(rows, order.bucket)
        except BaseException:
            context.forget_writers()
            raise


class _Bench(NamedTuple):
    """What one process uses for all jobs of a pipeline: a segment is continued by the next job."""

    context: SlotContext
    reader: TransformReader


_benches: dict[tuple[str, str], _Bench] = {}


def _bench(setup: SlotSetup, node: str) -> _Bench:
    # Only in tasks, as it loads the kernels, which the node's own process does without.
    from holdfast.node.slot_transform import TransformReader

    key = (setup.pipeline_id, node)
    if key not in _benches:
        for old in [each for each in _benches if each[0] == setup.pipeline_id]:
            _benches.pop(old).context.forget_writers()
        context = SlotContext(setup, node)
        _benches[key] = _Bench(context, TransformReader(context))
    return _benches[key]


def _order_of_task() -> JobOrder:
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(JOB_PROPERTY)
    if text is None:
        raise RuntimeError(transform_plan.RAN_A_JOB)
    return _ORDER.decode(text)


def _told_apart(work: Callable[[], _Done]) -> _Done:
    """Do a piece of our own work in a task; if it raises, the driver can tell that from what the user's code raises."""
    try:
        return work()
    except Exception as error:
        failed = failure(0, error)
        told = {"error": failed.error, "message": failed.message, "retry": failed.retry}
        raise RuntimeError(_TASK_FAILED + json.dumps(told)) from None


def _text_of(exception: Any) -> str:
    """Return what a Java exception says; a future has wrapped it once more."""
    cause = exception.getCause() or exception
    return str(cause.getMessage() or cause.toString())


def merged(work: ProcessWork, found: Iterable[UnitProcessed], rows_in: Mapping[int, int]) -> list[UnitProcessed]:
    """Return one result for each unit of the work, in its order, from those of tasks and of jobs for single buckets.

    A shard of a bucket counts once, however often a task of it was run: what it wrote is the same each time.
    """
    published: dict[int, dict[int, UnitProcessed]] = {unit.shard: {} for unit in work.units}
    for part in found:
        if part.digests:
            published[part.shard].setdefault(part.digests[0][0], part)
    return [_joined(unit, published[unit.shard], rows_in.get(unit.shard, 0)) for unit in work.units]


def _joined(unit: UnitWork, parts: dict[int, UnitProcessed], rows_in: int) -> UnitProcessed:
    in_order = [parts[bucket] for bucket in sorted(parts)]
    return UnitProcessed(
        unit.shard,
        [frame for part in in_order for frame in part.published],
        [digest for part in in_order for digest in part.digests],
        rows_in,
        0,
    )


class WavesAndJobs:
    """Sends orders to where they belong: those of the jobs slot to jobs, all others to waves."""

    def __init__(self, waves: Waves, jobs: Jobs) -> None:
        self._waves = waves
        self._jobs = jobs
        self.slots_changed = waves.slots_changed
        self.lost = waves.lost

    @property
    def look_every_s(self) -> float | None:
        """How often to ask whether slots have changed."""
        return self._waves.look_every_s

    def send(self, order: Order) -> None:
        """Hand an order on."""
        if order.slot == JOBS_SLOT:
            self._jobs.send(order)
        else:
            self._waves.send(order)

    def received(self, wave: int, slot: int) -> None:
        """Let go of a wave whose receipt is there."""
        if slot != JOBS_SLOT:
            self._waves.received(wave, slot)

    def abandon(self, wave: int, slot: int) -> None:
        """Stop waiting for a wave."""
        if slot == JOBS_SLOT:
            self._jobs.abandon(wave)
        else:
            self._waves.abandon(wave, slot)

    def close(self) -> None:
        """Abandon what is under way, and take no more receipts."""
        self._jobs.close()
        self._waves.close()
