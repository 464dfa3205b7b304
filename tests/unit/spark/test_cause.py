"""Of what Spark says about a query's end, the line that a person wants to read."""

from __future__ import annotations

import pytest

from holdfast.errors import LogFull
from holdfast.spark.ingest import cause_of

LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage "
    "3.0 (TID 4) (127.0.0.1 executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly "
    "(crashed)\n\tat org.apache.spark.Something"
)
RAISED = (
    "Job aborted due to stage failure: Task 0 failed (h executor driver): org.apache.spark.api.python.PythonException: "
    'Traceback (most recent call last):\n  File "x.py", line 3, in f\n    raise ValueError("no")\nValueError: no such '
    "till\n\n\tat org.apache.spark.Something"
)
WRAPPED = "An error occurred while calling o6.getResult.\n: x.SparkException: awaitResult\n\tat x.Y\nCaused by: {}"
STREAM = (
    "[STREAM_FAILED] Query [id = 5, runId = 6] terminated with exception: Failed to construct kafka consumer SQLSTATE: "
    "XXKST\n=== Streaming Query ===\nIdentifier: x"
)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError(LOST), "Python worker exited unexpectedly (crashed)"),
        (RuntimeError(RAISED), "ValueError: no such till"),
        (RuntimeError(STREAM), "Failed to construct kafka consumer"),
        (RuntimeError(WRAPPED.format(LOST)), "Python worker exited unexpectedly (crashed)"),
        (RuntimeError(WRAPPED.format("java.net.ConnectException: refused")), "java.net.ConnectException: refused"),
        (LogFull("it is full"), "LogFull: it is full"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_the_cause_is_found(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause
