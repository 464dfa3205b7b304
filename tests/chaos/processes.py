"""Real processes: a node with its JVM, daemon and workers, found and killed by what they are."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SCRIPT = Path(__file__).with_name("pipeline_under_test.py")
PATH = os.pathsep.join(filter(None, [str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH")]))
"""Where the scripts of nodes find the tests' own modules."""
ARCHIVE_BUILDER = b"holdfast.spark.jvm"
"""Makes the class archive once for all, and may outlive whoever needed it first."""
PATIENCE_S = 120.0
"""How long a condition may take on a busy machine. Nothing here says how fast anything is."""


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return as soon as the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.05)


class NodeProcess:
    """A node in a session of its own. What it says is appended to `node.log` in its folder."""

    def __init__(self, folder: Path, states: Path, kind: str, *options: str, script: Path = SCRIPT) -> None:
        self._orphans: list[int] = []
        self.messages = folder / "node.log"
        self.said_from = self.messages.stat().st_size if self.messages.exists() else 0
        with open(self.messages, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(folder), kind, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=os.environ | {"HOLDFAST_STATE_DIR": str(states), "PYTHONPATH": PATH},
            )

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def jvms(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if b"org.apache.spark.deploy" in command_line(pid)]

    def workers(self) -> list[int]:
        """Return the forked workers: children of a daemon."""
        daemons = set(self._daemons())
        return [pid for pid in daemons if parent_of(pid) in daemons]

    def managers(self) -> list[int]:
        """Return the daemons that fork workers."""
        daemons = set(self._daemons())
        return [pid for pid in daemons if parent_of(pid) not in daemons]

    def _daemons(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if b"holdfast.spark.daemon" in command_line(pid)]

    def kill(self) -> None:
        """SIGKILL the node's Python alone, as a crash would; its JVM finds its input closed."""
        self._orphans += [pid for pid in descendants(self.process.pid) if ARCHIVE_BUILDER not in command_line(pid)]
        self.process.kill()
        self.process.wait()

    def has_orphans(self) -> bool:
        """Return whether the JVM, the daemon or a worker of a killed node still runs."""
        return any(map(is_alive, self._orphans))

    def signal_all(self, pids: list[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the node to stop; it has to end by itself, with success."""
        self.process.send_signal(number)
        assert self.ended() == 0, self.said()

    def ended(self) -> int:
        """Return the exit status, as soon as the node has ended by itself."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not end within {PATIENCE_S} s: {self.said()}") from None

    def end(self) -> None:
        """Leave nothing behind."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Return what this node has said, and where that is kept."""
        content = self.messages.read_bytes()[self.said_from :].decode(errors="replace")
        return f"({self.messages}) {content}"


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


def is_alive(pid: int) -> bool:
    """Return whether a process still runs; one that nobody has asked for its exit status does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1
