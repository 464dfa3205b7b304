"""Sends eight rows again and again, as fast as a small pause allows, until it is told to stop.

    python -m tests.soak.feeder STORE STREAM

It keeps no row for longer than it is needed: an hour, as everywhere else, would be longer than the test.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

import pyarrow as pa

import holdfast as hf
from holdfast.connect import producer as producers
from holdfast.connect.trimming import Trimmer

KEYS = 64
ROWS = 8
PAUSE_S = 0.002
RETAIN_US = 5_000_000


def main(store: str, stream: str) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    producers.TRIM_EVERY_S = 1.0  # type: ignore[misc]
    Trimmer.trim.__defaults__ = (RETAIN_US, *(Trimmer.trim.__defaults__ or ())[1:])
    sent = 0
    with hf.Producer(store, stream) as producer:
        while not stopping.wait(PAUSE_S):
            numbers = range(sent, sent + ROWS)
            at = pa.array([time.time_ns() // 1000] * ROWS, pa.timestamp("us", "UTC"))
            keys = pa.array([number * 7 % KEYS for number in numbers], pa.int64())
            producer.send(pa.table({"key": keys, "value": pa.array(numbers, pa.int64()), "at": at}))
            sent += ROWS


if __name__ == "__main__":
    main(*sys.argv[1:])
