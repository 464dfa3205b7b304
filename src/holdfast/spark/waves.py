"""Send orders to slots as Spark jobs over standing RDDs, and hand their receipts on as they come.

Guarantees:
    * One standing RDD per slot, built once and pinned to its executor; a wave costs one job, an order one local
      property.
    * A receipt reaches `on_receipt` once per task that Spark believed in. `lost()` names the waves whose job ended
      without one; a receipt that comes later all the same is the decider's to drop, by wave number.
    * Nothing here decides. Spark's scheduler waits while `on_receipt` runs: it gets bytes, and appends them to a queue.
    * All else is for one thread, the node's. What is held for a wave goes when its receipt or its loss is known.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.accumulators import AccumulatorParam

from holdfast.errors import PipelineFailed
from holdfast.node.messages import Order, encode_order
from holdfast.node.slot import SlotSetup
from holdfast.spark.worker import ORDER_PROPERTY, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Receipts = list[bytes]

_LOST_TASK: Final = re.compile(r".*\(\S+ executor \S+\): ")
"""What Spark puts before a task's own error: "Job aborted ...: Lost task ... (TID 3) (host executor driver): why"."""


class SlotPlace(msgspec.Struct, frozen=True):
    """A core of an executor: the number the decider uses, and where it is."""

    slot: int
    executor: str
    host: str


class _Job(msgspec.Struct, frozen=True):
    """A wave's job: the group that cancels it, and its future in the JVM."""

    group: str
    future: Any


class _Mailbox(AccumulatorParam[Receipts]):
    """An accumulator whose value is never kept in the driver: what is added there is delivered and forgotten.

    In a task, where there is nobody to deliver to, it is an ordinary list.
    """

    def __init__(self, deliver: Callable[[bytes], None] | None) -> None:
        self._deliver = deliver
        self._in_driver = True

    def close(self) -> None:
        """Deliver nothing more. Spark keeps the accumulator for as long as it lives, and may still add to it."""
        self._deliver = None

    def zero(self, value: Receipts) -> Receipts:
        return []

    def addInPlace(self, value1: Receipts, value2: Receipts) -> Receipts:
        if not self._in_driver:
            return value1 + value2
        deliver = self._deliver
        if deliver is not None:
            for content in value2:
                deliver(content)
        return value1

    def __getstate__(self) -> dict[str, object]:
        return {"_deliver": None, "_in_driver": False}


