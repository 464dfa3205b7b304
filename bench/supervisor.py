"""Start a process again as soon as it has died, and say where its time went until it gave a result.

Invariants:
    * The process that is killed is killed whole: SIGKILL to its group, so its JVM and Python workers go with it.
    * The next life starts at once; there is no back-off in what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from bench import process


def mark(marks: Path, name: str) -> None:
    """Note, from inside the supervised process, that it has got so far."""
    with marks.open("a") as file:
        file.write(json.dumps({"name": name, "at_us": time.time_ns() // 1000, "process": os.getpid()}) + "\n")


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of JSON lines; one that is still being written is left for the next time."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Supervisor:
    """Runs one command at a time; `kill_and_restart` is the fault that is measured."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        self._command = command
        self._folder = folder
        self._environment = environment
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """What the present life has printed."""
        return self._folder / f"life-{self._lives}.log"

    def start(self) -> int:
        """Start a life and return its process number."""
        self._lives += 1
        with self.log.open("wb") as output:
            self._process = process.start(self._command, output, self._environment)
        return self._process.pid

    def kill_and_restart(self) -> tuple[int, int]:
        """Kill the process and start the next; return when it was killed, and the new process number."""
        assert self._process is not None
        killed_us = time.time_ns() // 1000
        process.end(self._process)
        return killed_us, self.start()

    def check_alive(self) -> None:
        """Raise if the process has ended by itself: a measurement of it would wait for nothing."""
        assert self._process is not None
        if self._process.poll() is not None:
            status, words = self._process.returncode, process.last_words(self.log)
            raise ChildProcessError(f"the measured process ended by itself with status {status}: {words}")

    def stop(self) -> None:
        if self._process is not None:
            process.end(self._process)


def shares_ms(marks: Path, life: int, killed_us: int, result_us: int) -> dict[str, float]:
    """Return how long each part of a restart took: up to each mark of that life, and from the last to the result."""
    shares: dict[str, float] = {}
    before_us = killed_us
    for line in lines_of(marks):
        if line["process"] == life:
            shares[line["name"]] = (line["at_us"] - before_us) / 1000
            before_us = line["at_us"]
    return shares | {"first_result": (result_us - before_us) / 1000}
