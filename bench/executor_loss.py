"""kill -9 of one of three executors with large state: how long results stop, of units elsewhere and of units lost.

Both run a running aggregate over the same keys on a standalone cluster of three executors, each on a host of its own,
and get the same steady tuples. Ours is seen unit by unit in the journal; a Structured Streaming query commits all its
partitions at once, so for it there is one gap.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bench import compare, measure, process
from bench.restart import start_sender
from bench.sender import SCHEMA, FolderSender, Send, now_us
from bench.supervisor import lines_of

if TYPE_CHECKING:
    from holdfast.spark.cluster import Cluster

KEYS: Final = 3_000_000
"""About 300 MB of state on our side."""
KEYS_QUICK: Final = 300_000
EXECUTORS: Final = 3
CALM_S: Final = 8.0
AFTER_S: Final = 25.0
LIMIT_S: Final = 180.0
FILES: Final = 12


def fill(send: Send, keys: int) -> None:
    """Give each key a tuple."""
    key = np.random.default_rng(keys).permutation(keys)
    for part in np.array_split(key, FILES):
        send(pa.table([part, np.ones(len(part)), np.full(len(part), now_us())], schema=SCHEMA))


class Gaps:
    """The longest time without a result, before the kill and after it, by who it is that gives results."""

    def __init__(self) -> None:
        self._seen: dict[Any, list[float]] = defaultdict(list)
        self._generations: dict[Any, set[int]] = defaultdict(set)
        self._lock = threading.Lock()

    def saw(self, who: Any, at_s: float, generation: int = 0) -> None:
        with self._lock:
            self._seen[who].append(at_s)
            self._generations[who].add(generation)

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._seen.values()))

    def longest_ms(self, start_s: float, end_s: float, who: Callable[[Any], bool] = lambda _: True) -> float | None:
        """Return the longest gap that touches the range, over all of `who`."""
        longest: float | None = None
        with self._lock:
            for name, times in self._seen.items():
                if not who(name):
                    continue
                inside = [start_s, *(at for at in times if start_s < at < end_s), end_s]
                gap = max((b - a) * 1000 for a, b in itertools.pairwise(inside))
                longest = gap if longest is None else max(longest, gap)
        return longest

    def moved(self) -> set[Any]:
        """Return those that were begun anew somewhere."""
        with self._lock:
            return {who for who, generations in self._generations.items() if len(generations) > 1}

    def forget(self) -> None:
        with self._lock:
            self._seen.clear()
            self._generations.clear()


def executor_of(cluster: Cluster, number: int) -> int:
    """Return the process of the JVM of a worker's executor."""
    worker = cluster.workers[number].process.pid
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    tasks = [Path(f"/proc/{worker}/task/{task}/children") for task in os.listdir(f"/proc/{worker}/task")]
    children += [child for file in tasks for child in file.read_text().split()]
    for child in map(int, children):
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    raise RuntimeError(f"worker {number} has no executor")


def kill_in_calm(cluster: Cluster, gaps: Gaps, alive: Callable[[], object]) -> tuple[float, float, float]:
    """Wait for steady results, kill an executor; return when the calm began, when it was killed, and the end."""
    began_s = time.monotonic()
    while gaps.count() == 0:
        alive()
        if time.monotonic() - began_s > LIMIT_S:
            raise RuntimeError(f"no result within {LIMIT_S:.0f} s")
        time.sleep(0.05)
    wait(2 * CALM_S, alive)
    gaps.forget()
    calm_s = time.monotonic()
    wait(CALM_S, alive)
    victim = executor_of(cluster, 1)
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait(AFTER_S, alive)
    return calm_s, killed_s, time.monotonic()


def wait(seconds: float, alive: Callable[[], object]) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        alive()
        time.sleep(0.05)


def measure_ours(work: Path, keys: int) -> compare.Run:
    from holdfast.spark.cluster import Cluster

    folder = work / f"ours-{time.time_ns()}"
    folder.mkdir(parents=True)
    store = str(folder / "store")
    states = Path("/dev/shm") / f"holdfast-bench-{time.time_ns()}"
    hosts = {number: {"HOLDFAST_STATE_DIR": str(states / f"host{number}")} for number in range(EXECUTORS)}
    sender: subprocess.Popen[bytes] | None = None
    node: subprocess.Popen[bytes] | None = None
    gaps = Gaps()
    stop = threading.Event()
    try:
        with Cluster.start(EXECUTORS, memory="1g", own_hosts=True, environment=hosts) as cluster:
            command = process.command_of(
                "bench.ours.executor_loss:serve", {"store": store, "master": cluster.url}, folder / "ended"
            )
            with (folder / "node.log").open("wb") as output:
                node = process.start(command, output)
            _fill_ours(store, keys)
            sender = start_sender("bench.sender:send_to_stream", {"store": store, "stream": "tuples"}, folder)
            follower = threading.Thread(target=_follow, args=(store, gaps, stop), daemon=True)
            follower.start()
            calm_s, killed_s, end_s = kill_in_calm(cluster, gaps, lambda: _check(node, folder / "node.log"))
            stop.set()
            follower.join()
            moved = gaps.moved()
            state_bytes = sum(file.stat().st_blocks * 512 for file in states.rglob("*") if file.is_file())
            return {
                "state_mb": state_bytes / 1e6,
                "units_moved": len(moved),
                "gap_before_ms": gaps.longest_ms(calm_s, killed_s),
                "gap_elsewhere_ms": gaps.longest_ms(killed_s, end_s, lambda who: who not in moved),
                "gap_lost_ms": gaps.longest_ms(killed_s, end_s, lambda who: who in moved),
            }
    finally:
        stop.set()
        for each in (sender, node):
            if each is not None:
                process.end(each)
        shutil.rmtree(states, ignore_errors=True)


