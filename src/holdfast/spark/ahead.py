"""A daemon that is warm before Spark asks for one: it imports and warms while the JVM still starts.

1. The driver starts `python -m holdfast.spark.daemon --ahead SOCKET`, and then the JVM.
2. When Spark starts its daemon, that process (the stub) hands its standard streams and environment over to the warm
   one, which goes on as the daemon. The stub stays until the warm one has ended, for Spark to wait for.
3. Where there is nobody to hand over to, the stub becomes the daemon itself, as if there were no such thing.

Guarantees:
    * It is handed over to at most once, by a process of the same user: the socket lies in a folder of its own.
    * The warm process ends when the driver ends before the handover; afterwards it is Spark's, like any daemon: it and
      the stub end together.
    * It never changes what a worker sees: environment, arguments, folder and module path are those of the stub.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from typing import Final

VARIABLE: Final = "HOLDFAST_DAEMON_SOCKET"
"""In the JVM's environment, and from there in the stub's."""

OPTION: Final = "--ahead"
LOOK_EVERY_S: Final = 0.5
HANDOVER_LIMIT_S: Final = 60.0
_LENGTH: Final = struct.Struct("!I")
_STREAMS: Final = (0, 1, 2)
_TAKEN, _REFUSED = b"y", b"n"


def start(python: str) -> None:
    """Start a warm daemon, and name its socket in the environment, for the JVM to inherit."""
    # As PySpark gives it to every worker: whatever hashes in one has to hash alike in all.
    seed = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    folder = tempfile.mkdtemp(prefix="holdfast-daemon-")
    path = os.path.join(folder, "socket")
    command = [python, "-m", "holdfast.spark.daemon", OPTION, path, str(os.getpid())]
    nowhere = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1)]
    try:
        # A group of its own: Ctrl-C is for the driver to answer.
        os.posix_spawn(command[0], command, os.environ | seed, file_actions=nowhere, setpgroup=0)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return
    os.environ[VARIABLE] = path


def wait_for_stub(path: str, driver: int, warm: Callable[[], None]) -> bool:
    """Warm up, then take the place of the stub that comes; False if none came while the driver lived."""
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(path)
            listening.listen(1)
            warm()
            listening.settimeout(LOOK_EVERY_S)
            while os.getppid() == driver:
                with contextlib.suppress(TimeoutError):
                    stub, _ = listening.accept()
                    return _take_over(stub)
            return False
    finally:
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def hand_over() -> None:
    """Called by the stub: return if nobody is there to take over, else never."""
    path = os.environ.pop(VARIABLE, None)
    if path is None:
        return
    place = {"argv": sys.argv, "environment": dict(os.environ), "folder": os.getcwd(), "path": sys.path}
    content = json.dumps(place).encode()
    warm = socket.socket(socket.AF_UNIX)
    warm.settimeout(HANDOVER_LIMIT_S)
    try:
        warm.connect(path)
        socket.send_fds(warm, [_LENGTH.pack(len(content))], list(_STREAMS))
        warm.sendall(content)
        taken = warm.recv(1) == _TAKEN
    except OSError:
        taken = False
    if not taken:
        warm.close()
        return
    # From here on the streams are the other one's: a copy kept open here would hide their end.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in _STREAMS:
        os.dup2(nowhere, descriptor)
    warm.settimeout(None)
    with contextlib.suppress(OSError):
        warm.recv(1)
    os._exit(0)


def _take_over(stub: socket.socket) -> bool:
    stub.settimeout(HANDOVER_LIMIT_S)
    length, streams, _, _ = socket.recv_fds(stub, _LENGTH.size, len(_STREAMS))
    content = b""
    wanted = _LENGTH.unpack(length)[0]
    while len(content) < wanted:
        more = stub.recv(wanted - len(content))
        if not more:
            return False
        content += more
    place = json.loads(content)
    if place["environment"].get("PYTHONHASHSEED") != os.environ.get("PYTHONHASHSEED"):
        # That is settled when an interpreter starts.
        stub.sendall(_REFUSED)
        return False
    for descriptor, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, descriptor)
        os.close(stream)
    os.environ.clear()
    os.environ.update(place["environment"])
    os.chdir(place["folder"])
    sys.argv = place["argv"]
    sys.path += [folder for folder in place["path"] if folder not in sys.path]
    stub.sendall(_TAKEN)
    _end_together(stub)
    return True


def _end_together(stub: socket.socket) -> None:
    """Make the two processes one: each ends when the other does, whatever ended it."""
    # Never closed: the stub sees the end of this process by it.
    _stubs.append(stub)
    daemon = os.getpid()

    def end(number: int, frame: object) -> None:
        # A worker that was forked has the handler too, and nothing to do with the stub.
        if os.getpid() == daemon:
            os._exit(1)

    signal.signal(signal.SIGIO, end)
    fcntl.fcntl(stub, fcntl.F_SETOWN, daemon)
    fcntl.fcntl(stub, fcntl.F_SETFL, fcntl.fcntl(stub, fcntl.F_GETFL) | os.O_ASYNC)
    readable, _, _ = select.select([stub], [], [], 0.0)
    if readable:
        # It ended before the kernel was asked to tell.
        os._exit(1)


_stubs: list[socket.socket] = []
