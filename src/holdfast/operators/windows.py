"""Count windows, time windows, and the running aggregate of one unit.

Invariants:
    * What a window gives depends on its rows and their order alone, never on how buckets are grouped into waves.
    * Results leave in the order (bucket, time of closing, window end, key). A count window closes at the row that
      fills it, so its place in the union is its time of closing; results that come out together, at a watermark, at
      the end of a bucket or of the input, are ordered by window end and then by key: fixed words, variable bytes.
    * A row of bucket b is late for a time window that ends at or before the watermark as b begins. So no row comes to
      a window after the bucket that closes it, and one pass over a whole wave gives what one pass per bucket would.
    * When the input ends, every open window closes. A key that goes on later does so as if they had been filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import plan
from holdfast.errors import BadRow, UnsupportedQuery
from holdfast.model import NO_WATERMARK
from holdfast.operators.aggregates import (
    AggregateLayout,
    Arguments,
    Gather,
    encode_arguments,
)
from holdfast.operators.columns import Words, from_variable
from holdfast.operators.keys import NO_DATA, NO_OFFSETS, EncodedKeys, KeyLayout, extend_hashes
from holdfast.operators.union import BucketRuns, Watermarks
from holdfast.operators.variable_values import VariableValues, gather_spans
from holdfast.operators.window_kernels import (
    ALL_FOLDED,
    CLOSED_HEAD,
    COUNT_LAST,
    COUNT_SEEN,
    COUNT_SLOTS,
    RUNNING,
    RUNNING_HEAD,
    SLIDING,
    TIME,
    TIME_HEAD,
    TUMBLING,
    assign_windows,
    fold_rows,
    gather_words,
    scatter_words,
)
from holdfast.state.layout import PAGE_WORDS, OrderedLayout, RecordLayout, StateLayout
from holdfast.state.map_kernels import live_records
from holdfast.state.unit_state import UnitState

RECORDS = "windows"
CLOSING = "closing"
NO_ROWS = np.zeros(0, np.int64)
HEAP_WORDS_MAX = 63
"""A record names its variable values by the bits of one word."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a wave as windows take them, in the union's order."""

    keys: EncodedKeys
    arguments: Sequence[pa.Array]
    times: Words
    runs: BucketRuns

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Closed:
    """Windows that have come out, in order. `starts`, `ends` and `numbers` are None where there is no such thing."""

    keys: EncodedKeys
    buckets: Words
    values: Words
    gather: Gather
    starts: Words | None = None
    ends: Words | None = None
    numbers: Words | None = None


