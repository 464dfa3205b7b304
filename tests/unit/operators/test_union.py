"""The union's order, buckets and watermark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SchemaMismatch
from holdfast.model import NO_WATERMARK
from holdfast.operators.union import (
    InputRows,
    Slice,
    bucket_runs,
    conform,
    follow_watermarks,
    merge,
    seen_event_times,
)

SCHEMA = pa.schema([("name", pa.int64())])


def part(source: int, names: list[int], times: list[int]) -> Slice:
    batch = pa.RecordBatch.from_arrays([pa.array(names, pa.int64())], schema=SCHEMA)
    stamps = np.array(times, np.int64)
    return Slice(source, 0, 0, batch, stamps, batch, stamps, np.arange(len(names)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 30), max_size=5).map(sorted)), max_size=6))
def test_the_order_is_tuple_time_then_input_then_commit_then_position(found: list[tuple[int, list[int]]]) -> None:
    slices, expected, name = [], [], 0
    for commit, (source, times) in enumerate(found):
        names = list(range(name, name + len(times)))
        name += len(times)
        slices.append(part(source, names, times))
        expected += [(time, source, commit, here) for time, here in zip(times, names, strict=True)]
    union = merge(slices, SCHEMA, 10)
    expected.sort()
    assert union.batch["name"].to_pylist() == [row[3] for row in expected]
    assert union.times.tolist() == [row[0] for row in expected]
    for row in range(len(expected)):
        piece, place = union.locate(row)
        assert piece.batch["name"][place].as_py() == expected[row][3]
    buckets = np.repeat(union.runs.buckets, np.diff(union.runs.ends, prepend=0))
    assert buckets.tolist() == [row[0] // 10 for row in expected]
    odd = np.arange(1, len(expected), 2)
    kept = union.take(odd)
    assert kept.batch["name"].to_pylist() == [row[3] for row in expected[1::2]]
    assert np.repeat(kept.runs.buckets, np.diff(kept.runs.ends, prepend=0)).tolist() == buckets[1::2].tolist()
    for row in range(len(odd)):
        piece, place = kept.locate(row)
        assert piece.batch["name"][place].as_py() == expected[1::2][row][3]


def test_buckets_far_apart_are_found_without_walking_over_those_between() -> None:
    runs = bucket_runs(np.array([-5, 3, 4, 10**15], np.int64), 10)
    assert runs.buckets.tolist() == [-1, 0, 10**14]
    assert runs.ends.tolist() == [1, 3, 4]
    assert runs.of_rows(np.array([0, 2, 3])).tolist() == [-1, 0, 10**14]


def frame(bucket: int, highest: int) -> InputRows:
    return InputRows(part(0, [], []).batch, bucket * 10, highest)


def test_the_watermark_is_the_least_of_the_inputs_and_never_goes_back() -> None:
    runs = [[frame(0, 100), frame(1, 50), frame(4, 300)], [frame(2, 90), frame(3, NO_WATERMARK)], [frame(0, 7)]]
    seen = seen_event_times(runs, [True, True, False], 10)
    marks, maxima = follow_watermarks(seen, [10, 20, None], [NO_WATERMARK] * 3)
    assert marks.before == NO_WATERMARK
    assert marks.buckets.tolist() == [0, 1, 2, 4]
    assert marks.after.tolist() == [NO_WATERMARK, NO_WATERMARK, 70, 70]
    assert maxima == [300, 90, NO_WATERMARK]
    assert marks.at_start(np.array([2, 3, 4, 5])).tolist() == [NO_WATERMARK, 70, 70, 70]
    assert marks.closing_bucket(np.array([60, 70])).tolist() == [2, 2]
    again, _ = follow_watermarks([], [10, 20, None], maxima)
    assert again.before == 70 == again.last()


def test_rows_are_conformed_or_refused_by_column() -> None:
    batch = pa.RecordBatch.from_pydict({"name": pa.array([1], pa.int32())})
    assert conform(batch, SCHEMA, "the rows").schema.equals(SCHEMA)
    with pytest.raises(SchemaMismatch, match="column 'name' of the rows has type string, expected int64"):
        conform(pa.RecordBatch.from_pydict({"name": ["x"]}), SCHEMA, "the rows")
