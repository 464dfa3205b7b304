"""Send tuples at a steady rate, each with the time at which it was sent; the same rhythm for both sides.

Invariants:
    * A batch is due at a fixed time; a batch that is late is sent at once, and none is left out.
    * `sent_us` is read just before a batch is handed over: what `send` itself takes is part of the latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

SCHEMA: Final = pa.schema(
    [pa.field("key", pa.int64()), pa.field("value", pa.float64()), pa.field("sent_us", pa.int64())]
)
SPARK_SCHEMA: Final = "key bigint, value double, sent_us bigint"

Send = Callable[[pa.Table], object]
Stamp = Callable[[pa.Table, int], pa.Table]


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How many tuples a second, in batches how far apart, and over how many keys."""

    tuples_per_second: int
    batches_per_second: int
    keys: int

    @property
    def tuples_per_batch(self) -> int:
        return max(1, self.tuples_per_second // self.batches_per_second)


def now_us() -> int:
    return time.time_ns() // 1000


def batches(rhythm: Rhythm) -> Iterator[pa.Table]:
    """Yield tuples without end, of uniform keys; their `sent_us` is still to be written."""
    generator = np.random.default_rng(rhythm.tuples_per_second)
    unsent = pa.array(np.zeros(rhythm.tuples_per_batch, np.int64))
    while True:
        key = generator.integers(0, rhythm.keys, rhythm.tuples_per_batch, dtype=np.int64)
        value = generator.integers(0, 10_000, rhythm.tuples_per_batch).astype(np.float64)
        yield pa.table([key, value, unsent], schema=SCHEMA)


def stamped(table: pa.Table, sent_us: int) -> pa.Table:
    """Return the tuples with the time at which they are sent."""
    return table.set_column(2, SCHEMA.field(2), pa.array(np.full(table.num_rows, sent_us)))


def send_at(
    rhythm: Rhythm, send: Send, seconds: float, made: Iterator[pa.Table] | None = None, stamp: Stamp = stamped
) -> dict[str, Any]:
    """Send for that long; return how many tuples went, and how late the latest batch was.

    `made` are the batches, without their times, which `stamp` writes into them.
    """
    made = batches(rhythm) if made is None else made
    period_s = 1 / rhythm.batches_per_second
    started_s = time.monotonic()
    late_s, sent = 0.0, 0
    for number, table in zip(range(round(seconds * rhythm.batches_per_second)), made, strict=False):
        due_s = started_s + number * period_s
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        late_s = max(late_s, -wait_s)
        send(stamp(table, now_us()))
        sent += table.num_rows
    return {"tuples_sent": sent, "latest_batch_late_ms": late_s * 1000, "seconds": time.monotonic() - started_s}


class FolderSender:
    """Put each batch into a folder as a file that appears whole, by a rename: the file source's own advice."""

    def __init__(self, folder: Path, file_format: str) -> None:
        self._folder = folder
        self._beside = folder.with_name(folder.name + "-being-written")
        self._format = file_format
        self._number = 0

    def open(self) -> FolderSender:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._beside.mkdir(exist_ok=True)
        # A second life of the sender goes on after the names of the first.
        self._number = len(list(self._folder.iterdir()))
        return self

    def send(self, table: pa.Table) -> None:
        name = f"{self._number:09d}.{self._format}"
        self._number += 1
        if self._format == "csv":
            csv.write_csv(table, self._beside / name, csv.WriteOptions(include_header=False))
        else:
            parquet.write_table(table, self._beside / name, use_dictionary=False, compression="none")
        (self._beside / name).rename(self._folder / name)


def send_to_folder(
    folder: str, file_format: str, tuples_per_second: int, batches_per_second: int, keys: int, seconds: float
) -> dict[str, Any]:
    """Be the sending process of a peer."""
    sender = FolderSender(Path(folder), file_format).open()
    return send_at(Rhythm(tuples_per_second, batches_per_second, keys), sender.send, seconds)


def send_to_stream(
    store: str, stream: str, tuples_per_second: int, batches_per_second: int, keys: int, seconds: float
) -> dict[str, Any]:
    """Be the sending process of holdfast's side: a `Producer`, whose `send` returns when the tuples are durable."""
    import holdfast as hf

    producer = hf.Producer(store, stream)
    try:
        return send_at(Rhythm(tuples_per_second, batches_per_second, keys), producer.send, seconds)
    finally:
        producer.close()
