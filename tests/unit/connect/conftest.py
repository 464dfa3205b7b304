"""A store with one pipeline: producers' sources, and a stage whose log a test writes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connect import catalog
from holdfast.log.local_store import LocalStore
from holdfast.plan import (
    Aggregate,
    Aggregation,
    Column,
    FilesSource,
    Named,
    ProducerSource,
    Source,
    Stage,
    StageInput,
    Topology,
)

SALES = pa.schema([("item", pa.string()), ("price", pa.float64())])
TIMED = pa.schema([("item", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
HOUR_US = 3_600_000_000
SHARDS = 4


class HandClock:
    """A clock that a test sets."""

    def __init__(self, now_us: int = 1_000 * HOUR_US + 5) -> None:
        self.time_us = now_us

    def now_us(self) -> int:
        return self.time_us

    def monotonic(self) -> float:
        return self.time_us / 1e6


def packed(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()


def topology(width_us: int = HOUR_US, size_bytes_max: int = 4 << 30) -> Topology:
    item = Named("item", Column("item", "string"))
    count = Aggregation([item], [Aggregate("sales", "count_all", None, "bigint")], [item])
    stage = Stage(
        "averages", [StageInput("north", packed(SALES), [], late="side")], packed(SALES), count, [], packed(SALES)
    )
    sources = [
        Source("north", packed(SALES), ProducerSource(size_bytes_max), ["item"]),
        Source("timed", packed(TIMED), ProducerSource(), ["item"], tuple_time="at", event_time="at"),
        Source("south", packed(SALES), FilesSource("in", "csv"), ["item"], on_error="reject"),
    ]
    return Topology("retail", SHARDS, width_us, sources, [stage], [])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., LocalStore]]:
    """Create the pipeline's folder and return its store."""

    def create(**options: Any) -> LocalStore:
        store = LocalStore(Path(url) / "retail")
        catalog.create_or_check(store, topology(**options))
        return store

    yield create


@pytest.fixture
def store(make: Callable[..., LocalStore]) -> LocalStore:
    return make()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()
