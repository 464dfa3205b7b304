"""The kernels that carry rows into windows: one pass over the rows of a wave, in order.

Invariants:
    * A row touches only the record that `HashMap.locate` found for it, whose before-image is already saved.
    * A count window closes inside the pass, at the row that fills it: its words go to `out`, its record starts anew.
    * A kernel that meets a sum which does not fit stops at that row; the wave is then given up as a whole.

Every kernel returns how many windows it put out, the row at which it failed (or ALL_FOLDED), and the aggregate.
Record numbers become words by `state.address`; `reals` is the same memory as `words`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from holdfast.operators.folding import (
    COUNT,
    COUNT_ROWS,
    FIRST,
    HAS_VALUE,
    MAX_LONG,
    MAX_REAL,
    MEAN_REAL,
    MIN_LONG,
    MIN_REAL,
    MOMENTS,
    SUM_DECIMAL,
    SUM_LONG,
    SUM_LONG_DECIMAL,
    SUM_LONG_WRAPPED,
    SUM_REAL,
    fold_extreme,
    fold_pick,
    less_real,
    sum_decimal,
)
from holdfast.state.address import address
from holdfast.state.compiled import prefetch

ALL_FOLDED = -1
TUMBLING = 1
SLIDING = 2
TIME = 3
RUNNING = 4
AHEAD = 12
"""Rows between asking for a record and using it; measured, flat between 8 and 24."""

# Value words of a count window's record: tuples seen, tuple_time of the last, then for each open window its start
# and its aggregates.
COUNT_SEEN = 0
COUNT_LAST = 1
COUNT_SLOTS = 2
# Words of a closed count window in `out`: number, start, end, aggregates.
CLOSED_HEAD = 3
# Value words of a running aggregate's record: its place in `out`, then aggregates.
RUNNING_HEAD = 1
# Value words of a time window's record: its end, then aggregates.
TIME_HEAD = 1


@njit(
    "void(int64[::1], int32[::1], int64, int64[::1], int64, int64, int64, int64[:, ::1], int64[::1])",
    cache=True,
    nogil=True,
)
def put_changed(
    words: Any, table: Any, first_value: Any, records: Any, width: Any, first: Any, end: Any, out: Any, out_rows: Any
) -> None:
    """Copy the aggregates of the records that a run has changed, as the run leaves them."""
    for place in range(first, end):
        base = address(table, records[out_rows[place]]) + first_value + RUNNING_HEAD
        for word in range(width):
            out[place, CLOSED_HEAD + word] = words[base + word]


_FOLD_ROWS = (
    "Tuple((int64, int64, int64))("
    "int64, int64[::1], float64[::1], int32[::1], int64, int64[::1], int64[::1], int64[::1],"
    "int64, int64, int64, int64,"
    "int64[:, ::1], int64[:, ::1], float64[:, ::1], uint8[:, ::1], uint8[::1],"
    "int64[:, ::1], int64[::1], int64[::1], int64[::1])"
)


@njit(_FOLD_ROWS, cache=True, nogil=True)
def fold_rows(
    mode: Any,
    words: Any,
    reals: Any,
    table: Any,
    first_value: Any,
    records: Any,
    rows: Any,
    times: Any,
    size: Any,
    slide: Any,
    slots: Any,
    width: Any,
    program: Any,
    arguments: Any,
    numbers: Any,
    valid: Any,
    data: Any,
    out: Any,
    out_rows: Any,
    run_ends: Any,
    out_ends: Any,
) -> Any:
    """Fold each row into its window, or for SLIDING into all that it is in.

    TIME takes `rows[j]` for `records[j]`; the others take the rows as they come. Count windows are put out as they
    fill, a running aggregate at the end of each run: once for each record that the run has, at the record's first row.
    One loop holds all of it, and no array is sliced or passed on for a common aggregate: numba counts references to
    arrays with an instruction that locks the bus, which for each row would take longer than the row.
    """
    emitted = 0
    run = 0
    first = 0
    count = records.shape[0]
    for j in range(count):
        if j + AHEAD < count:
            prefetch(words, address(table, records[j + AHEAD]) + first_value)
        base = address(table, records[j]) + first_value
        row = rows[j] if mode == TIME else j
        start = base + 1
        seen = np.int64(0)
        number = np.int64(0)
        newest = np.int64(0)
        filled = np.int64(0)
        if mode == TUMBLING:
            seen = words[base]
            number = seen // size
            newest = number
            filled = seen - number * size
        elif mode == SLIDING:
            seen = words[base]
            newest = seen // slide
            number = np.int64(0) if seen < size else (seen - size) // slide + 1
        elif mode == RUNNING:
            if j == run_ends[run]:
                put_changed(words, table, first_value, records, width, first, emitted, out, out_rows)
                out_ends[run] = emitted
                first = emitted
                run += 1
            # A record's place in `out` may be left from another run or wave: it holds only if it names the record.
            place = words[base]
            if place < first or place >= emitted or records[out_rows[place]] != records[j]:
                words[base] = emitted
                out_rows[emitted] = j
                emitted += 1
        while number <= newest:
            if mode == SLIDING:
                filled = seen - number * slide
            if mode <= SLIDING:
                start = base + COUNT_SLOTS + (0 if mode == TUMBLING else (number % slots) * (width + 1))
                if filled == 0:
                    words[start] = times[row]
                    for word in range(width):
                        words[start + 1 + word] = 0
                start += 1
            for a in range(program.shape[0]):
                code = program[a, 0]
                p = start + program[a, 1]
                argument = program[a, 2]
                null = program[a, 3] >= 0 and valid[program[a, 3], row] == 0
                if code == COUNT_ROWS:
                    words[p] += 1
                elif code >= FIRST:
                    fold_pick(words, p, code, arguments, argument, row, null)
                elif null:
                    continue
                elif code == MEAN_REAL:
                    words[p] += 1
                    reals[p + 1] += numbers[argument, row]
                elif code == COUNT:
                    words[p] += 1
                elif code in (MIN_LONG, MAX_LONG):
                    value = arguments[argument, row]
                    if words[p] == 0 or (value < words[p + 1] if code == MIN_LONG else value > words[p + 1]):
                        words[p] = HAS_VALUE
                        words[p + 1] = value
                elif code in (MIN_REAL, MAX_REAL):
                    real = numbers[argument, row]
                    if words[p] == 0 or (
                        less_real(real, reals[p + 1]) if code == MIN_REAL else less_real(reals[p + 1], real)
                    ):
                        words[p] = HAS_VALUE
                        reals[p + 1] = real
                elif code == SUM_REAL:
                    words[p] = HAS_VALUE
                    reals[p + 1] += numbers[argument, row]
                elif code in (SUM_LONG, SUM_LONG_WRAPPED):
                    value = arguments[argument, row]
                    total = words[p + 1] + value
                    # The sum has another sign than both of its parts exactly if it did not fit.
                    if code == SUM_LONG and ((total ^ value) & (total ^ words[p + 1])) < 0:
                        return emitted, row, a
                    words[p] = HAS_VALUE
                    words[p + 1] = total
                elif code == MOMENTS:
                    # The update of Spark's CentralMomentAgg, operation by operation.
                    real = numbers[argument, row]
                    folded = reals[p] + 1.0
                    delta = real - reals[p + 1]
                    step = delta / folded
                    reals[p] = folded
                    reals[p + 1] += step
                    reals[p + 2] += delta * (delta - step)
                elif code in (SUM_DECIMAL, SUM_LONG_DECIMAL):
                    wide = 1 if code == SUM_LONG_DECIMAL else 0
                    if not sum_decimal(words, p, program[a, 4], arguments, argument, row, wide):
                        return emitted, row, a
                else:
                    fold_extreme(words, p, code, arguments, argument, row, data)
            if mode <= SLIDING and filled + 1 == size:
                out[emitted, 0] = number
                out[emitted, 1] = words[start - 1]
                out[emitted, 2] = times[row]
                for word in range(width):
                    out[emitted, CLOSED_HEAD + word] = words[start + word]
                out_rows[emitted] = row
                emitted += 1
            number += 1
        if mode <= SLIDING:
            words[base + COUNT_SEEN] = seen + 1
            words[base + COUNT_LAST] = times[row]
    if mode == RUNNING and count:
        put_changed(words, table, first_value, records, width, first, emitted, out, out_rows)
        out_ends[run] = emitted
    return emitted, ALL_FOLDED, 0


@njit(
    "Tuple((int64[::1], int64[::1], uint8[::1], int64))(int64[::1], int64[::1], int64, int64, int64)",
    cache=True,
    nogil=True,
)
def assign_windows(event_times: Any, limits: Any, size: Any, slide: Any, offset: Any) -> Any:
    """Return (row, window start) for each window that a row still falls into, which rows are late, and how many.

    A row is late if any of its windows ends at or before its limit, the watermark as its bucket began.
    """
    most = (size + slide - 1) // slide
    rows = np.empty(event_times.shape[0] * most, np.int64)
    starts = np.empty(event_times.shape[0] * most, np.int64)
    late = np.zeros(event_times.shape[0], np.uint8)
    count = 0
    late_count = 0
    for row in range(event_times.shape[0]):
        time = event_times[row]
        since = (time - offset) % slide
        start = time - since
        while start + size > time:
            if start + size <= limits[row]:
                if late[row] == 0:
                    late[row] = 1
                    late_count += 1
            else:
                rows[count] = row
                starts[count] = start
                count += 1
            start -= slide
    return rows[:count].copy(), starts[:count].copy(), late, late_count


@njit(
    "int64[:, ::1](int64[::1], int32[::1], int64[::1], int64, int64)",
    cache=True,
    nogil=True,
)
def gather_words(words: Any, table: Any, records: Any, first: Any, count: Any) -> Any:
    """Return `count` words of each record, from its word `first` on."""
    gathered = np.empty((records.shape[0], count), np.int64)
    for j in range(records.shape[0]):
        start = address(table, records[j]) + first
        for word in range(count):
            gathered[j, word] = words[start + word]
    return gathered


@njit(
    "void(int64[::1], int32[::1], int64[::1], int64, int64[:, ::1])",
    cache=True,
    nogil=True,
)
def scatter_words(words: Any, table: Any, records: Any, first: Any, values: Any) -> None:
    """Put the words of row `j` of `values` into record `j`, from its word `first` on."""
    for j in range(records.shape[0]):
        start = address(table, records[j]) + first
        for word in range(values.shape[1]):
            words[start + word] = values[j, word]
