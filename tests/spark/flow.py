"""A pipeline that runs end to end on real Spark, with what was sent in which bucket known to the test."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf

WIDTH_US = 100_000
START_US = 1_760_000_000_000_000


class HandClock:
    """Time that stands still between sends, so that the test decides which bucket rows are in."""

    def __init__(self) -> None:
        self.at_us = START_US

    def now_us(self) -> int:
        return self.at_us

    def monotonic(self) -> float:
        return self.at_us / 1e6


class Flow:
    """A pipeline in a folder of its own."""

    def __init__(self, folder: Path, shards: int = 2) -> None:
        self.folder = folder
        self.store = str(folder / "store")
        self.pipeline = hf.Pipeline("flow", store=self.store, shards=shards, bucket="100 milliseconds")

    def send(self, source: str, batches: Iterable[Any], bucket: int = 0) -> None:
        """Send each batch in a bucket of its own, from `bucket` on."""
        self.pipeline.create()
        clock = HandClock()
        clock.at_us += bucket * WIDTH_US
        with hf.Producer(self.store, source, clock=clock) as producer:
            for batch in batches:
                producer.send(batch)
                clock.at_us += WIDTH_US

    def run(self) -> None:
        """Take what is there, end every window."""
        self.pipeline.run(available_now=True)

    def rows(self, stream: str) -> pa.Table:
        """Return everything a stream holds, in its order."""
        with hf.Consumer(self.store, stream) as consumer:
            tables = list(consumer)
            return pa.concat_tables(tables) if tables else consumer.schema.empty_table()


def texts(table: pa.Table) -> list[str]:
    """Return the rows as texts in which every value of every type, -0.0 and NaN included, differs."""
    return list(map(repr, table.to_pylist()))


def same_rows(ours: pa.Table, spark: pa.Table) -> None:
    """Assert that two tables have the same columns, types and rows; the order of rows is nobody's."""
    assert ours.column_names == spark.column_names, f"{ours.column_names}, Spark has {spark.column_names}"
    found, expected = Counter(texts(ours)), Counter(texts(spark.cast(ours.schema)))
    assert found == expected, f"only ours: {list(found - expected)[:5]}, only Spark's: {list(expected - found)[:5]}"


def threads_of_ours() -> list[str]:
    """Return the names of threads that a pipeline or producer has left behind."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")]


def write_atomically(path: Path, data: bytes) -> None:
    """Put a file into a folder as a careful writer does."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_bytes(data)
    os.rename(temporary, path)
