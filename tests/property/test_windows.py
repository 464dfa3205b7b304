"""Windows against plain Python, and against themselves with the same buckets grouped into other waves."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.operators.harness import WIDTH_US, aggregate, column, make_stage, stamped, unit

from holdfast import plan
from holdfast.operators.union import InputRows

TIMES = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("key", pa.string()), ("place", pa.int32()), ("value", pa.int64()), ("text", pa.string()), ("at", TIMES)]
)
AGGREGATES = [
    aggregate("rows", "count_all", None, "bigint"),
    aggregate("values", "count", column("value", SCHEMA), "bigint"),
    aggregate("total", "sum", column("value", SCHEMA), "bigint"),
    aggregate("low", "min", column("text", SCHEMA), "string"),
    aggregate("high", "max", column("text", SCHEMA), "string"),
    aggregate("first", "first", column("text", SCHEMA), "string"),
    aggregate("last", "last", column("text", SCHEMA), "string", ignore_nulls=True),
    aggregate("mean", "avg", column("value", SCHEMA), "double"),
]
QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Row = tuple[str | None, int | None, int | None, str | None, int | None]
rows = st.tuples(
    st.sampled_from(["", "a", "b", "ab", "longer than eight", None]),
    st.sampled_from([0, 1, None]),
    st.one_of(st.none(), st.integers(-100, 100)),
    st.one_of(st.none(), st.text("abc", max_size=20)),
    st.one_of(st.none(), st.integers(0, 60)),
)
frames = st.lists(st.tuples(st.integers(0, 3), st.lists(rows, max_size=12)), min_size=1, max_size=8)
"""Frames in commit order: how many buckets later than the one before, and the rows."""
cuts = st.lists(st.booleans(), min_size=64, max_size=64)


def batch_of(found: Sequence[Row]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) if found else [[], [], [], [], []]
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def placed(found: Sequence[tuple[int, list[Row]]]) -> list[tuple[int, list[Row]]]:
    """Return (bucket, rows) of each frame."""
    bucket = 0
    out = []
    for later, part in found:
        bucket += later
        out.append((bucket, part))
    return out


def run(
    stage: plan.Stage, found: list[tuple[int, list[Row]]], ends: Sequence[int], ended: bool
) -> tuple[Any, Any, int]:
    with tempfile.TemporaryDirectory() as folder, unit(Path(folder), stage) as opened:
        start = 0
        for number, end in enumerate(ends):
            inputs: list[InputRows] = [
                stamped(batch_of(part), bucket, stage.inputs[0].event_time)
                for bucket, part in found
                if start <= bucket < end
            ]
            opened.wave([inputs], end, ended and number == len(ends) - 1)
            start = end
        return opened.rows(), opened.digests(), sum(output.rows_late for output in opened.outputs)


def wave_ends(last: int, chosen: list[bool]) -> list[int]:
    return [bucket for bucket in range(1, last + 1) if chosen[bucket % len(chosen)]] + [last + 1]


def folded(part: Sequence[Row]) -> dict[str, Any]:
    values = [row[2] for row in part if row[2] is not None]
    texts = [row[3] for row in part if row[3] is not None]
    return {
        "rows": len(part),
        "values": len(values),
        "total": sum(values) if values else None,
        "low": min(texts, default=None),
        "high": max(texts, default=None),
        "first": part[0][3],
        "last": texts[-1] if texts else None,
        "mean": sum(values) / len(values) if values else None,
    }


def comparable(result: dict[str, Any]) -> str:
    return repr(sorted(result.items(), key=lambda item: item[0]))


def microseconds(value: Any) -> int:
    return int(pa.scalar(value, TIMES).cast(pa.int64()).as_py())


@QUICK
@given(frames, cuts, st.sampled_from([(1, 1), (3, 3), (3, 1), (3, 2), (4, 2), (2, 3), (1, 4)]), st.booleans())
def test_count_windows(found: Any, chosen: list[bool], shape: tuple[int, int], ended: bool) -> None:
    size, slide = shape
    stage = make_stage(SCHEMA, ["key", "place"], AGGREGATES, plan.CountWindow(size, slide))
    found = placed(found)
    last = found[-1][0]
    results, digests, _ = run(stage, found, [last + 1], ended)
    by_key: dict[Any, list[tuple[int, Row]]] = {}
    for bucket, part in found:
        for row in part:
            by_key.setdefault(row[:2], []).append((bucket, row))
    expected = []
    for key, tuples in by_key.items():
        for number in range(len(tuples)):
            inside = tuples[number * slide : number * slide + size]
            if not inside or (len(inside) < size and not ended):
                continue
            window = {"start": inside[0][0] * WIDTH_US, "end": inside[-1][0] * WIDTH_US, "number": number}
            expected.append({"key": key[0], "place": key[1], "window": window, **folded([row for _, row in inside])})
    for result in results:
        result["window"] = {
            name: value if name == "number" else microseconds(value) for name, value in result["window"].items()
        }
    assert sorted(map(comparable, results)) == sorted(map(comparable, expected))
    regrouped, digests_again, _ = run(stage, found, wave_ends(last, chosen), ended)
    assert digests_again == digests
    assert len(regrouped) == len(results)


@QUICK
@given(frames, cuts, st.sampled_from([(10, 10), (10, 5), (9, 4), (20, 3)]), st.integers(0, 10), st.booleans())
def test_time_windows(found: Any, chosen: list[bool], shape: tuple[int, int], delay: int, ended: bool) -> None:
    size, slide = shape
    window = plan.TimeWindow(column("at", SCHEMA), size, slide)
    stage = make_stage(SCHEMA, ["key", "place"], AGGREGATES, window, event_time="at", delay_us=delay)
    found = placed(found)
    last = found[-1][0]
    results, digests, late = run(stage, found, [last + 1], ended)

    highest, watermark, late_expected = None, None, 0
    open_windows: dict[Any, list[Row]] = {}
    expected = []
    for bucket in range(last + 1):
        here = [row for at, part in found if at == bucket for row in part if row[4] is not None]
        for row in here:
            time = row[4]
            assert time is not None
            starts = [start for start in range(time - time % slide, time - size, -slide)]
            missed = [start for start in starts if watermark is not None and start + size <= watermark]
            late_expected += bool(missed)
            for start in set(starts) - set(missed):
                open_windows.setdefault((start, *row[:2]), []).append(row)
        times = [row[4] for row in here if row[4] is not None]
        highest = max([*times, *([highest] if highest is not None else [])], default=None)
        watermark = None if highest is None else highest - delay
        closing = [
            key
            for key in open_windows
            if (watermark is not None and key[0] + size <= watermark) or (ended and bucket == last)
        ]
        for key in closing:
            part = open_windows.pop(key)
            expected.append(
                {"bucket": bucket, "key": key[1], "place": key[2], "window": (key[0], key[0] + size), **folded(part)}
            )
    buckets = [bucket for bucket, count, _ in digests for _ in range(count)]
    for bucket, result in zip(buckets, results, strict=True):
        result["bucket"] = bucket
        result["window"] = (microseconds(result["window"]["start"]), microseconds(result["window"]["end"]))
    assert sorted(map(comparable, results)) == sorted(map(comparable, expected))
    assert late == late_expected
    ends = [(result["bucket"], result["window"][1]) for result in results]
    if not ended:
        assert ends == sorted(ends)
    regrouped, digests_again, late_again = run(stage, found, wave_ends(last, chosen), ended)
    assert digests_again == digests
    assert late_again == late
    assert len(regrouped) == len(results)


@QUICK
@given(frames, cuts)
def test_running_aggregate(found: Any, chosen: list[bool]) -> None:
    stage = make_stage(SCHEMA, ["key", "place"], AGGREGATES)
    found = placed(found)
    last = found[-1][0]
    results, digests, _ = run(stage, found, [last + 1], False)
    seen: dict[Any, list[Row]] = {}
    expected = []
    for bucket in range(last + 1):
        changed = {row[:2]: None for at, part in found if at == bucket for row in part}
        for at, part in found:
            for row in part if at == bucket else []:
                seen.setdefault(row[:2], []).append(row)
        expected += [{"key": key[0], "place": key[1], **folded(seen[key])} for key in changed]
    assert sorted(map(comparable, results)) == sorted(map(comparable, expected))
    assert run(stage, found, wave_ends(last, chosen), False)[1] == digests


@pytest.mark.parametrize("keys", [["key"], []])
def test_a_wave_that_is_given_up_leaves_no_trace(keys: list[str], tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, keys, AGGREGATES, plan.CountWindow(3, 2))
    found: list[Row] = [("a", 0, n, f"text {n}", n) for n in range(10)]
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(batch_of(found[:5]), 0)]], 1)
        assert opened.state is not None
        opened.state.begin(1)
        opened.operator.process([[stamped(batch_of([("a", 0, 999, "zzz", 0)] * 4), 1)]], 1, 2)
        opened.state.end()
        opened.wave([[stamped(batch_of(found[5:]), 1)]], 2)
        digests = opened.digests()
    (tmp_path / "again").mkdir()
    with unit(tmp_path / "again", stage) as opened:
        opened.wave([[stamped(batch_of(found[:5]), 0), stamped(batch_of(found[5:]), 1)]], 2)
        assert opened.digests() == digests
