"""The demo: sales come in while the node dies by SIGKILL and comes back; then everything is counted.

1. A node starts on an empty store. Two shops sell: one sends rows, one drops files.
2. In the middle of the day the node and its JVM are killed. The shops go on selling.
3. A new node takes over and catches up. When the shops have closed, every window is ended.
4. The same day again, without a kill, and once more by Spark alone over the logged input (`toSpark`).
5. The three results are compared, row by row.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from holdfast.cli.output import print_json
from holdfast.connect.consumer import Consumer
from holdfast.connect.producer import Producer
from holdfast.demo.sales import NAME, PIECES, piece_of
from holdfast.errors import PipelineFailed

Rows = list[dict[str, Any]]
Results = list[tuple[Any, Any]]
PACE_S = 0.15
KILL_AT = PIECES // 2
START_S = 100.0
FAULTS = ("lost", "duplicated", "different")


class Shops:
    """Sells the day's pieces at a steady pace, to a `Producer` and into a folder."""

    def __init__(self, folder: Path, pace_s: float) -> None:
        self._folder = folder
        self._pace_s = pace_s
        self._reached = threading.Condition()
        self._sold = 0
        self._error: BaseException | None = None
        self._hold = threading.Event()
        self._thread = threading.Thread(target=self._sell, daemon=True)
        (folder / "south").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Shops:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._hold.set()
        self._thread.join()

    def wait_until_sold(self, pieces: int) -> None:
        while not self.has_sold(pieces, 3600.0):
            continue

    def has_sold(self, pieces: int, wait_s: float) -> bool:
        """Return whether so much is sold within the time; raise what stopped the shops."""
        with self._reached:
            self._reached.wait_for(lambda: self._sold >= pieces or self._error is not None, wait_s)
        if self._error is not None:
            raise self._error
        return self._sold >= pieces

    def _sell(self) -> None:
        try:
            with Producer(
                str(self._folder / "store"), "north", name="north", wait=f"{START_S:.0f} seconds"
            ) as producer:
                for number in range(PIECES):
                    started = time.monotonic()
                    producer.send(piece_of(0, number))
                    self._drop(number)
                    with self._reached:
                        self._sold = number + 1
                        self._reached.notify_all()
                    self._hold.wait(max(0.0, self._pace_s - (time.monotonic() - started)))
                # The boundary moves on while the producer is there: it leaves when the shops close.
                self._hold.wait()
        except BaseException as error:
            with self._reached:
                self._error = error
                self._reached.notify_all()

    def _drop(self, number: int) -> None:
        """Write a file under another name first: a file appears whole."""
        target = self._folder / "south" / f"{number:04d}.parquet"
        pq.write_table(piece_of(1, number), target.with_suffix(".tmp"))
        target.with_suffix(".tmp").rename(target)


def main(as_json: bool = False) -> int:
    """Run the demo; return 0 if nothing is lost, duplicated or different."""
    console = Console(stderr=as_json, highlight=False)
    # Ended from outside, the demo takes its node and its folder with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        outcome = play(folder, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(outcome)
    return 0 if outcome["holds"] else 1


def play(folder: Path, console: Console) -> dict[str, Any]:
    """Run the two days and the comparison in a folder."""
    started = time.monotonic()
    console.print(f"[bold]holdfast demo[/]: average price per item, from two shops; in {folder} until the end")
    killed, gap_s = _killed_day(folder / "killed", console)
    console.print("the same day again, and nobody is killed")
    unkilled = _whole_day(folder / "unkilled")
    console.print("the same query by Spark alone, over the input in the log")
    spark = _spark_rows(folder / "killed")
    comparisons = {
        "a run that was never killed": compare(killed, unkilled),
        "toSpark()": compare(killed, spark),
    }
    holds = bool(killed) and all(not any(found[name] for name in FAULTS) for found in comparisons.values())
    _show(console, len(killed), comparisons)
    seconds = time.monotonic() - started
    console.print(f"from the kill to the next new result: {gap_s:.1f} s; the whole demo: {seconds:.0f} s")
    return {
        "rows": len(killed),
        "comparisons": comparisons,
        "kill_to_result_s": gap_s,
        "seconds": seconds,
        "holds": holds,
    }


