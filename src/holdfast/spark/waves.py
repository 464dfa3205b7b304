"""Send orders to slots as Spark jobs over standing RDDs, and hand their receipts on as they come.

Guarantees:
    * One standing RDD per slot, built once and pinned to its executor; a wave costs one job, an order one local property.
    * A receipt reaches `on_receipt` once per task that Spark believed in. `lost()` names the waves whose job ended without
      one; a receipt that comes later all the same is the decider's to drop, by wave number.
    * Nothing here decides; nothing here runs in Spark's scheduler thread but an append to a queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.accumulators import AccumulatorParam

from holdfast.node.messages import RECEIPT_DECODER, Order, Receipt, encode_order
from holdfast.node.slot import SlotSetup
from holdfast.spark.worker import ORDER_PROPERTY, Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Receipts = list[bytes]


class SlotPlace(msgspec.Struct, frozen=True):
    """A core of an executor: the number the decider uses, and where it is."""

    slot: int
    executor: str
    host: str


class _Mailbox(AccumulatorParam[Receipts]):
    """An accumulator whose value is never kept in the driver: what is added there is delivered and forgotten."""

    def __init__(self) -> None:
        self.deliver: Callable[[bytes], None] | None = None

    def zero(self, value: Receipts) -> Receipts:
        return []

    def addInPlace(self, value1: Receipts, value2: Receipts) -> Receipts:  # noqa: N802 (Spark's name)
        if self.deliver is None:
            return value1 + value2
        for content in value2:
            self.deliver(content)
        return value1

    def __getstate__(self) -> dict[str, object]:
        return {"deliver": None}


class Waves:
    """The jobs of one node."""

    def __init__(self, spark: SparkSession, setup: SlotSetup, on_receipt: Callable[[Receipt], None]) -> None:
        self._context = spark.sparkContext
        self._setup = setup
        self._on_receipt = on_receipt
        self._mailbox = _Mailbox()
        self._receipts = self._context.accumulator([], self._mailbox)
        self._mailbox.deliver = self._deliver
        self._standing: dict[int, Any] = {}
        self._jobs: dict[tuple[int, int], Any] = {}
        self._lock = threading.Lock()

    def slots(self) -> list[int]:
        """Return the slots there are now, each with its standing RDD built."""
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
        standing = self._standing[order.slot]
        with self._lock:
            self._context.setLocalProperty(ORDER_PROPERTY, encode_order(order))
            self._context.setLocalProperty("spark.jobGroup.id", _group(order.wave))
            self._jobs[order.wave, order.slot] = standing.countAsync()

    def lost(self) -> list[tuple[int, int, str]]:
        """Return (wave, slot, why) of jobs that have ended and whose receipt has not come, and forget them.

        Spark delivers a task's accumulator updates before it completes its job, so a job that is done without its
        receipt will not get one.
        """
        ended: list[tuple[int, int, str]] = []
        for key, future in list(self._jobs.items()):
            if not future.isDone():
                continue
            reason = _reason(future)
            if self._jobs.pop(key, None) is not None:
                ended.append((*key, reason))
        return ended

    def abandon(self, wave: int, slot: int) -> None:
        """Stop waiting for a wave; Spark kills its Python process some time later."""
        self._jobs.pop((wave, slot), None)
        self._context.cancelJobGroup(_group(wave))

    def _deliver(self, content: bytes) -> None:
        receipt = RECEIPT_DECODER.decode(content)
        self._jobs.pop((receipt.wave, receipt.slot), None)
        self._on_receipt(receipt)


def _group(wave: int) -> str:
    return f"holdfast-{wave}"


def _reason(future: Any) -> str:
    try:
        future.get()
    except Py4JJavaError as error:
        text = str(error.java_exception.getMessage() if error.java_exception is not None else error)
        return text.splitlines()[0] if text else "the job failed"
    except Py4JError as error:
        return str(error)
    return "the job ended without a receipt"
