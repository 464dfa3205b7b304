"""Rows of whole numbers, kept and stored column by column: what a ledger has many of takes little room.

Invariants:
    * One thread appends; any thread may take a `view`, which never changes afterwards and has whole rows only.
    * `unpack(pack(columns))` gives the same numbers back. Bytes that `pack` did not make raise `ValueError`, before any
      room is taken for what they claim to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

_CAPACITY_MIN: Final = 16
_FIRST_BYTES: Final = 8
# How a column is stored: as it is in 32 bits without sign, or as steps from a first number.
_PLAIN: Final = 0
_STEPS: Final[tuple[tuple[int, Any], ...]] = ((1, np.dtype("<i1")), (2, np.dtype("<i2")), (3, np.dtype("<i4")))
_WIDE: Final = 4
_UNSIGNED: Final = np.dtype("<u4")
_WORD: Final = np.dtype("<i8")


class Columns:
    """Rows of `width` numbers of 64 bits."""

    def __init__(self, width: int, numbers: Numbers | None = None) -> None:
        self._numbers = np.empty((width, 0), np.int64) if numbers is None else numbers
        self._count = self._numbers.shape[1]

    def __len__(self) -> int:
        return self._count

    def append(self, row: Sequence[int]) -> None:
        """Add a row at the end."""
        count = self._count
        if count == self._numbers.shape[1]:
            grown = np.empty((len(self._numbers), max(2 * count, _CAPACITY_MIN)), np.int64)
            grown[:, :count] = self._numbers
            self._numbers = grown
        self._numbers[:, count] = row
        # The count last: a view on another thread has whole rows.
        self._count = count + 1

    def view(self) -> Numbers:
        """Return the rows that there are now: `view()[column, row]`."""
        # The count first: the numbers seen after it have room for as many.
        count = self._count
        return self._numbers[:, :count]


def pack(numbers: Numbers) -> list[bytes]:
    """Return each column as few bytes: steps from number to number are mostly small."""
    return [_pack_column(column) for column in numbers]


def unpack(packed: Sequence[bytes], width: int) -> Numbers:
    """Return the columns that `pack` made bytes of."""
    if len(packed) != width:
        raise ValueError(f"expected {width} columns, found {len(packed)}")
    columns = [_unpack_column(column) for column in packed]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"columns of different lengths: {[len(column) for column in columns]}")
    return np.array(columns, np.int64)


def _pack_column(column: Numbers) -> bytes:
    if len(column) == 0:
        return b""
    # Steps may overflow, and come back by overflowing again.
    steps = column[1:] - column[:-1]
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    first = column[:1].astype(_WORD).tobytes()
    for kind, step in _STEPS:
        bounds = np.iinfo(step)
        if bounds.min <= low and high <= bounds.max:
            return bytes([kind]) + first + steps.astype(step).tobytes()
    if int(column.min()) >= 0 and int(column.max()) <= np.iinfo(_UNSIGNED).max:
        return bytes([_PLAIN]) + column.astype(_UNSIGNED).tobytes()
    return bytes([_WIDE]) + column.astype(_WORD).tobytes()


def _unpack_column(packed: bytes) -> Numbers:
    if not packed:
        return np.empty(0, np.int64)
    kind, body = packed[0], memoryview(packed)[1:]
    if kind == _PLAIN:
        return np.frombuffer(body, _UNSIGNED).astype(np.int64)
    if kind == _WIDE:
        return np.frombuffer(body, _WORD).astype(np.int64)
    step = dict(_STEPS).get(kind)
    if step is None or body.nbytes < _FIRST_BYTES:
        raise ValueError(f"a column of kind {kind} with {body.nbytes} bytes")
    first = np.frombuffer(body[:_FIRST_BYTES], _WORD)
    steps = np.frombuffer(body[_FIRST_BYTES:], step)
    return np.cumsum(np.concatenate([first, steps]).astype(np.int64))
