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
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JError, Py4JJavaError

from holdfast.errors import PipelineFailed
from holdfast.node.events import SlotsChanged
from holdfast.node.messages import Order
from holdfast.node.slot import SlotSetup
from holdfast.spark.executors import Executor, Executors, local_cores, located
from holdfast.spark.mailbox import Mailbox, reason, reason_of
from holdfast.spark.worker import ORDER_PROPERTY, Work, order_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_EVERY_S: Final = 0.05
"""A loss has to be known within 0.2 s, and Spark itself needs a tenth of a second."""
POOL: Final = "holdfast"
"""Where sessions schedule fairly, a wave does not wait for the tasks of a user's own jobs that are not yet running."""


class _Job(msgspec.Struct, frozen=True):
    """A wave's job: the group that cancels it, and its future in the JVM."""

    group: str
    future: Any


class Waves:
    """The jobs of one node."""

    def __init__(
        self,
        spark: SparkSession,
        setup: SlotSetup,
        on_receipt: Callable[[bytes], None],
        executors: Executors | None = None,
    ) -> None:
        self._context = spark.sparkContext
        self._setup = setup
        self._mailbox = Mailbox(on_receipt)
        self._receipts = self._context.accumulator([], self._mailbox)
        self._standing: dict[int, Any] = {}
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._executors = executors
        """None in local mode, where slots neither come nor go."""
        self._slots: dict[int, Executor] = {}
        self._slots_made = 0
        self._told = False
        self._pooled = False

    @property
    def look_every_s(self) -> float | None:
        """How often to ask whether slots have changed; None where they never do."""
        return None if self._executors is None else LOOK_EVERY_S

    @property
    def under_way(self) -> int:
        """How many waves are held: sent, and neither answered nor lost nor abandoned."""
        return len(self._jobs)

    def slots_changed(self) -> SlotsChanged | None:
        """Return the slots there are now, each with its standing RDD built; None if they are those of the last time."""
        with spark_answers():
            if self._executors is None:
                changed = not self._told
                if changed:
                    self._add(Executor("driver", "", local_cores(self._context)))
            else:
                changed = self._executors.poll()
                if changed:
                    self._follow(self._executors.fit)
        if not changed and self._told:
            return None
        self._told = True
        return SlotsChanged(list(self._slots), {slot: each.host for slot, each in self._slots.items()})

    def _follow(self, fit: Mapping[str, Executor]) -> None:
        for slot in [slot for slot, executor in self._slots.items() if executor.id not in fit]:
            del self._slots[slot]
            del self._standing[slot]
        known = {executor.id for executor in self._slots.values()}
        for executor in fit.values():
            if executor.id not in known:
                self._add(executor)

    def _add(self, executor: Executor) -> None:
        """Build the standing RDDs of an executor's slots. A slot's number is never used again."""
        for _ in range(executor.cores):
            where = located(self._context, executor.id, executor.host)
            self._standing[self._slots_made] = where.mapPartitions(Work(self._setup, self._receipts))._jrdd
            self._slots[self._slots_made] = executor
            self._slots_made += 1

    def send(self, order: Order) -> None:
        """Submit the order's job; its receipt comes by the accumulator."""
        group = f"holdfast-{order.node}-{order.wave}"
        with spark_answers():
            if not self._pooled:
                self._context.setLocalProperty("spark.scheduler.pool", POOL)
                self._pooled = True
            self._context.setLocalProperty(ORDER_PROPERTY, order_text(self._slots[order.slot].id, order))
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
        with spark_answers():
            if self._context._jsc is None or self._context._jsc.sc().isStopped():
                raise PipelineFailed(
                    "the Spark session of this pipeline was stopped. Nothing committed is lost; start it again with "
                    "a session that lives on"
                )
            ended = [(key, job) for key, job in self._jobs.items() if job.future.isDone()]
            return [(*key, reason_of(self._jobs.pop(key).future)) for key, _ in ended]

    def abandon(self, wave: int, slot: int) -> None:
        """Stop waiting for a wave; Spark kills its Python process some time later."""
        job = self._jobs.pop((wave, slot), None)
        if job is not None:
            with spark_answers():
                self._context.cancelJobGroup(job.group)

    def close(self) -> None:
        """Abandon what is under way, and take no more receipts. A session that is gone has nothing to abandon."""
        self._mailbox.close()
        if self._executors is not None:
            self._executors.close()
        for wave, slot in list(self._jobs):
            with contextlib.suppress(PipelineFailed):
                self.abandon(wave, slot)


@contextlib.contextmanager
def spark_answers() -> Iterator[None]:
    """Turn what Py4J raises, when the JVM is gone or the session was stopped, into one sentence."""
    try:
        yield
    except (Py4JError, OSError) as error:
        why = reason(error) if isinstance(error, Py4JJavaError) else "its JVM does not answer, as if it had been killed"
        raise PipelineFailed(
            f"Spark takes no more waves of this pipeline: {why}. Nothing committed is lost; start the pipeline again"
        ) from error
