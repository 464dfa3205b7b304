"""Run one measurement in a Python process of its own, and take its result as JSON.

Every Spark session, ours or a peer's, lives in such a process: settings, compiled code and memory of one
measurement never reach the next.

Invariants:
    * When `run` returns or raises, the process and everything it started have ended.
    * A measurement that fails or outlives its limit is a result that says so, not an exception: one slow peer must
      not cost the figures of the others.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOG_LINES_SHOWN = 4


def environment_of(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with `bench` and the Python in use in it, for a child and its workers."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    environment["PYSPARK_PYTHON"] = sys.executable
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    environment.update(extra or {})
    return environment


def command_of(target: str, options: Mapping[str, Any], result: Path) -> list[str]:
    """Return the command that calls `module:function` with `options` and writes what it returns to `result`."""
    return [sys.executable, "-m", "bench.process", target, json.dumps(dict(options)), str(result)]


def run(
    target: str, options: Mapping[str, Any], time_limit_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Call `module:function(**options)` in a new process and return its result, or `{"failed": why}`."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        result, log = Path(scratch, "result.json"), Path(scratch, "log")
        with log.open("wb") as output:
            process = start(command_of(target, options, result), output, environment)
            try:
                process.wait(timeout=time_limit_s)
            except subprocess.TimeoutExpired:
                return {"failed": f"{target} was ended at its time limit of {time_limit_s:.0f} s"}
            finally:
                end(process)
        if result.exists():
            value: dict[str, Any] = json.loads(result.read_text())
            return value
        return {"failed": f"{target} ended with status {process.returncode}: {last_words(log)}"}


def last_words(log: Path) -> str:
    """Return the end of what a process printed, without the marks below the lines of a traceback."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return " | ".join([line for line in lines if line.strip("^~ ")][-LOG_LINES_SHOWN:])


def start(command: list[str], output: Any, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start `command` as the head of its own process group, from the folder that has `bench` in it."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment_of(environment),
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group of `process`: a JVM or a Python worker would go on using a core."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Be the new process."""
    target, options, result = sys.argv[1:]
    module, function = target.split(":")
    value = getattr(importlib.import_module(module), function)(**json.loads(options))
    beside = Path(result + ".new")
    beside.write_text(json.dumps(value))
    beside.rename(result)


if __name__ == "__main__":
    main()