def slots_of(window: plan.CountWindow) -> int:
    """Return how many count windows of a key can be open at once."""
    return -(-window.size // window.slide)


def state_layout(
    window: plan.TimeWindow | plan.CountWindow | None, keys: KeyLayout, aggregates: AggregateLayout
) -> StateLayout:
    """Return what a unit with this window keeps."""
    width = aggregates.word_count
    variable = aggregates.variable_words
    if isinstance(window, plan.CountWindow):
        slots = slots_of(window)
        heads = [COUNT_SLOTS + slot * (width + 1) + 1 for slot in range(slots)]
        values = COUNT_SLOTS + slots * (width + 1)
        layout = _records(keys.word_count, keys.variable, values, [head + word for head in heads for word in variable])
        return StateLayout((layout,))
    if isinstance(window, plan.TimeWindow):
        values = TIME_HEAD + width
        layout = _records(keys.word_count + 1, keys.variable, values, [TIME_HEAD + word for word in variable])
        return StateLayout((layout,), (OrderedLayout(CLOSING, RECORDS, 0),))
    values = RUNNING_HEAD + width
    return StateLayout((_records(keys.word_count, keys.variable, values, [RUNNING_HEAD + word for word in variable]),))


def _records(keys: int, variable: bool, values: int, heap_values: list[int]) -> RecordLayout:
    layout = RecordLayout(RECORDS, keys, variable, values, tuple(heap_values))
    if layout.width > PAGE_WORDS or values + 2 > PAGE_WORDS or any(word > HEAP_WORDS_MAX for word in heap_values):
        raise UnsupportedQuery(
            f"the open windows of one key need {layout.width} words ({len(heap_values)} of them for text), more than "
            "a record holds: use fewer aggregates, or a count window whose slide is a larger part of its size"
        )
    return layout


class Windows:
    """What all three kinds share: the records of a unit and how a pass over rows is made."""

    def __init__(self, state: UnitState, aggregates: AggregateLayout) -> None:
        self.state = state
        self.aggregates = aggregates
        self.width = aggregates.word_count
        self.map = state.maps[RECORDS]
        self.heap = state.heap
        self.values = VariableValues(state, self.map, self.heap, self.map.layout.heap_values)

    def locate(self, keys: EncodedKeys) -> tuple[Words, Any]:
        """Find or make the records of the rows and save what they were."""
        offsets = keys.variable_offsets if self.map.layout.variable else NO_OFFSETS
        records, is_new = self.map.locate(keys.hashes, keys.words, offsets, keys.variable_data)
        self.state.publish()
        return records, is_new

    def arguments(self, rows: Rows, records: Words) -> Arguments:
        kept = self.values.enter(records)
        return encode_arguments(self.aggregates, rows.arguments, len(rows), kept)

    def fold_rows(
        self,
        mode: int,
        rows: Rows,
        records: Words,
        found: Arguments,
        chosen: Words,
        out_ends: Words,
        shape: tuple[int, int, int] = (1, 1, 1),
    ) -> tuple[Words, Words]:
        """Run the kernel; return the words of what it put out, and for each the row at which it did."""
        room = 0 if mode == TIME else len(rows)
        out = np.empty((room, CLOSED_HEAD + self.width), np.int64)
        out_rows = np.empty(room, np.int64)
        emitted, row, failed = fold_rows(
            mode,
            self.state.words,
            self.state.reals,
            self.map.table,
            self.map.first_value,
            records,
            chosen,
            rows.times,
            *shape,
            self.width,
            found.program,
            found.matrix,
            found.numbers,
            found.valid,
            found.data,
            out,
            out_rows,
            rows.runs.ends,
            out_ends,
        )
        self.check(row, failed, rows)
        self.values.leave(found.data)
        return out[:emitted], out_rows[:emitted]

    def check(self, row: int, aggregate: int, rows: Rows) -> None:
        """Raise for a row whose aggregate does not fit."""
        if row == ALL_FOLDED:
            return
        slot = self.aggregates.slots[aggregate]
        assert slot.argument is not None
        error = BadRow(
            f"{slot.function} {slot.name!r} does not fit {slot.type} any more at the value "
            f"{rows.arguments[slot.argument][row].as_py()!r}: cast its argument to a wider type, or to double"
        )
        error.row = row
        raise error

    def stored_keys(self, records: Words, key_words: int) -> EncodedKeys:
        """Return the first `key_words` words of the keys of these records, and the variable part."""
        layout = self.map.layout
        words = gather_words(self.state.words, self.map.table, records, self.map.first_key, key_words)
        if not layout.variable:
            return EncodedKeys(words, NO_OFFSETS, NO_DATA, np.zeros(len(records), np.uint64))
        place = self.map.first_key + layout.keys
        pairs = gather_words(self.state.words, self.map.table, records, place, 2)
        offsets, data = self.heap.gather(np.ascontiguousarray(pairs[:, 1]), np.ascontiguousarray(pairs[:, 0]))
        return EncodedKeys(words, offsets, data, np.zeros(len(records), np.uint64))

    def live(self) -> Words:
        """Return the records of all keys."""
        records = np.empty(self.map.count, np.int64)
        super_block = self.state.file.set_of(RECORDS).super
        _, count = live_records(self.state.words, self.state.halves, super_block, 0, records)
        assert count == len(records), "the map counts as many keys as there are live records"
        return records

    def stored_values(self, records: Words, first: int, count: int) -> Words:
        """Return `count` value words of each record from value word `first` on."""
        place = self.map.first_value + first
        values: Words = gather_words(self.state.words, self.map.table, records, place, count)
        return values


class CountWindows(Windows):
    """`hf.count_window(size, slide)`."""

    def __init__(self, state: UnitState, aggregates: AggregateLayout, window: plan.CountWindow) -> None:
        super().__init__(state, aggregates)
        self.window = window
        self.slots = slots_of(window)

    def fold(self, rows: Rows) -> Closed:
        """Fold the rows and return the windows that they filled."""
        records, _ = self.locate(rows.keys)
        found = self.arguments(rows, records)
        size, slide = self.window.size, self.window.slide
        mode = TUMBLING if size == slide else SLIDING
        out, out_rows = self.fold_rows(mode, rows, records, found, NO_ROWS, NO_ROWS, (size, slide, self.slots))
        return Closed(
            rows.keys.take(out_rows),
            rows.runs.of_rows(out_rows),
            out[:, CLOSED_HEAD:],
            lambda starts, lengths: gather_spans(starts, lengths, found.data),
            starts=np.ascontiguousarray(out[:, 1]),
            ends=np.ascontiguousarray(out[:, 2]),
            numbers=np.ascontiguousarray(out[:, 0]),
        )

    def end(self, bucket: int) -> Closed:
        """Close every open window, partly filled as it is."""
        records = self.live()
        heads = self.stored_values(records, 0, COUNT_SLOTS)
        seen, last = heads[:, COUNT_SEEN], heads[:, COUNT_LAST]
        size, slide = self.window.size, self.window.slide
        newest = (seen - 1) // slide
        found: list[tuple[Words, Words]] = []
        for back in range(self.slots):
            number = newest - back
            is_open = (number >= 0) & (number * slide + size > seen) & (number * slide < seen)
            found.append((np.flatnonzero(is_open), number[is_open]))
        places = np.concatenate([place for place, _ in found])
        numbers = np.concatenate([number for _, number in found])
        values = self._slot_values(records[places], numbers % self.slots)
        closed = Closed(
            self.stored_keys(records[places], self.map.layout.keys),
            np.full(len(places), bucket, np.int64),
            np.ascontiguousarray(values[:, 1:]),
            self.heap.gather,
            starts=np.ascontiguousarray(values[:, 0]),
            ends=np.ascontiguousarray(last[places]),
            numbers=numbers,
        )
        self._skip_open(records, seen, newest, np.unique(places))
        return in_order(closed)

    def _slot_values(self, records: Words, slots: Words) -> Words:
        values = np.empty((len(records), 1 + self.width), np.int64)
        for slot in range(self.slots):
            chosen = np.flatnonzero(slots == slot)
            values[chosen] = self.stored_values(
                np.ascontiguousarray(records[chosen]), COUNT_SLOTS + slot * (self.width + 1), self.width + 1
            )
        return values

    def _skip_open(self, records: Words, seen: Words, newest: Words, places: Words) -> None:
        """Let the keys of these records go on behind the windows that were open, as if those had been filled."""
        size, slide = self.window.size, self.window.slide
        chosen = np.ascontiguousarray(records[places])
        self.map.touch(chosen)
        self.state.publish()
        ahead = -(-(newest[places] * slide + size) // slide) * slide
        scatter_words(self.state.words, self.map.table, chosen, self.map.first_value + COUNT_SEEN, ahead.reshape(-1, 1))


class RunningAggregate(Windows):
    """No window: each key that changed in a bucket gives its aggregates as the bucket leaves them."""

    def fold(self, rows: Rows) -> Closed:
        """Fold the rows and return one result for each bucket and key that changed in it."""
        records, _ = self.locate(rows.keys)
        found = self.arguments(rows, records)
        out_ends = np.empty(len(rows.runs.ends), np.int64)
        out, out_rows = self.fold_rows(RUNNING, rows, records, found, NO_ROWS, out_ends)
        closed = Closed(
            rows.keys.take(out_rows),
            np.repeat(rows.runs.buckets, np.diff(out_ends, prepend=0)),
            out[:, CLOSED_HEAD:],
            lambda starts, lengths: gather_spans(starts, lengths, found.data),
        )
        return in_order(closed)


class TimeWindows(Windows):
    """`F.window(event_time, size, slide)`."""

    def __init__(self, state: UnitState, aggregates: AggregateLayout, window: plan.TimeWindow) -> None:
        super().__init__(state, aggregates)
        self.window = window
        self.closing = state.ordered[CLOSING]

    def assign(self, event_times: Words, limits: Words) -> tuple[Words, Words, Any]:
        """Return (row, window start) for each window a row is in and not late for, and which rows are late."""
        window = self.window
        rows, starts, late, _ = assign_windows(
            np.ascontiguousarray(event_times),
            np.ascontiguousarray(limits),
            window.size_us,
            window.slide_us,
            window.start_us,
        )
        return rows, starts, late.view(np.bool_)

    def fold(self, rows: Rows, chosen: Words, starts: Words) -> None:
        """Fold row `chosen[j]` into the window of its key that begins at `starts[j]`."""
        if len(chosen) == 0:
            return
        records, is_new = self.locate(_with_starts(rows.keys, chosen, starts))
        fresh = np.flatnonzero(is_new)
        ends = starts[fresh] + self.window.size_us
        made = np.ascontiguousarray(records[fresh])
        scatter_words(self.state.words, self.map.table, made, self.map.first_value, ends.reshape(-1, 1))
        self.closing.add(ends, made)
        found = self.arguments(rows, records)
        self.fold_rows(TIME, rows, records, found, chosen, NO_ROWS)

    def closes(self, watermarks: Watermarks) -> bool:
        """Return whether the watermark has passed the end of a window that is there."""
        return self.closing.has_before(_limit(watermarks))

    def close(self, watermarks: Watermarks) -> Closed:
        """Return the windows that the watermark has passed, each in the bucket in which it did."""
        ends, records = self.closing.pop_until(_limit(watermarks))
        return self._give(ends, records, watermarks.closing_bucket(ends))

    def end(self, bucket: int) -> Closed:
        """Close every window that is still open."""
        ends, records = self.closing.pop_until(2**63 - 1)
        return self._give(ends, records, np.full(len(ends), bucket, np.int64))

    def _give(self, ends: Words, records: Words, buckets: Words) -> Closed:
        values = self.stored_values(records, TIME_HEAD, self.width)
        closed = Closed(
            self.stored_keys(records, self.map.layout.keys - 1),
            buckets,
            values,
            self.heap.gather,
            starts=ends - self.window.size_us,
            ends=ends,
        )
        if len(records):
            self.map.free(records)
        return in_order(closed)


def edges_to_come(window: plan.TimeWindow, edge: str, watermarks: Words) -> Words:
    """Return, for each watermark, the first edge ("start" or "end") of a window that it has not closed."""
    past = (watermarks - window.start_us - window.size_us) % window.slide_us
    ends = watermarks - past + window.slide_us
    found = ends if edge == "end" else ends - window.size_us
    return np.where(watermarks == NO_WATERMARK, NO_WATERMARK, found)


def _limit(watermarks: Watermarks) -> int:
    """Return what the end of a window that closes is below."""
    # Only a row's event time moves the watermark; without one nothing can have come to its end.
    return watermarks.last() + 1 if len(watermarks.after) else NO_WATERMARK


def _with_starts(keys: EncodedKeys, chosen: Words, starts: Words) -> EncodedKeys:
    """Return the keys of the chosen rows with the window's start as one more word."""
    if len(chosen) == len(keys.hashes) and bool(np.array_equal(chosen, np.arange(len(chosen)))):
        taken = keys
    else:
        taken = keys.take(chosen)
    words = np.empty((len(starts), keys.words.shape[1] + 1), np.int64)
    words[:, :-1] = taken.words
    words[:, -1] = starts
    hashes = extend_hashes(np.ascontiguousarray(taken.hashes), starts)
    return EncodedKeys(words, taken.variable_offsets, taken.variable_data, hashes)


def in_order(closed: Closed) -> Closed:
    """Return the windows ordered by bucket, window end, window number and key."""
    columns: list[Words] = []
    if len(closed.keys.variable_offsets) > 1:
        array = from_variable(closed.keys.variable_offsets, closed.keys.variable_data, None, pa.large_binary())
        columns.append(pc.rank(array, tiebreaker="dense").to_numpy().view(np.int64))
    columns.extend(closed.keys.words[:, word] for word in range(closed.keys.words.shape[1] - 1, -1, -1))
    columns.extend(column for column in (closed.numbers, closed.ends, closed.buckets) if column is not None)
    # A column with one value orders nothing.
    columns = [column for column in columns if len(column) and bool((column != column[0]).any())]
    if not columns:
        return closed
    order = np.argsort(columns[0], kind="stable") if len(columns) == 1 else np.lexsort(columns)
    return Closed(
        closed.keys.take(order),
        closed.buckets[order],
        closed.values[order],
        closed.gather,
        *(None if column is None else column[order] for column in (closed.starts, closed.ends, closed.numbers)),
    )
