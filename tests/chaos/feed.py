"""Rows for the chaos tests: from a seed, to a Producer and into a folder, with what the results have to be."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.producer import Producer

SCHEMA = pa.schema(
    [("key", pa.int64()), ("name", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]
)
START_US = 1_760_000_000_000_000
ROWS = 2_000
STEP_US = 1_000_000


def piece(seed: int, shop: int, number: int) -> pa.Table:
    """Return rows of one second of event time, in its order."""
    random = np.random.default_rng([seed, shop, number])
    keys = random.integers(0, 500, ROWS)
    times = START_US + number * STEP_US + np.sort(random.integers(0, STEP_US, ROWS))
    return pa.table(
        [
            pa.array(keys),
            pa.array([f"name {key % 50}" for key in keys]),
            pa.array(random.integers(-1000, 1000, ROWS)),
            pa.array(times, pa.timestamp("us", tz="UTC")),
        ],
        schema=SCHEMA,
    )


class Feed:
    """Sends and drops pieces until told to stop; both inputs get the same number of pieces."""

    def __init__(self, folder: Path, seed: int, pace_s: float = 0.2) -> None:
        self._folder = folder
        self._seed = seed
        self._pace_s = pace_s
        self._stop = threading.Event()
        self._leave = threading.Event()
        self._fed = threading.Event()
        self._error: BaseException | None = None
        self.pieces = 0
        (folder / "dropped").mkdir(parents=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Feed no more; the producer stays until `leave`, so that its boundary goes on."""
        self._stop.set()
        self._fed.wait()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        self._stop.set()
        self._leave.set()
        self._thread.join()

    def tables(self) -> list[pa.Table]:
        return [piece(self._seed, shop, number) for number in range(self.pieces) for shop in (0, 1)]

    def _run(self) -> None:
        try:
            with Producer(f"{self._folder}/store", "sent", wait="120 seconds") as producer:
                while not self._stop.is_set():
                    producer.send(piece(self._seed, 0, self.pieces))
                    target = self._folder / "dropped" / f"{self.pieces:06d}.parquet"
                    pq.write_table(piece(self._seed, 1, self.pieces), target.with_suffix(".tmp"))
                    target.with_suffix(".tmp").rename(target)
                    self.pieces += 1
                    self._stop.wait(self._pace_s)
                self._fed.set()
                self._leave.wait()
        except BaseException as error:
            self._error = error
            self._fed.set()


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return every row that the sink has put out."""
    rows: list[dict[str, Any]] = pq.read_table(folder / "totals").to_pylist()
    return rows
