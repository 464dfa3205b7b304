"""Real processes: a node with its JVM, daemon and workers, found and killed by what they are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SCRIPT = Path(__file__).with_name("pipeline_under_test.py")


class NodeProcess:
    """A node in a session of its own."""

    def __init__(self, folder: Path, kind: str, available_now: bool = False) -> None:
        options = ["--available-now"] if available_now else []
        self.messages = folder / "node.log"
        with open(self.messages, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), kind, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def daemons(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if b"holdfast.spark.daemon" in command_line(pid)]

    def workers(self) -> list[int]:
        """Return the forked workers: children of a daemon."""
        daemons = set(self.daemons())
        return [pid for pid in daemons if parent_of(pid) in daemons]

    def managers(self) -> list[int]:
        """Return the daemons that fork workers."""
        return [pid for pid in self.daemons() if parent_of(pid) not in self.daemons()]

    def kill(self) -> None:
        """SIGKILL the node's Python alone, as a crash would; its JVM finds its input closed."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Leave nothing behind."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self.messages.read_text(errors="replace")


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1
