"""A real standalone cluster whose executors lie on hosts of their own, each with its own memory for state."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.processes import command_line, descendants, is_alive, wait_until
from tests.chaos.wire import Wire, free_ports

from holdfast.spark.cluster import Cluster

DRIVER, TOLD = "127.0.0.1", "127.0.0.9"
"""Where the driver listens, and where its executors are told that it does."""


class ClusterUnderTest:
    """Knows which processes make up each host, and breaks them."""

    def __init__(self, cluster: Cluster, wire: Wire, ports: list[int]) -> None:
        self.cluster = cluster
        self.wire = wire
        self._ports = ports

    @property
    def options(self) -> list[str]:
        """What a node has to be told to use it."""
        settings = {
            "spark.master": self.cluster.url,
            "spark.executor.memory": "600m",
            "spark.driver.bindAddress": DRIVER,
            "spark.driver.host": TOLD,
            "spark.driver.port": str(self._ports[0]),
            "spark.driver.blockManager.port": str(self._ports[1]),
        }
        return [f"--conf={name}={value}" for name, value in settings.items()]

    def jvms(self, number: int) -> list[int]:
        """Return the executor JVMs of a worker."""
        worker = self.cluster.workers[number].process.pid
        return [pid for pid in descendants(worker) if b"CoarseGrainedExecutorBackend" in command_line(pid)]

    def pythons(self, number: int) -> list[int]:
        """Return the daemon and the workers of a worker's executor."""
        worker = self.cluster.workers[number].process.pid
        return [pid for pid in descendants(worker) if b"holdfast.spark.daemon" in command_line(pid)]

    def host(self, number: int) -> list[int]:
        """Return every process of a host, the worker first."""
        return [self.cluster.workers[number].process.pid, *self.jvms(number), *self.pythons(number)]

    def wait_for_executor(self, number: int, not_these: list[int] | None = None) -> None:
        """Wait until the worker's executor runs Python; with `not_these`, until another one does."""

        def is_there() -> bool:
            return bool(set(self.jvms(number)) - set(not_these or [])) and bool(self.pythons(number))

        wait_until(is_there, f"waiting for an executor of worker {number}")


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(pids: list[int]) -> None:
    signal_all(pids, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), "waiting for killed processes")


@contextlib.contextmanager
def cluster_under_test(states: Path, executors: int = 3) -> Iterator[ClusterUnderTest]:
    """Give a test a cluster; the states of each of its hosts lie in a folder of their own."""
    ports = free_ports(DRIVER, 2)
    wire = Wire(TOLD, DRIVER, ports)
    environment = {number: {"HOLDFAST_STATE_DIR": str(states / f"host{number}")} for number in range(executors + 2)}
    try:
        with Cluster.start(executors, memory="600m", own_hosts=True, environment=environment) as cluster:
            yield ClusterUnderTest(cluster, wire, ports)
    finally:
        wire.close()