def _fill_ours(store: str, keys: int) -> None:
    import holdfast as hf

    with hf.Producer(store, "tuples", wait="2 minutes") as producer:
        fill(producer.send, keys)


def _follow(store: str, gaps: Gaps, stop: threading.Event) -> None:
    """Note each unit's commits of results, as they appear in the journal."""
    from holdfast.connect.catalog import locate
    from holdfast.log.stream_reader import StreamReader
    from holdfast.model import UnitCommitted

    reader = StreamReader(locate(store, "totals").store, "totals")
    while not stop.is_set():
        items = reader.poll()
        now_s = time.monotonic()
        for item in items:
            if isinstance(item, UnitCommitted):
                gaps.saw(item.shard, now_s, item.generation)
        if not items:
            reader.wait(0.1)
    reader.close()


def measure_peer(work: Path, keys: int) -> compare.Run:
    from holdfast.spark.cluster import Cluster, cluster_settings

    folder = work / f"peer-{time.time_ns()}"
    source, results = folder / "source", folder / "results"
    folder.mkdir(parents=True)
    sender: subprocess.Popen[bytes] | None = None
    query: subprocess.Popen[bytes] | None = None
    gaps = Gaps()
    stop = threading.Event()
    try:
        with Cluster.start(EXECUTORS, memory="1g", own_hosts=True) as cluster:
            fill(FolderSender(source, "parquet").open().send, keys)
            settings = {"spark.master": cluster.url} | cluster_settings(cluster.url)
            options = {"work": str(folder / "spark"), "source": str(source), "results": str(results)}
            command = process.command_of(
                "bench.peers.executor_loss:serve", {**options, "settings": settings}, folder / "ended"
            )
            with (folder / "query.log").open("wb") as output:
                query = process.start(command, output)
            sender = start_sender(
                "bench.sender:send_to_folder", {"folder": str(source), "file_format": "parquet"}, folder
            )
            follower = threading.Thread(target=_follow_lines, args=(results, gaps, stop), daemon=True)
            follower.start()
            calm_s, killed_s, end_s = kill_in_calm(cluster, gaps, lambda: _check(query, folder / "query.log"))
            stop.set()
            follower.join()
            return {
                "gap_before_ms": gaps.longest_ms(calm_s, killed_s),
                "gap_all_ms": gaps.longest_ms(killed_s, end_s),
            }
    finally:
        stop.set()
        for each in (sender, query):
            if each is not None:
                process.end(each)


def _follow_lines(results: Path, gaps: Gaps, stop: threading.Event) -> None:
    known = 0
    while not stop.is_set():
        lines = lines_of(results)
        for _ in lines[known:]:
            gaps.saw("query", time.monotonic())
        known = len(lines)
        time.sleep(0.02)


def _check(running: subprocess.Popen[bytes] | None, log: Path) -> None:
    assert running is not None
    if running.poll() is not None:
        raise RuntimeError(f"it ended with status {running.returncode}: {process.last_words(log)}")


def guarded(call: Callable[[], compare.Run]) -> compare.Run:
    try:
        return call()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def main() -> None:
    program = measure.program("executor_loss", __doc__ or "", compare.add_work)
    keys = KEYS_QUICK if program.quick else KEYS
    with compare.folders(program) as (_, work):
        runs: dict[str, Callable[[], compare.Run]] = {
            "structured_streaming_rocksdb": lambda: guarded(lambda: measure_peer(work, keys)),
            "holdfast": lambda: guarded(lambda: measure_ours(work, keys)),
        }
        results = compare.in_turns(runs, program.options.rounds or 1)
    program.figures.update(results)
    compare.say_failures(program, results)
    for figure in ("state_mb", "gap_before_ms", "gap_elsewhere_ms", "gap_lost_ms", "gap_all_ms"):
        program.figure(figure, compare.medians(results, figure))
    before = compare.median_of(results["holdfast"], "gap_before_ms")
    elsewhere = compare.median_of(results["holdfast"], "gap_elsewhere_ms")
    goal = "units elsewhere: longest gap, times the longest before the kill"
    compare.goal(program, goal, compare.quotient(elsewhere, before), at_most=2)
    lost = compare.median_of(results["holdfast"], "gap_lost_ms")
    compare.goal(program, "units lost: seconds without results", None if lost is None else lost / 1000, at_most=2.2)
    program.finish()


if __name__ == "__main__":
    main()