def compare(rows: Results, expected: Results) -> dict[str, int]:
    """Count what is missing, what is there more than once, and what has another value; rows are (key, value)."""
    counts = Counter(key for key, _ in rows)
    wanted = dict(expected)
    values = dict(rows)
    return {
        "rows": len(expected),
        "lost": sum(key not in values for key in wanted),
        "duplicated": sum(count - 1 for count in counts.values()),
        "different": sum(values[key] != wanted.get(key) for key in values),
    }


def _killed_day(folder: Path, console: Console) -> tuple[Results, float]:
    """Run the day with a kill; return the sink's rows and the seconds from the kill to the next new result."""
    store = str(folder / "store")
    with Shops(folder, PACE_S) as shops, _node(folder) as first, contextlib.ExitStack() as stack:
        _wait_until_selling(shops, first)
        consumer = stack.enter_context(Consumer(store, "averages", wait=f"{START_S:.0f} seconds"))
        shops.wait_until_sold(KILL_AT)
        seen = _rows_until_result(consumer, first)
        console.print(f"half of the day is sold, {seen} results are out: [red]kill -9[/] of the node ({first.pid})")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        killed = time.monotonic()
        while consumer.poll() is not None:
            continue
        with _node(folder) as second:
            _rows_until_result(consumer, second)
            gap_s = time.monotonic() - killed
            console.print(f"a new node has taken over: first new result after {gap_s:.1f} s")
            shops.wait_until_sold(PIECES)
            second.terminate()
            _wait_until_ended(second)
    _end(folder)
    return _sink_rows(folder), gap_s


def _whole_day(folder: Path) -> Results:
    """Run the same day through one node that nobody disturbs; return the sink's rows."""
    _run_node(folder, "--create")
    with Shops(folder, 0.0) as shops:
        shops.wait_until_sold(PIECES)
    _end(folder)
    return _sink_rows(folder)


def _end(folder: Path) -> None:
    """Let a node take what is there, end every window, and stop."""
    with _node(folder, "--available-now") as last:
        _wait_until_ended(last)


def _wait_until_selling(shops: Shops, node: subprocess.Popen[bytes]) -> None:
    while not shops.has_sold(1, 0.2):
        _check_alive(node)


def _wait_until_ended(node: subprocess.Popen[bytes]) -> None:
    if node.wait() != 0:
        raise _died(node)


def _check_alive(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is not None:
        raise _died(node)


def _died(node: subprocess.Popen[bytes]) -> PipelineFailed:
    return PipelineFailed(f"the demo's node ended with status {node.returncode}; its messages are above")


def _rows_until_result(consumer: Consumer, node: subprocess.Popen[bytes]) -> int:
    """Return how many rows the next results have; a node that dies meanwhile is an error."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        table = consumer.poll(1.0)
        if table is not None and table.num_rows:
            return int(table.num_rows)
        _check_alive(node)
    raise PipelineFailed(f"no result came within {START_S:.0f} s; `holdfast status` on the store says more")


@contextlib.contextmanager
def _node(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the node in a process group of its own, so that a kill takes its JVM and workers too."""
    command = [sys.executable, "-m", "holdfast.demo.retail", str(folder), *options]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run_node(folder: Path, *options: str) -> bytes:
    """Run the pipeline's program to its end, and return what it printed."""
    command = [sys.executable, "-m", "holdfast.demo.retail", str(folder), *options]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


def _sink_rows(folder: Path) -> Results:
    return _keyed(pq.read_table(folder / "averages").to_pylist())


def _spark_rows(folder: Path) -> Results:
    return _keyed(json.loads(_run_node(folder, "--compare").splitlines()[-1]))


def _keyed(rows: Rows) -> Results:
    """Return (item and window, average and count) of each row, as text: the same from Parquet and from JSON."""
    return [((row["item"], str(row["window"]["start"])), (str(row["average"]), int(row["sales"]))) for row in rows]


def _show(console: Console, rows: int, comparisons: dict[str, dict[str, int]]) -> None:
    table = Table(title=f"{NAME}: {rows} results of the killed run, compared with")
    for name in ("", "rows", "lost", "duplicated", "different"):
        table.add_column(name, justify="left" if not name else "right")
    for what, found in comparisons.items():
        cells = [f"[{'green' if not found[name] else 'red'}]{found[name]}[/]" for name in FAULTS]
        table.add_row(what, str(found["rows"]), *cells)
    console.print(table)
