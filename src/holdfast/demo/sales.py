"""The sales of the demo: the same every time, in order of their time, from two shops."""

from __future__ import annotations

import datetime
from typing import Final

import numpy as np
import pyarrow as pa

ITEMS: Final = ("apple", "bread", "cheese", "coffee", "egg", "flour", "honey", "jam", "juice", "milk", "pasta", "pear",
                "pepper", "plum", "rice", "salt", "soap", "sugar", "tea", "yoghurt")
SCHEMA_TEXT: Final = "item string, price decimal(8,2), sold_at timestamp"
SCHEMA: Final = pa.schema(
    [("item", pa.string()), ("price", pa.decimal128(8, 2)), ("sold_at", pa.timestamp("us", tz="UTC"))]
)
OPENING: Final = datetime.datetime(2026, 3, 2, 8, tzinfo=datetime.UTC)
PIECES: Final = 40
PIECE_SECONDS: Final = 15
PIECE_ROWS: Final = 5_000


def piece_of(shop: int, number: int) -> pa.Table:
    """Return the sales of one shop in one piece of the day."""
    random = np.random.default_rng([shop, number])
    first_us = int(OPENING.timestamp() * 1e6) + number * PIECE_SECONDS * 1_000_000
    times = np.sort(random.integers(0, PIECE_SECONDS * 1_000_000, PIECE_ROWS)) + first_us
    cents = pa.array(random.integers(50, 2_500, PIECE_ROWS), pa.int64())
    prices = pa.compute.divide(cents.cast(pa.decimal128(12, 2)), pa.scalar(100, pa.decimal128(3, 0)))
    items = pa.DictionaryArray.from_arrays(pa.array(random.integers(0, len(ITEMS), PIECE_ROWS)), pa.array(ITEMS))
    return pa.table(
        [items.cast(pa.string()), prices.cast(pa.decimal128(8, 2)), pa.array(times, pa.timestamp("us", tz="UTC"))],
        schema=SCHEMA,
    )
