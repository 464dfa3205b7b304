"""The one line that matters of what Spark says about a job that failed."""

from __future__ import annotations

import pytest

from holdfast.node.trouble import PYTHON_RAISED
from holdfast.spark.mailbox import _why

LOST = "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: "
TASK = "Lost task 0.0 in stage 1.0 (TID 2) (127.0.0.1 executor 1): "


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{LOST}{TASK}java.io.IOException: Stream closed\n\tat java.base/x", "java.io.IOException: Stream closed"),
        (
            f"{LOST}{TASK}org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Traceback (most recent call "
            'last):\n  File "a.py", line 4\n    x()\nTypeError: no\n SQLSTATE: 38000\n\tat org.apache',
            f"{PYTHON_RAISED}TypeError: no",
        ),
        (
            f"{LOST}{TASK}org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: No module "
            "named 'holdfast'\nPYTHONPATH was:\n  /a:/b\norg.apache.spark.SparkException: EOFException",
            "/usr/bin/python3: No module named 'holdfast'",
        ),
        ("", "the job failed"),
    ],
)
def test_the_line_that_says_why(text: str, why: str) -> None:
    assert _why(text) == why
