"""Stages and rows that tests of slots use."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from tests.unit.operators.harness import WIDTH_US, aggregate, column, make_stage

from holdfast import plan

SCHEMA = pa.schema([("item", pa.string()), ("price", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
ITEMS = ["apple", "bread", "cheese", None, "", "a rather long name that does not fit into a word", "élan"]
PRICE = column("price", SCHEMA)
AGGREGATES = [
    aggregate("total", "sum", PRICE, "bigint"),
    aggregate("sales", "count_all", None, "bigint"),
    aggregate("least", "min", PRICE, "bigint"),
]
WINDOWS: dict[str, plan.TimeWindow | plan.CountWindow | None] = {
    "count": plan.CountWindow(3, 3),
    "sliding count": plan.CountWindow(4, 2),
    "tumbling": plan.TimeWindow(column("at", SCHEMA), 3 * WIDTH_US, 3 * WIDTH_US),
    "sliding": plan.TimeWindow(column("at", SCHEMA), 4 * WIDTH_US, 2 * WIDTH_US),
    "running": None,
}


def stage_of(kind: str, **options: Any) -> plan.Stage:
    """Return a stage that totals prices by item, with the window of that name."""
    window = WINDOWS[kind]
    chosen: dict[str, Any] = {"inputs": ("north",)}
    if isinstance(window, plan.TimeWindow):
        chosen |= {"event_time": "at", "delay_us": WIDTH_US}
    return make_stage(SCHEMA, ["item"], AGGREGATES, window, **(chosen | options))


def time_of(microseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(microseconds / 1e6, datetime.UTC)


def rows_of(items: Sequence[str | None], prices: Sequence[int], times_us: Sequence[int]) -> pa.RecordBatch:
    at = pa.array(np.array(times_us, np.int64)).cast(SCHEMA.field("at").type)
    return pa.RecordBatch.from_arrays([pa.array(items, pa.string()), pa.array(prices, pa.int64()), at], schema=SCHEMA)


def some_rows(seed: int, bucket: int, count: int, late_us: int = WIDTH_US) -> pa.RecordBatch:
    """Return rows as they may arrive in a bucket, with event times around it."""
    chooser = np.random.default_rng([seed, bucket])
    items = [ITEMS[number] for number in chooser.integers(0, len(ITEMS), count)]
    times = bucket * WIDTH_US + chooser.integers(-late_us, WIDTH_US, count)
    return rows_of(items, chooser.integers(-100, 100, count).tolist(), times.tolist())
