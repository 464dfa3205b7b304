"""How a task answers the driver: an accumulator that hands on what it is given and keeps nothing.

Guarantees:
    * What a task adds reaches `deliver` once per task that Spark believed in, before its job counts as done.
    * Spark's scheduler waits while `deliver` runs: it gets bytes, and appends them to a queue.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.accumulators import AccumulatorParam

from holdfast.node.trouble import PYTHON_RAISED

_LOST_TASK: Final = re.compile(r".*\(\S+ executor \S+\): ")
"""What Spark puts before a task's own error: "Job aborted ...: Lost task ... (TID 3) (host executor driver): why"."""

_TRACEBACK: Final = "Traceback (most recent call last):"
_DAEMON: Final = "Error from python worker:"
_SPARKS_OWN: Final = re.compile(r"\n\s*(?:at |SQLSTATE|PYTHONPATH was:)")


class Mailbox(AccumulatorParam[list[bytes]]):
    """An accumulator whose value is never kept in the driver: what is added there is delivered and forgotten.

    In a task, where there is nobody to deliver to, it is an ordinary list.
    """

    def __init__(self, deliver: Callable[[bytes], None] | None) -> None:
        self._deliver = deliver
        self._in_driver = True

    def close(self) -> None:
        """Deliver nothing more. Spark keeps the accumulator for as long as it lives, and may still add to it."""
        self._deliver = None

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        if not self._in_driver:
            return value1 + value2
        deliver = self._deliver
        if deliver is not None:
            for content in value2:
                deliver(content)
        return value1

    def __getstate__(self) -> dict[str, object]:
        return {"_deliver": None, "_in_driver": False}


def reason_of(future: Any) -> str:
    """Return why a job that is done has failed."""
    try:
        future.get()
    except Py4JJavaError as error:
        return reason(error)
    return "its job succeeded all the same"


def reason(error: Py4JJavaError) -> str:
    """Return the line of a Java exception that says why; a future has wrapped it once more."""
    exception = error.java_exception
    cause = exception.getCause() or exception
    return _why(str(cause.getMessage() or cause.toString()))


def _why(text: str) -> str:
    """Return the line that says why a job failed, out of everything that Spark says of it."""
    for marks in (_DAEMON, _TRACEBACK):
        _, found, said = text.partition(marks)
        # What Python said last is what went wrong; Spark's own words follow it.
        lines = _SPARKS_OWN.split(said, 1)[0].strip().splitlines()
        if found and lines:
            return (PYTHON_RAISED if marks == _TRACEBACK else "") + lines[-1].strip()
    lines = text.splitlines()
    return _LOST_TASK.sub("", lines[0]) if lines else "the job failed"
