"""Rows for the chaos tests: from a seed, to a Producer and into a folder, and nothing else than what was sent."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.producer import Producer
from holdfast.errors import StoreUnavailable

SCHEMA = pa.schema(
    [("key", pa.int64()), ("name", pa.string()), ("value", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]
)
START_US = 1_760_000_000_000_000
ROWS = 2_000
KEYS = 500
STEP_US = 1_000_000


def piece(seed: int, shop: int, number: int, keys: int = KEYS) -> pa.Table:
    """Return rows of one second of event time, in its order."""
    random = np.random.default_rng([seed, shop, number])
    key = random.integers(0, keys, ROWS)
    times = START_US + number * STEP_US + np.sort(random.integers(0, STEP_US, ROWS))
    return pa.table(
        [
            pa.array(key),
            pa.array([f"name {each % 50}" for each in key]),
            pa.array(random.integers(-1000, 1000, ROWS)),
            pa.array(times, pa.timestamp("us", tz="UTC")),
        ],
        schema=SCHEMA,
    )


def drop(folder: Path, name: str, table: pa.Table) -> None:
    """Put a file into the folder that the pipeline reads, whole at once."""
    dropped = folder / "dropped"
    pq.write_table(table, dropped / f".{name}.tmp")
    (dropped / f".{name}.tmp").rename(dropped / f"{name}.parquet")


class Feed:
    """Sends and drops pieces until told to stop; both inputs get the same number of pieces."""

    def __init__(self, folder: Path, seed: int, pace_s: float = 0.2, keys: int = KEYS) -> None:
        self._folder = folder
        self._seed = seed
        self._pace_s = pace_s
        self._keys = keys
        self._stop = threading.Event()
        self._leave = threading.Event()
        self._fed = threading.Event()
        self._error: BaseException | None = None
        self.pieces = 0
        self.refusals: list[str] = []
        """What the producer said when the store took no rows; the same rows were sent again until it did."""
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
        return [self._piece(shop, number) for number in range(self.pieces) for shop in (0, 1)]

    def _piece(self, shop: int, number: int) -> pa.Table:
        return piece(self._seed, shop, number, self._keys)

    def _run(self) -> None:
        try:
            with Producer(f"{self._folder}/store", "sent", wait="120 seconds") as producer:
                while not self._stop.is_set():
                    self._send(producer, self._piece(0, self.pieces))
                    drop(self._folder, f"{self.pieces:06d}", self._piece(1, self.pieces))
                    self.pieces += 1
                    self._stop.wait(self._pace_s)
                self._fed.set()
                self._leave.wait()
        except BaseException as error:
            self._error = error
            self._fed.set()

    def _send(self, producer: Producer, table: pa.Table) -> None:
        """Send a piece until it is taken: with a sequence of its own, so that no repeat counts twice."""
        while True:
            try:
                producer.send(table, sequence=self.pieces)
                return
            except StoreUnavailable as error:
                self.refusals.append(str(error))
                if self._leave.wait(self._pace_s):
                    raise
