"""The daemon that is warm before Spark asks for it: it takes the stub's place, and where it is not, the stub serves."""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.spark import ahead

LIMIT_S = 60.0
Seen = tuple[str, str | None, str | None, str]


def look(rows: Iterable[int]) -> Iterator[Seen]:
    for _ in rows:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        yield parent, os.environ.get(ahead.VARIABLE), os.environ.get("PYTHONHASHSEED"), os.getcwd()


def test_workers_are_forked_by_the_warm_daemon_and_see_what_they_would_have_seen(spark: SparkSession) -> None:
    found = set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect())
    assert len(found) == 1
    parent, socket, seed, folder = found.pop()
    assert ahead.OPTION in parent
    assert (socket, seed, folder) == (None, os.environ.get("PYTHONHASHSEED", "0"), os.getcwd())
    assert ahead.VARIABLE not in os.environ, "a program that this one starts would take the warm daemon for its own"


def test_a_stub_that_finds_nobody_becomes_the_daemon_itself(tmp_path: Path) -> None:
    environment = os.environ | {ahead.VARIABLE: str(tmp_path / "nobody"), "PYTHON_WORKER_FACTORY_SECRET": "secret"}
    command = [sys.executable, "-m", "holdfast.spark.daemon", "pyspark.worker"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None
        # The first thing that a daemon says is where it listens.
        assert struct.unpack("!i", daemon.stdout.read(4))[0] > 0
        daemon.stdin.close()
        daemon.wait(LIMIT_S)


def test_a_warm_daemon_ends_with_a_driver_that_never_needed_it(tmp_path: Path) -> None:
    program = (
        "import os, sys; from holdfast.spark import ahead; "
        "ahead.start(sys.executable); print(os.environ[ahead.VARIABLE])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip()).parent
    waiting = _daemon_of(folder)
    if waiting is not None:
        with contextlib.suppress(ProcessLookupError):
            ended, _, _ = select.select([os.pidfd_open(waiting)], [], [], LIMIT_S)
            assert ended, "the warm daemon outlived its driver"
    assert not folder.exists()


def _daemon_of(folder: Path) -> int | None:
    """Return the process that waits at the socket in that folder; None if it has ended."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if ahead.OPTION.encode() in command and str(folder).encode() in command:
                return int(process.name)
    return None
