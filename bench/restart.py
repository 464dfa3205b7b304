"""From SIGKILL to the first new result, with 90,000 open count windows, beside Structured Streaming.

Both run the same query on the same rhythm of tuples, and the same supervisor kills them whole and starts them again at
once. The sender goes on while nobody is there. Each with a stock JVM start and with a class archive.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench import compare, measure, process
from bench.ours.latency import wait_until_marked
from bench.ours.restart import Results
from bench.peers.count_windows import WINDOW_SIZE
from bench.sender import SCHEMA, FolderSender, Send, now_us
from bench.supervisor import Supervisor, lines_of, shares_ms

KEYS: Final = 90_000
TUPLES_PER_SECOND: Final = 1_000
BATCHES_PER_SECOND: Final = 5
"""Few and large files: a peer that comes back has fewer to open."""
RESULT_LIMIT_S: Final = 60.0
SETTLE_S: Final = 3.0
"""Between two kills, and longer in a full run: ours then has a snapshot as well."""
POLL_S: Final = 0.01
ARCHIVE_LIMIT_S: Final = 180.0


def fill(send: Send) -> None:
    """Give each key one to nine tuples: every window is open, and one in nine closes with its next tuple."""
    key = np.repeat(np.arange(KEYS), np.arange(KEYS) % (WINDOW_SIZE - 1) + 1)
    np.random.default_rng(KEYS).shuffle(key)
    for part in np.array_split(key, 4):
        sent_us = np.full(len(part), now_us())
        send(pa.table([part, np.ones(len(part)), sent_us], schema=SCHEMA))


def start_sender(target: str, options: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    """Start the steady sender in a process of its own."""
    rhythm = {"tuples_per_second": TUPLES_PER_SECOND, "batches_per_second": BATCHES_PER_SECOND, "keys": KEYS}
    command = process.command_of(target, {**options, **rhythm, "seconds": 3600}, folder / "sent")
    with (folder / "sender.log").open("wb") as output:
        return process.start(command, output)


def measure_peer(work: Path, kills: int, settle_s: float, archive: str | None) -> compare.Run:
    """Kill and restart the peer; return the seconds from each kill to the first result of the new life."""
    folder = work / f"peer-{time.time_ns()}"
    source, results, marks = folder / "source", folder / "results", folder / "marks"
    folder.mkdir(parents=True)
    fill(FolderSender(source, "parquet").open().send)
    options: dict[str, Any] = {"work": str(folder / "spark"), "source": str(source), "results": str(results)}
    command = process.command_of(
        "bench.peers.restart:serve", {**options, "marks": str(marks), "archive": archive}, folder / "ended"
    )
    supervisor = Supervisor(command, folder)
    sender = start_sender("bench.sender:send_to_folder", {"folder": str(source), "file_format": "parquet"}, folder)

    def first_result(life: int, killed_us: int) -> int | None:
        found = [line["seen_us"] for line in lines_of(results) if line["process"] == life]
        return min(found, default=None)

    try:
        life = supervisor.start()
        wait_for(supervisor, partial(first_result, life, 0))
        return kill_repeatedly(supervisor, marks, kills, settle_s, first_result)
    finally:
        supervisor.stop()
        process.end(sender)


def measure_ours(work: Path, kills: int, settle_s: float, archive: str | None) -> compare.Run:
    """Kill and restart holdfast's pipeline; return the same."""
    import holdfast as hf

    folder = work / f"holdfast-{time.time_ns()}"
    store, marks = str(folder / "store"), folder / "marks"
    folder.mkdir(parents=True)
    command = process.command_of("bench.ours.restart:serve", {"store": store, "marks": str(marks)}, folder / "ended")
    supervisor = Supervisor(command, folder, None if archive else {"HOLDFAST_CLASS_ARCHIVE": "off"})
    sender = None
    results = Results(store)
    try:
        supervisor.start()
        wait_until_marked(supervisor, marks)
        producer = hf.Producer(store, "tuples")
        fill(producer.send)
        producer.close()
        sender = start_sender("bench.sender:send_to_stream", {"store": store, "stream": "tuples"}, folder)
        results.follow()
        wait_for(supervisor, partial(results.wait_until_newer, 0, POLL_S))

        def first_result(life: int, killed_us: int) -> int | None:
            return results.wait_until_newer(killed_us, POLL_S)

        return kill_repeatedly(supervisor, marks, kills, settle_s, first_result)
    finally:
        results.close()
        supervisor.stop()
        if sender is not None:
            process.end(sender)