class Waves:
    """The jobs of one node."""

    def __init__(self, spark: SparkSession, setup: SlotSetup, on_receipt: Callable[[bytes], None]) -> None:
        self._context = spark.sparkContext
        self._setup = setup
        self._mailbox = _Mailbox(on_receipt)
        self._receipts = self._context.accumulator([], self._mailbox)
        self._standing: dict[int, Any] = {}
        self._jobs: dict[tuple[int, int], _Job] = {}

    @property
    def under_way(self) -> int:
        """How many waves are held: sent, and neither answered nor lost nor abandoned."""
        return len(self._jobs)

    def slots(self) -> list[int]:
        """Return the slots there are now, each with its standing RDD built."""
        with _spark_answers():
            places = self.places()
            for place in places:
                if place.slot not in self._standing:
                    self.prepare(place)
        return [place.slot for place in places]

    def places(self) -> list[SlotPlace]:
        """Return where slots are now, numbered in the order of executor and core."""
        scala = self._context._jsc.sc()
        local = scala.isLocal()
        cores = int(scala.conf().get("spark.executor.cores", "1"))
        executors = scala.statusStore().executorList(True)
        found: list[SlotPlace] = []
        for index in range(executors.size()):
            executor = executors.apply(index)
            if executor.id() == "driver" and not local:
                continue
            host = executor.hostPort().split(":")[0]
            for _ in range(executor.totalCores() if local or executor.totalCores() else cores):
                found.append(SlotPlace(len(found), executor.id(), host))
        return found

    def prepare(self, place: SlotPlace) -> None:
        """Build the slot's standing RDD."""
        located = self._located(place)
        standing = located.mapPartitions(Work(self._setup, self._receipts))
        self._standing[place.slot] = standing._jrdd

    def _located(self, place: SlotPlace) -> Any:
        context = self._context
        if context._jsc.sc().isLocal():
            return context.parallelize([0], 1)
        from pyspark import RDD

        assert context._jvm is not None
        location = f"executor_{place.host}_{place.executor}"
        sequence = context._jvm.PythonUtils.toSeq([location])
        java_list = context._jvm.java.util.ArrayList()
        java_list.add(context._jvm.scala.Tuple2(bytearray(b"\x80\x05K\x00."), sequence))
        rows = context._jvm.PythonUtils.toSeq(java_list)
        tag = context._jvm.scala.reflect.ClassTag.Any()
        return RDD(context._jsc.sc().makeRDD(rows, tag).toJavaRDD(), context)

    def send(self, order: Order) -> None:
        """Submit the order's job; its receipt comes by the accumulator."""
        group = f"holdfast-{order.node}-{order.wave}"
        with _spark_answers():
            self._context.setLocalProperty(ORDER_PROPERTY, encode_order(order))
            self._context.setLocalProperty("spark.jobGroup.id", group)
            self._jobs[order.wave, order.slot] = _Job(group, self._standing[order.slot].countAsync())

    def received(self, wave: int, slot: int) -> None:
        """Let go of a wave whose receipt is there."""
        self._jobs.pop((wave, slot), None)

    def lost(self) -> list[tuple[int, int, str]]:
        """Return (wave, slot, why) of jobs that have ended and whose receipt was not `received`, and forget them.

        Spark delivers a task's accumulator updates before it completes its job. So a receipt that there is has been
        handed to `on_receipt` before its wave is named here. Raises `PipelineFailed` when Spark itself is gone.
        """
        with _spark_answers():
            if self._context._jsc is None or self._context._jsc.sc().isStopped():
                raise PipelineFailed(
                    "the Spark session of this pipeline was stopped. Nothing committed is lost; start it again with "
                    "a session that lives on"
                )
            ended = [(key, job) for key, job in self._jobs.items() if job.future.isDone()]
            return [(*key, _reason_of(self._jobs.pop(key).future)) for key, _ in ended]

    def abandon(self, wave: int, slot: int) -> None:
        """Stop waiting for a wave; Spark kills its Python process some time later."""
        job = self._jobs.pop((wave, slot), None)
        if job is not None:
            with _spark_answers():
                self._context.cancelJobGroup(job.group)

    def close(self) -> None:
        """Abandon what is under way, and take no more receipts. A session that is gone has nothing to abandon."""
        self._mailbox.close()
        for wave, slot in list(self._jobs):
            with contextlib.suppress(PipelineFailed):
                self.abandon(wave, slot)


@contextlib.contextmanager
def _spark_answers() -> Iterator[None]:
    """Turn what Py4J raises, when the JVM is gone or the session was stopped, into one sentence."""
    try:
        yield
    except (Py4JError, OSError) as error:
        why = (
            _reason(error) if isinstance(error, Py4JJavaError) else "its JVM does not answer, as if it had been killed"
        )
        raise PipelineFailed(
            f"Spark takes no more waves of this pipeline: {why}. Nothing committed is lost; start the pipeline again"
        ) from error


def _reason_of(future: Any) -> str:
    try:
        future.get()
    except Py4JJavaError as error:
        return _reason(error)
    return "its job succeeded all the same"


def _reason(error: Py4JJavaError) -> str:
    """Return the line of a Java exception that says why; a future has wrapped it once more."""
    exception = error.java_exception
    cause = exception.getCause() or exception
    lines = str(cause.getMessage() or cause.toString()).splitlines()
    return _LOST_TASK.sub("", lines[0]) if lines else "the job failed"
