"""A cluster that loses machines under load, in every way: each row comes out once, and right."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.arena import Arena, arena_in
from tests.chaos.cluster_under_test import ClusterUnderTest, cluster_under_test, kill_all, signal_all
from tests.chaos.feed import Feed
from tests.chaos.oracle import check_digests, check_rows, counted, rows_in
from tests.chaos.processes import NodeProcess, descendants, is_alive, wait_until
from tests.chaos.tally import Tally

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]


def lose_executor(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Kill the executor's JVM; its worker starts another one."""
    lost = cluster.jvms(number)
    kill_all(lost)
    goes_on(True)
    cluster.wait_for_executor(number, lost)


def lose_python(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Kill the executor's Python, daemon and workers."""
    kill_all(cluster.pythons(number))
    goes_on(False)
    cluster.wait_for_executor(number)


def lose_host(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Kill everything on a host at once; it comes back later."""
    kill_all(cluster.host(number))
    goes_on(True)
    cluster.cluster.start_worker(number)
    cluster.wait_for_executor(number)


def freeze_executor(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Stop the JVM alone until it counts as lost: its Python goes on, and finishes what nobody waits for."""
    frozen = cluster.jvms(number)
    signal_all(frozen, signal.SIGSTOP)
    goes_on(True)
    signal_all(frozen, signal.SIGCONT)
    cluster.wait_for_executor(number, frozen)


def freeze_host(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Stop everything on a host, and let it go on when others have taken its place."""
    frozen = cluster.host(number)
    signal_all(frozen, signal.SIGSTOP)
    goes_on(True)
    signal_all(frozen, signal.SIGCONT)
    wait_until(lambda: not any(map(is_alive, frozen[1:])), "waiting for the zombies to end")
    cluster.wait_for_executor(number, frozen)


def cut_the_wire(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Let nothing pass between the executor and the driver, and then again."""
    (lost,) = cluster.jvms(number)
    assert cluster.wire.cut(lost) > 0, "the executor talks to the driver by the wire"
    goes_on(True)
    cluster.wire.mend()
    cluster.wait_for_executor(number, [lost])


def one_more(cluster: ClusterUnderTest, number: int, goes_on: Callable[[bool], None]) -> None:
    """Add a host: units move to it while the others go on."""
    cluster.cluster.start_worker(3)
    cluster.wait_for_executor(3)


class Losses:
    """How often the node's Spark has said that it lost an executor of a host."""

    def __init__(self, node: NodeProcess, host: str) -> None:
        self._node = node
        self._words = f"on {host}: "
        self._before = self._count()

    def wait(self) -> None:
        wait_until(lambda: self._count() > self._before or not self._node.lives, "waiting for a loss to be known")
        assert self._node.lives, self._node.said()

    def _count(self) -> int:
        lines = self._node.said().splitlines()
        return sum("Lost executor" in line and self._words in line for line in lines)


def arrange(arena: Arena, cluster: ClusterUnderTest, node: NodeProcess, consumer: Consumer, count: int) -> None:
    """Wait until all executors work, and results come."""
    for number in range(count):
        cluster.wait_for_executor(number)
    arena.wait_for_rows(consumer, node)


@pytest.mark.parametrize(
    ("kind", "seed", "faults"),
    [
        ("count", 11, [lose_executor, freeze_host, lose_python, one_more, lose_host]),
        ("running", 12, [cut_the_wire, lose_host, freeze_executor, lose_executor]),
    ],
)
def test_nothing_is_lost_doubled_or_changed_when_machines_go(
    tmp_path: Path, kind: str, seed: int, faults: list[Callable[..., None]]
) -> None:
    with arena_in(tmp_path, seed) as arena, cluster_under_test(arena.states) as cluster:
        feed = Feed(tmp_path, seed)
        node = arena.start(kind, *cluster.options)
        try:
            tally = Tally(arena.store)
            with Consumer(arena.store, "totals") as consumer:
                arrange(arena, cluster, node, consumer, 3)
                for fault in faults:
                    arena.pause(0.2, 2.0)
                    number = arena.rng.randrange(3)
                    print(f"{fault.__name__} at {number}", flush=True)
                    losses = Losses(node, f"127.0.0.{number + 2}")

                    def goes_on(is_lost: bool, losses: Losses = losses) -> None:
                        if is_lost:
                            losses.wait()
                        arena.wait_for_rows(consumer, node)

                    fault(cluster, number, goes_on)
                    arena.wait_for_rows(consumer, node)
                    tally.take(dies=arena.rng.random() < 0.3)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end(kind, *cluster.options)
        tally.take(dies=False)
        tally.close()
        rows = rows_in(tmp_path)
        check_rows(kind, rows, feed.tables())
        assert counted(tally.rows) == counted(rows)
        check_digests(tmp_path, seed, feed.tables())


def test_jobs_of_the_users_own_do_not_starve_the_waves(tmp_path: Path) -> None:
    with arena_in(tmp_path, 13) as arena, cluster_under_test(arena.states, executors=2) as cluster:
        feed = Feed(tmp_path, 13)
        node = arena.start("running", "--own-job", *cluster.options)
        try:
            with Consumer(arena.store, "totals", wait="120 seconds") as consumer:
                for _ in range(10):
                    arena.wait_for_rows(consumer, node)
            node.stop()
            feed.finish()
        finally:
            feed.leave()
        arena.run_to_the_end("running", *cluster.options)
        check_rows("running", rows_in(tmp_path), feed.tables())


def test_a_cluster_goes_with_whoever_started_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "cluster", "start", "--executors", "1", "--json"]
    for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as starter:
            assert starter.stdout is not None
            started = json.loads(starter.stdout.readline())
            assert started["event"] == "started" and started["master"].startswith("spark://127.0.0.1:")
            parts = descendants(starter.pid)
            assert len(parts) == 2, "a master and a worker"
            starter.send_signal(number)
            assert starter.wait(60) == status
        wait_until(lambda: not any(map(is_alive, parts)), "waiting for master and worker to end")  # noqa: B023
