"""Which executors there are now, found out cheaply; none is given work before it has answered a greeting.

Guarantees:
    * An executor that Spark has lost is gone from the next `poll`; one that Spark holds, but has lost the connection
      to, too. A poll is one call to the JVM while nothing changes.
    * An executor counts once it has run Python and seen the store. One that cannot is named with the reason, once.
    * Where executors do not have this package, it is sent to them (`shipping`).

For one thread, the node's.
"""

from __future__ import annotations

import os
import queue
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast import __version__
from holdfast.errors import StoreUnfit
from holdfast.ports import Store
from holdfast.spark import greeting, shipping
from holdfast.spark.mailbox import Mailbox, reason_of

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

GREETINGS_MAX: Final = 5
"""After so many failures an executor is left alone."""
GREET_AGAIN_S: Final = 1.0
_PICKLED_ZERO: Final = b"\x80\x05K\x00."


class Executor(msgspec.Struct, frozen=True):
    """One that may get work."""

    id: str
    host: str
    cores: int


class _Candidate:
    """An executor that has not answered yet."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.future: Any = None
        self.failures = 0
        self.next_s = 0.0


class Executors:
    """The executors of a session."""

    def __init__(
        self, context: SparkContext, node: str, store: Store | None, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        self._context = context
        self._scala: Any = context._jsc.sc()
        self._node = node
        self._store = store
        self._warn = warn
        self._secret = secrets.token_hex(16)
        self._token = None if store is None else greeting.Token(store, node, self._secret)
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._mailbox = Mailbox(self._answers.put)
        self._accumulator = context.accumulator([], self._mailbox)
        self._seen = ""
        self._candidates: dict[str, _Candidate] = {}
        self._unfit: dict[str, str] = {}
        self.fit: dict[str, Executor] = {}
        self.greetings: dict[str, greeting.Greeting] = {}
        self._shipped = False
        self._had_fit = False
        if self._token is not None:
            self._token.write()

    @property
    def is_waiting(self) -> bool:
        """Whether there are executors that have not answered yet."""
        return bool(self._candidates)

    @property
    def seen_any(self) -> bool:
        """Whether there is or was any executor."""
        return bool(self.fit or self._candidates or self._unfit)

    @property
    def unfit(self) -> dict[str, str]:
        """Executors that cannot be given work, and why."""
        return dict(self._unfit)

    def poll(self) -> bool:
        """Look for changes; return whether `fit` has changed. Raises `StoreUnfit` where none could ever be used."""
        before = dict(self.fit)
        self._look()
        self._take_answers()
        for candidate in list(self._candidates.values()):
            self._greet(candidate)
        self._had_fit = self._had_fit or bool(self.fit)
        if self._unfit and not self._had_fit and not self._candidates:
            name, why = next(iter(self._unfit.items()))
            raise StoreUnfit(f"executor {name} cannot be given work: {why}. `holdfast doctor` shows all of them")
        return self.fit != before

    def close(self) -> None:
        """Take no more answers, and leave nothing in the store."""
        self._mailbox.close()
        if self._token is not None:
            self._token.remove()

    # Who is there

    def _look(self) -> None:
        seen = self._scala.getExecutorIds().mkString(",")
        if seen == self._seen:
            return
        ids = set(filter(None, seen.split(",")))
        known = self._listed()
        # The status store hears of an executor a moment after the scheduler does.
        self._seen = seen if ids <= known.keys() else ""
        for gone in [name for name in [*self.fit, *self._candidates, *self._unfit] if name not in ids]:
            for table in (self.fit, self._candidates, self._unfit):
                table.pop(gone, None)
        for name in sorted(ids & known.keys(), key=_by_number):
            if not (name in self.fit or name in self._candidates or name in self._unfit):
                self._candidates[name] = _Candidate(known[name])

    def _listed(self) -> dict[str, Executor]:
        found: dict[str, Executor] = {}
        executors = self._scala.statusStore().executorList(True)
        for index in range(executors.size()):
            each = executors.apply(index)
            host = each.hostPort().rpartition(":")[0]
            # Without one it has only begun to register.
            if each.id() != "driver" and host:
                found[each.id()] = Executor(each.id(), host, max(1, each.totalCores()))
        return found

    # Greetings

    def _greet(self, candidate: _Candidate) -> None:
        if candidate.future is not None:
            if not candidate.future.isDone():
                return
            # An answer is delivered before its job is done.
            self._take_answers()
            if candidate.executor.id not in self._candidates:
                return
            self._failed(candidate, reason_of(candidate.future))
            candidate.future = None
        if candidate.executor.id in self._candidates and time.monotonic() >= candidate.next_s:
            candidate.future = self._ask(candidate.executor)

    def _ask(self, executor: Executor) -> Any:
        url = None if self._store is None else self._store.url
        work = greeting.Greet(url, self._node, self._secret, executor.id, self._accumulator)
        rdd = located(self._context, executor.id, executor.host)
        return rdd.mapPartitions(work)._jrdd.countAsync()

    def _take_answers(self) -> None:
        while not self._answers.empty():
            answer = greeting.DECODER.decode(self._answers.get())
            candidate = self._candidates.pop(answer.executor, None)
            if candidate is None:
                continue
            problem = answer.problem or self._other_version(answer)
            if not problem and self._token is not None:
                problem = self._token.check(answer.executor)
            if problem:
                self._give_up(candidate, problem)
            else:
                self.fit[answer.executor] = candidate.executor
                self.greetings[answer.executor] = answer

    def _other_version(self, answer: greeting.Greeting) -> str:
        if answer.holdfast == __version__:
            return ""
        return (
            f"it has holdfast {answer.holdfast} and this program {__version__}: install the same on all hosts, or "
            "none, and it is sent to them"
        )

    def _failed(self, candidate: _Candidate, why: str) -> None:
        if not self._shipped and shipping.is_missing(why):
            self._shipped = True
            shipping.ship(self._context)
            return
        candidate.failures += 1
        candidate.next_s = time.monotonic() + GREET_AGAIN_S
        if candidate.failures >= GREETINGS_MAX:
            self._candidates.pop(candidate.executor.id, None)
            self._give_up(candidate, f"it runs no Python of ours: {why}")

    def _give_up(self, candidate: _Candidate, why: str) -> None:
        executor = candidate.executor
        self._unfit[executor.id] = f"host {executor.host}: {why}"
        self._warn(f"executor {executor.id} on {executor.host} is not used: {why}")


def located(context: SparkContext, executor: str, host: str) -> RDD[int]:
    """Return an RDD of one element whose task runs at an executor; anywhere in local mode."""
    if context._jsc.sc().isLocal():
        return context.parallelize([0], 1)
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    assert context._jvm is not None
    sequence = context._jvm.PythonUtils.toSeq([f"executor_{host}_{executor}"])
    java_list = context._jvm.java.util.ArrayList()
    java_list.add(context._jvm.scala.Tuple2(bytearray(_PICKLED_ZERO), sequence))
    rows = context._jvm.PythonUtils.toSeq(java_list)
    tag = context._jvm.scala.reflect.ClassTag.Any()
    return RDD(context._jsc.sc().makeRDD(rows, tag).toJavaRDD(), context, CPickleSerializer())


def local_cores(context: SparkContext) -> int:
    """Return how many slots a local session has."""
    executors = context._jsc.sc().statusStore().executorList(True)
    found = [executors.apply(index).totalCores() for index in range(executors.size())]
    return max([*found, 1]) if found else os.cpu_count() or 1


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isdigit() else (0, name)
