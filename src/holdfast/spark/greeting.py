"""What an executor says of itself before it gets work: its versions, and whether it sees the store that the node sees.

Guarantees:
    * A store that is not shared is found by reading what the node wrote, and by the node reading what is written here;
      not by the look of its path.
    * Whatever is wrong becomes a sentence of the greeting; only a Python that cannot start leaves none.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import msgspec

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.log.store import open_store, validate_name
from holdfast.node.state_folder import state_folder
from holdfast.ports import Store

TOKENS: Final = "tokens"
PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "numba", "msgspec")


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor is; `problem` is empty where nothing speaks against giving it work."""

    executor: str
    host: str
    pid: int
    python: str
    holdfast: str
    packages: dict[str, str]
    state_folder: str
    state_bytes_free: int
    problem: str = ""


DECODER: Final = msgspec.json.Decoder(Greeting)


class Token:
    """What the node writes into the store for its executors to read, and they for the node."""

    def __init__(self, store: Store, node: str, secret: str) -> None:
        self._store = store
        self._node = node
        self._secret = secret.encode()

    def write(self) -> None:
        """Write the node's, and remove those of nodes that are gone."""
        for name in self._store.list(TOKENS):
            self._store.delete(f"{TOKENS}/{name}")
        self._store.write_new(self._path("node"), self._secret)

    def answer(self, executor: str) -> str:
        """Read the node's token and write this executor's; return what is wrong, or nothing."""
        path = self._path("node")
        where = f"{self._store.url} on {socket.gethostname()}"
        try:
            found = bytes(self._store.read(path))
        except FileNotFoundError:
            return f"the store is not shared: {where} has no {path}, which the node has just written"
        except (HoldfastError, OSError) as error:
            return f"the store {where} cannot be read: {error}"
        if found != self._secret:
            return f"the store is not shared: {where} has another {path} than the node has written"
        try:
            self._store.replace(self._path(executor), self._secret)
        except (HoldfastError, OSError) as error:
            return f"the store {where} takes no files: {error}"
        return ""

    def check(self, executor: str) -> str:
        """Return what is wrong with what an executor wrote, or nothing."""
        path = self._path(executor)
        try:
            found = bytes(self._store.read(path))
        except FileNotFoundError:
            return f"the store is not shared: executor {executor} has written {path}, and the node does not see it"
        return "" if found == self._secret else f"the store is not shared: {path} is not what executor {executor} wrote"

    def remove(self) -> None:
        for name in self._store.list(TOKENS):
            if name.startswith(f"{self._node}."):
                self._store.delete(f"{TOKENS}/{name}")

    def _path(self, whose: str) -> str:
        return f"{TOKENS}/{validate_name(f'{self._node}.{whose}')}"


class Greet:
    """What runs on an executor; it travels by Spark's closure serializer."""

    def __init__(self, store_url: str | None, node: str, secret: str, executor: str, greetings: Any) -> None:
        self._store_url = store_url
        self._node = node
        self._secret = secret
        self._executor = executor
        self._greetings = greetings

    def __call__(self, rows: Iterable[int]) -> Iterator[int]:
        for _ in rows:
            pass
        problem = ""
        if self._store_url is not None:
            problem = Token(open_store(self._store_url), self._node, self._secret).answer(self._executor)
        folder = state_folder()
        greeting = Greeting(
            executor=own_executor() or self._executor,
            host=socket.gethostname(),
            pid=os.getpid(),
            python=platform.python_version(),
            holdfast=__version__,
            packages=packages(),
            state_folder=folder,
            state_bytes_free=_bytes_free(folder),
            problem=problem,
        )
        self._greetings.add([msgspec.json.encode(greeting)])
        return iter(())


@cache
def own_executor() -> str | None:
    """Return the id of the executor that this process works for, as its JVM was told; None where there is none.

    The daemon is the JVM's child, and this process the daemon's.
    """
    try:
        with open(f"/proc/{_parent_of(os.getppid())}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        return words[words.index(b"--executor-id") + 1].decode()
    except (OSError, ValueError, IndexError):
        return None


def packages() -> dict[str, str]:
    """Return the versions here of what has to be the same everywhere."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name of a process may hold anything, and ends with the last parenthesis.
        return int(file.read().rpartition(b")")[2].split()[1])


def _bytes_free(folder: str) -> int:
    """Return the room where a folder is or will be."""
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
