"""The sales of the demo: the same every time, in order of their time, from two shops."""

from __future__ import annotations

import datetime
from typing import Final

import numpy as np
import pyarrow as pa

NAME: Final = "retail"
ITEMS: Final = (
    "apple",
    "bread",
    "cheese",
    "coffee",
    "egg",
    "flour",
    "honey",
    "jam",
    "juice",
    "milk",
    "pasta",
    "pear",
    "pepper",
    "plum",
    "rice",
    "salt",
    "soap",
    "sugar",
    "tea",
    "yoghurt",
)
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
    # A decimal is 16 bytes, the low half first: small positive numbers are their cents and a zero.
    halves = np.zeros((PIECE_ROWS, 2), np.int64)
    halves[:, 0] = random.integers(50, 2_500, PIECE_ROWS)
    prices = pa.Array.from_buffers(pa.decimal128(8, 2), PIECE_ROWS, [None, pa.py_buffer(halves)])
    items = pa.DictionaryArray.from_arrays(pa.array(random.integers(0, len(ITEMS), PIECE_ROWS)), pa.array(ITEMS))
    return pa.table(
        [items.cast(pa.string()), prices, pa.array(times, pa.timestamp("us", tz="UTC"))],
        schema=SCHEMA,
    )
