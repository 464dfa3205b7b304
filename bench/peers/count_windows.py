"""Count windows with an average per key in Structured Streaming, written the three ways a user would.

Structured Streaming has no count windows, so each is code over its arbitrary state: one call per key (as its guides
show it), or one call per group of keys with numpy inside (what a patient user arrives at).

Invariants:
    * All three give one row (key, number of the window, average) for each full window, and keep the rest as state.
    * The order of a key's tuples within a trigger is the shuffle's; nothing here pays to sort by arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.state import GroupState

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

WINDOW_SIZE: Final = 10
KEY_GROUPS: Final = 64
RESULT_SCHEMA: Final = "key bigint, number bigint, average double"


def per_key_pandas(tuples: DataFrame) -> DataFrame:
    """Count windows by `applyInPandasWithState`, one call for each key of a trigger."""
    return tuples.groupBy("key").applyInPandasWithState(
        _windows_of_key, RESULT_SCHEMA, "tuples bigint, total double", "append", "NoTimeout"
    )


def _windows_of_key(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    values = np.concatenate([frame["value"].to_numpy() for frame in frames])
    before, total = state.get if state.exists else (0, 0.0)
    open_before = before % WINDOW_SIZE
    full = (open_before + len(values)) // WINDOW_SIZE
    numbers: list[int] = []
    averages: list[float] = []
    start = 0
    for number in range(full):
        end = (number + 1) * WINDOW_SIZE - open_before
        numbers.append(before // WINDOW_SIZE + number)
        averages.append((total + values[start:end].sum()) / WINDOW_SIZE)
        start, total = end, 0.0
    state.update((before + len(values), float(total + values[start:].sum())))
    if numbers:
        yield pd.DataFrame({"key": key[0], "number": numbers, "average": averages})


def per_key_rows(tuples: DataFrame) -> DataFrame:
    """Count windows by `transformWithState` over rows, one call for each key of a trigger."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
    from pyspark.sql.types import DoubleType, LongType, StructField, StructType

    class CountWindows(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            kept = StructType([StructField("tuples", LongType()), StructField("total", DoubleType())])
            self.window = handle.getValueState("window", kept)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            kept = self.window.get()
            count, total = kept if kept is not None else (0, 0.0)
            for row in rows:
                count, total = count + 1, total + row.value
                if count % WINDOW_SIZE == 0:
                    yield Row(key=key[0], number=count // WINDOW_SIZE - 1, average=total / WINDOW_SIZE)
                    total = 0.0
            self.window.update((count, total))

        def close(self) -> None:
            pass

    return tuples.groupBy("key").transformWithState(CountWindows(), RESULT_SCHEMA, "Append", "None")


def by_key_group(tuples: DataFrame) -> DataFrame:
    """Count windows by `applyInPandasWithState` over 64 groups of keys; a group's state is packed numpy arrays."""
    from pyspark.sql import functions as F

    grouped = tuples.withColumn("key_group", F.expr(f"pmod(key, {KEY_GROUPS})")).groupBy("key_group")
    return grouped.applyInPandasWithState(_windows_of_group, RESULT_SCHEMA, "packed binary", "append", "NoTimeout")


def _windows_of_group(group: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    chunks = list(frames)
    key = np.concatenate([chunk["key"].to_numpy() for chunk in chunks])
    value = np.concatenate([chunk["value"].to_numpy() for chunk in chunks])
    kept = unpack(state.get[0]) if state.exists else empty()
    kept, results = advance(kept, key, value)
    state.update((pack(kept),))
    if len(results[0]):
        yield pd.DataFrame(dict(zip(("key", "number", "average"), results, strict=True)))


Kept = tuple[Integers, Integers, Reals]
"""Of a group's keys, in ascending order: the keys, tuples seen, total of the open window."""


def empty() -> Kept:
    return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64)


def pack(kept: Kept) -> bytes:
    return b"".join(column.tobytes() for column in kept)


def unpack(packed: bytes) -> Kept:
    keys, seen, total = np.frombuffer(packed, np.int64).reshape(3, -1)
    return keys, seen, total.view(np.float64)


def advance(kept: Kept, key: Integers, value: Reals) -> tuple[Kept, tuple[Integers, Integers, Reals]]:
    """Return the state after these tuples, and (key, number, average) of every window that they filled."""
    order = np.argsort(key, kind="stable")
    key, value = key[order], value[order]
    run_start = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    kept = _with_keys(kept, key[run_start])
    keys, seen, total = kept
    place = np.searchsorted(keys, key[run_start])
    run_length = np.diff(np.append(run_start, len(key)))
    position = np.arange(len(key)) + np.repeat(seen[place] - run_start, run_length)
    # A segment is the part of one window that lies in this trigger; a run's first one goes on from the state.
    starts_segment = position % WINDOW_SIZE == 0
    starts_segment[run_start] = True
    segment_start = np.flatnonzero(starts_segment)
    segment_total = np.add.reduceat(value, segment_start)
    run_first_segment = np.searchsorted(segment_start, run_start)
    segment_total[run_first_segment] += total[place]
    segment_end = np.append(segment_start[1:], len(key))
    full = position[segment_end - 1] % WINDOW_SIZE == WINDOW_SIZE - 1
    last_segment = np.append(run_first_segment[1:], len(segment_start)) - 1
    seen[place] += run_length
    total[place] = np.where(full[last_segment], 0.0, segment_total[last_segment])
    at = segment_start[full]
    return (keys, seen, total), (key[at], position[at] // WINDOW_SIZE, segment_total[full] / WINDOW_SIZE)


def _with_keys(kept: Kept, wanted: Integers) -> Kept:
    """Return a writable copy of the state in which every wanted key has a place."""
    keys, seen, total = kept
    new = np.setdiff1d(wanted, keys, assume_unique=True)
    if not len(new):
        return keys, seen.copy(), total.copy()
    place = np.searchsorted(keys, new)
    return np.insert(keys, place, new), np.insert(seen, place, 0), np.insert(total, place, 0.0)


COUNT_WINDOWS = {"per_key_rows": per_key_rows, "per_key_pandas": per_key_pandas, "by_key_group": by_key_group}
"""By the names they have in results."""
