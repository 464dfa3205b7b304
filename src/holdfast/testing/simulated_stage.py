"""A small stateful stage in plain Python: what the simulated slots run, and what the oracle runs without failures.

Guarantees:
    * What comes out of a bucket depends on the rows logged up to it alone, never on how buckets were grouped.
    * Every row that went in is in the sum of exactly one row that comes out, once its window is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.log.frame import checksum

Row = tuple[int, int]
"""A key and a value."""

SCHEMA: Final = pa.schema([("key", pa.int64()), ("value", pa.int64())])
WINDOW_ROWS: Final = 3


class StageState:
    """Count windows of three rows per key. One unit's state holds the keys of its shard."""

    def __init__(self, content: bytes = b"") -> None:
        self._open: dict[int, tuple[int, int]] = (
            msgspec.msgpack.decode(content, type=dict[int, tuple[int, int]]) if content else {}
        )

    def process(self, rows: Iterable[Row], ended: bool = False) -> list[Row]:
        """Take a bucket's rows in their order; return what leaves in that bucket."""
        out: list[Row] = []
        for key, value in rows:
            count, total = self._open.pop(key, (0, 0))
            if count + 1 == WINDOW_ROWS:
                out.append((key, total + value))
            else:
                self._open[key] = (count + 1, total + value)
        if ended:
            out += [(key, total) for key, (_, total) in sorted(self._open.items())]
            self._open.clear()
        return out

    @property
    def open_windows(self) -> int:
        return len(self._open)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(dict(sorted(self._open.items())))


def echoed(rows: Iterable[Row]) -> list[Row]:
    """Return what the simulated transform makes of rows, each by itself: nothing, the row, or the row and its echo."""
    found: list[Row] = []
    for key, value in rows:
        if value % 5:
            found += [(key, value), (key, -value)] if value % 2 else [(key, value)]
    return found


def shard_of(key: int, shards: int) -> int:
    """Return the shard of a key."""
    return key % shards


def digest_of(rows: Sequence[Row]) -> int:
    """Return a number that equal rows in equal order have in common."""
    return checksum(msgspec.msgpack.encode(list(rows)))


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as they are stored."""
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 2)
    return pa.record_batch([pa.array(columns[:, 0].copy()), pa.array(columns[:, 1].copy())], schema=SCHEMA)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return stored rows as pairs."""
    return list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))


def in_shard_order(rows: Sequence[Row], shards: int) -> tuple[list[Row], list[int]]:
    """Return the rows sorted by shard, stable, and where each shard's end."""
    by_shard: list[list[Row]] = [[] for _ in range(shards)]
    for row in rows:
        by_shard[shard_of(row[0], shards)].append(row)
    ends: list[int] = []
    for part in by_shard:
        ends.append((ends[-1] if ends else 0) + len(part))
    return [row for part in by_shard for row in part], ends
