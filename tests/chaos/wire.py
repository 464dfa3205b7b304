"""A wire between executors and their driver that can be cut and mended, for one process or for all.

The driver listens on one loopback address, and tells executors another one, where this wire listens on the same port.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

CHUNK = 1 << 16


class _Link:
    """One connection. A thread for each direction: an end that takes nothing holds up nobody else."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self._sockets = (client, server)
        self.client_port: int = client.getpeername()[1]
        self.is_open = threading.Event()
        self.is_open.set()
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def close(self) -> None:
        self.is_open.set()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(CHUNK):
                self.is_open.wait()
                target.sendall(content)
        self.is_open.wait()
        self.close()


class Wire:
    """Carries bytes from `listen` to `target` on each of the ports."""

    def __init__(self, listen: str, target: str, ports: list[int]) -> None:
        self._target = target
        self._links: list[_Link] = []
        self._listeners = [socket.create_server((listen, port)) for port in ports]
        for listener, port in zip(self._listeners, ports, strict=True):
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def cut(self, pid: int) -> int:
        """Carry nothing more for a process, either way, and tell nobody; return how many connections it has."""
        ports = ports_of(pid)
        links = [link for link in self._links if link.client_port in ports]
        for link in links:
            link.is_open.clear()
        return len(links)

    def mend(self) -> None:
        """Carry everything again, what waited in between first."""
        for link in self._links:
            link.is_open.set()

    def close(self) -> None:
        for listener in self._listeners:
            # Closing alone does not wake who waits in it.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for link in self._links:
            link.close()

    def _accept(self, listener: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    self._links.append(_Link(client, socket.create_connection((self._target, port))))
                except OSError:
                    client.close()


def ports_of(pid: int) -> set[int]:
    """Return the local ports of a process's TCP connections."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            name = os.readlink(entry.path)
            if name.startswith("socket:["):
                inodes.add(name[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[9] in inodes:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return ports


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
