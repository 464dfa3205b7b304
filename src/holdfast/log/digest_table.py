"""The digests of one shard of a stream, by bucket.

Invariants:
    * One thread puts; any thread may ask. What drops buckets returns a new table.
    * Buckets ascend. A unit only goes forward, so putting one at the end is the way that has to be fast.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from holdfast.log.columns import Columns, Numbers, pack, unpack

_COLUMNS: Final = 3
_BUCKET, _ROWS, _DIGEST = range(_COLUMNS)
_MODULUS: Final = 1 << 64
_SIGN: Final = 1 << 63


class DigestTable:
    """Data rows and digest (64 bits without sign) of each bucket that has data rows."""

    def __init__(self, numbers: Numbers | None = None) -> None:
        self._columns = Columns(_COLUMNS, numbers)
        self._bucket_last = None if numbers is None or not numbers.size else int(numbers[_BUCKET, -1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DigestTable) and self.items() == other.items()

    __hash__ = None  # type: ignore[assignment]

    def stored(self) -> list[bytes]:
        """Return the table as a journal's head has it."""
        return pack(self._columns.view())

    @classmethod
    def restored(cls, stored: object) -> DigestTable:
        """Return the table that `stored` gave; `ValueError` where it cannot have."""
        numbers = unpack(msgspec.convert(stored, list[bytes]), _COLUMNS)
        if not (numbers[_BUCKET, 1:] > numbers[_BUCKET, :-1]).all():
            raise ValueError("buckets that do not ascend")
        return cls(numbers)

    def put(self, bucket: int, rows: int, digest: int) -> None:
        """Note a bucket; one that is there already is noted anew."""
        row = (bucket, rows, digest if digest < _SIGN else digest - _MODULUS)
        if self._bucket_last is None or bucket > self._bucket_last:
            self._columns.append(row)
            self._bucket_last = bucket
            return
        numbers = self._columns.view()
        others = numbers[:, numbers[_BUCKET] != bucket]
        place = int(np.searchsorted(others[_BUCKET], bucket))
        self._columns = Columns(_COLUMNS, np.insert(others, place, row, axis=1))

    def items(self) -> list[tuple[int, tuple[int, int]]]:
        """Return (bucket, (data rows, digest)) of each bucket."""
        columns = (column.tolist() for column in self._columns.view())
        return [(bucket, (rows, digest % _MODULUS)) for bucket, rows, digest in zip(*columns, strict=True)]

    def split(self, before_bucket: int) -> tuple[int, int, DigestTable]:
        """Return rows and sum of digests (modulo 2**64) of the buckets before `before_bucket`, and the others."""
        numbers = self._columns.view()
        first = int(np.searchsorted(numbers[_BUCKET], before_bucket))
        if first == 0:
            return 0, 0, self
        rows, digests = int(numbers[_ROWS, :first].sum()), int(numbers[_DIGEST, :first].sum())
        return rows, digests % _MODULUS, DigestTable(numbers[:, first:].copy())