def kill_repeatedly(
    supervisor: Supervisor,
    marks: Path,
    kills: int,
    settle_s: float,
    first_result: Callable[[int, int], int | None],
) -> compare.Run:
    """Kill so many times, after `settle_s` of quiet each; return the times, and where they went."""
    seconds, shares = [], []
    for _ in range(kills):
        time.sleep(settle_s)
        supervisor.check_alive()
        killed_us, life = supervisor.kill_and_restart()
        seen_us = wait_for(supervisor, partial(first_result, life, killed_us))
        seconds.append((seen_us - killed_us) / 1e6)
        shares.append(shares_ms(marks, life, killed_us, seen_us))
    return {
        "restart_s": seconds,
        "median_s": measure.median(seconds),
        "shares_ms": {name: measure.median([share[name] for share in shares]) for name in shares[0]},
    }


def wait_for(supervisor: Supervisor, look: Callable[[], int | None]) -> int:
    """Return what `look` finds, once it finds something."""
    limit_s = time.monotonic() + RESULT_LIMIT_S
    while (found := look()) is None:
        supervisor.check_alive()
        if time.monotonic() > limit_s:
            raise TimeoutError(f"no result within {RESULT_LIMIT_S:.0f} s; see {supervisor.log}")
        time.sleep(POLL_S)
    return found


def guarded(run: Callable[[], compare.Run]) -> compare.Run:
    """Return the run's figures, or why it has none."""
    try:
        return run()
    except (OSError, TimeoutError) as error:
        return {"failed": str(error)}


def make_archives(program: measure.Program, data: Path, work: Path) -> str | None:
    """Make both sides' class archives, before anything is measured; return the peer's, which is kept in `data`."""
    subprocess.run(
        [sys.executable, "-m", "holdfast.spark.jvm"], env=process.environment_of(), timeout=ARCHIVE_LIMIT_S, check=False
    )
    archive = data / "peer.jsa"
    if not archive.exists():
        folder = work / "archive"
        fill(FolderSender(folder / "source", "parquet").open().send)
        options = {"work": str(folder), "source": str(folder / "source"), "archive": str(archive)}
        made = process.run("bench.peers.restart:make_archive", options, ARCHIVE_LIMIT_S)
        program.figure("peer_archive", made)
    return str(archive) if archive.exists() else None


def measure_all(program: measure.Program, data: Path, work: Path) -> dict[str, list[compare.Run]]:
    """Measure all four in turns. A quick run leaves out ours without the archive and makes none for the peer."""
    kills, settle_s = (1, SETTLE_S) if program.quick else (3, 12.0)
    archive = None if program.quick else make_archives(program, data, work)
    runs: dict[str, Callable[[], compare.Run]] = {
        "structured_streaming_stock": lambda: guarded(lambda: measure_peer(work, kills, settle_s, None)),
        "holdfast": lambda: guarded(lambda: measure_ours(work, kills, settle_s, "own")),
    }
    if not program.quick:
        runs["holdfast_without_archive"] = lambda: guarded(lambda: measure_ours(work, kills, settle_s, None))
    if archive is not None:
        runs["structured_streaming_archive"] = lambda: guarded(lambda: measure_peer(work, kills, settle_s, archive))
    return compare.in_turns(runs, program.options.rounds or (1 if program.quick else 3))


def main() -> None:
    program = measure.program("restart", __doc__ or "", compare.add_work)
    with compare.folders(program) as (data, work):
        results = measure_all(program, data, work)
    program.figures.update(results)
    compare.say_failures(program, results)
    seconds = compare.medians(results, "median_s")
    program.figure("seconds_to_first_result", seconds)
    ratio = compare.quotient(seconds["holdfast"], seconds["structured_streaming_stock"])
    compare.goal(program, "restart, part of the stock peer's", ratio, at_most=0.4)
    program.finish()


if __name__ == "__main__":
    main()
