"""One unit of a stage: order, windows that close, late rows, rows that fail, functions of the user's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.operators.harness import WIDTH_US, aggregate, column, make_stage, serialized, stamped, unit

from holdfast import plan
from holdfast.errors import BadRow, SchemaMismatch, UnsupportedQuery, UserFunctionFailed
from holdfast.operators.keys import shard_of
from holdfast.operators.sharding import hash_rows
from holdfast.operators.stage import UnitOperator, layout_of
from holdfast.operators.union import InputRows

TIMES = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", TIMES)])
COUNT = aggregate("rows", "count_all", None, "bigint")
TOTAL = aggregate("total", "sum", column("value", SCHEMA), "bigint")
LAST = aggregate("last", "last", column("value", SCHEMA), "bigint")
FIRST = aggregate("first", "first", column("value", SCHEMA), "bigint")
TEN_AT = plan.TimeWindow(column("at", SCHEMA), 10, 10)


def rows(*found: tuple[int | None, int | None, int | None]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) if found else [(), (), ()]
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def timed(batch: pa.RecordBatch) -> InputRows:
    highest: dict[int, int] = {}
    for value in batch["at"].cast(pa.int64()).to_pylist():
        highest[value // WIDTH_US] = max(highest.get(value // WIDTH_US, value), value)
    return InputRows(batch, None, bucket_table=sorted(highest.items()), tuple_time="at")


def test_rows_meet_in_the_order_of_tuple_time_then_input_then_commit(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [FIRST, LAST], plan.CountWindow(2, 2), inputs=("a", "b"))
    with unit(tmp_path, stage) as opened:
        opened.wave(
            [
                [stamped(rows((1, 30, 0)), 1), stamped(rows((1, 31, 0), (1, 32, 0)), 1)],
                [stamped(rows((1, 20, 0)), 0), stamped(rows((1, 40, 0)), 1, within_us=1)],
            ],
            2,
            ended=True,
        )
        assert [(row["first"], row["last"]) for row in opened.rows()] == [(20, 30), (31, 32), (40, 40)]


def test_column_timed_inputs_are_merged_row_by_row(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [FIRST, LAST], plan.CountWindow(2, 2), inputs=("a", "b"))
    frames = [[timed(rows((1, 10, 100), (1, 11, 1500)))], [timed(rows((1, 20, 100), (1, 21, 700), (1, 22, 1500)))]]
    with unit(tmp_path, stage) as opened:
        opened.wave(frames, 1)
        opened.wave(frames, 2, ended=True)
        assert [(row["first"], row["last"]) for row in opened.rows()] == [(10, 20), (21, 11), (22, 22)]
        assert [(bucket, count) for bucket, count, _ in opened.digests()] == [(0, 1), (1, 2)]


def test_the_count_window_names_its_first_and_last_tuple_and_its_number(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [TOTAL], plan.CountWindow(2, 2))
    with unit(tmp_path, stage) as opened:
        for bucket in range(5):
            opened.wave([[stamped(rows((7, bucket, 0)), bucket)]], bucket + 1, ended=bucket == 4)
        found = [
            (pa.scalar(row["window"]["start"], TIMES).value, pa.scalar(row["window"]["end"], TIMES).value,
             row["window"]["number"], row["total"])
            for row in opened.rows()
        ]  # fmt: skip
        assert found == [(0, 1000, 0, 1), (2000, 3000, 1, 5), (4000, 4000, 2, 4)]
        # After an end a key goes on with a new window.
        opened.wave([[stamped(rows((7, 9, 0), (7, 1, 0)), 5)]], 6)
        assert opened.rows()[-1]["window"]["number"] == 3 and opened.rows()[-1]["total"] == 10


def test_windows_that_close_together_leave_by_window_end_then_key(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at")
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(rows((3, 0, 11), (9, 0, 1), (-5, 0, 12), (2, 0, 3)), 0, "at")]], 1)
        opened.wave([[stamped(rows((1, 0, 30)), 1, "at")]], 2)
        assert [row["key"] for row in opened.rows()] == [2, 9, -5, 3]


def test_event_times_of_other_shards_move_the_watermark(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at", delay_us=5)
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(rows((1, 0, 1)), 0, "at")]], 1)
        opened.wave([[InputRows(rows(), 1 * WIDTH_US, 14)]], 2)
        assert opened.rows() == []
        opened.wave([[InputRows(rows(), 2 * WIDTH_US, 15)]], 3)
        assert [(row["key"], row["rows"]) for row in opened.rows()] == [(1, 1)]


def test_event_times_of_buckets_outside_the_wave_do_not_move_the_watermark(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at")
    table = [(0, 5), (1, WIDTH_US), (2, 2 * WIDTH_US)]
    frame = InputRows(
        rows((1, 0, 5), (2, 0, WIDTH_US), (3, 0, 2 * WIDTH_US)), None, bucket_table=table, tuple_time="at"
    )
    with unit(tmp_path, stage) as opened:
        opened.wave([[frame]], 1)
        assert opened.rows() == []
        opened.wave([[frame]], 2)
        assert [row["key"] for row in opened.rows()] == [1]


def test_the_slowest_input_decides_the_watermark(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at", inputs=("a", "b"))
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(rows((1, 0, 500)), 0, "at")], []], 1)
        assert opened.wave([[], [stamped(rows((2, 0, 8)), 1, "at")]], 2).rows_late == 0
        opened.wave([[], [stamped(rows((2, 0, 25)), 2, "at")]], 3)
        assert [row["key"] for row in opened.rows()] == [2]


def test_late_rows_are_counted_and_put_aside_as_they_were_logged(tmp_path: Path) -> None:
    doubled = plan.Project([plan.Named("key", column("key", SCHEMA)), plan.Named("at", column("at", SCHEMA))])
    union = pa.schema([("key", pa.int64()), ("at", TIMES)])
    stage = make_stage(
        SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at", late="side", steps=[doubled], union_schema=union
    )
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(rows((1, 5, 40)), 0, "at")]], 1)
        output = opened.wave([[stamped(rows((1, 6, 49), (1, 7, 41), (2, 8, 3)), 1, "at")]], 2)
        assert (output.rows_in, output.rows_late) == (3, 1)
        assert [part.stream for part in output.late] == ["rows"]
        assert output.late[0].batch.to_pylist() == rows((2, 8, 3)).to_pylist()
        assert (output.late[0].buckets, output.late[0].row_ends) == ([1], [1])


def test_rows_without_event_time_are_in_no_window(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at")
    with unit(tmp_path, stage) as opened:
        output = opened.wave([[stamped(rows((1, 0, None), (1, 0, 4)), 0, "at")]], 1, ended=True)
        assert output.rows_late == 0
        assert [row["rows"] for row in opened.rows()] == [1]


def test_each_shard_takes_its_own_rows_of_an_input_that_is_sharded_otherwise(tmp_path: Path) -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT], sharded=False)
    batch = rows(*((key, 0, 0) for key in range(50)))
    owners = shard_of(hash_rows(batch, ["key"]), 3).tolist()
    for shard in range(3):
        (tmp_path / str(shard)).mkdir()
        with unit(tmp_path / str(shard), stage, shard=shard, shards=3) as opened:
            opened.wave([[stamped(batch, 0)]], 1)
            assert sorted(row["key"] for row in opened.rows()) == [key for key in range(50) if owners[key] == shard]


def test_a_running_aggregate_without_keys_has_one_row_per_bucket(tmp_path: Path) -> None:
    with unit(tmp_path, make_stage(SCHEMA, [], [COUNT, TOTAL])) as opened:
        opened.wave([[stamped(rows((1, 1, 0), (2, 2, 0)), 0), stamped(rows((3, 3, 0)), 4)]], 5)
        assert opened.rows() == [{"rows": 2, "total": 3}, {"rows": 3, "total": 6}]


def doubling(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail for 13; give every row twice."""
    for batch in batches:
        if 13 in batch["value"].to_pylist():
            raise ValueError("thirteen")
        yield batch
        yield batch


def test_a_function_that_fails_names_the_row(tmp_path: Path) -> None:
    step = plan.MapInArrow(0, "doubling", serialized(SCHEMA))
    with (
        unit(tmp_path, make_stage(SCHEMA, ["key"], [COUNT], steps=[step]), [doubling], shard=4, shards=8) as opened,
        pytest.raises(UserFunctionFailed, match=r"stream 'rows', shard 4, bucket 2, position 3: ValueError: thirteen"),
    ):
        opened.wave(
            [[stamped(rows((1, 1, 0)), 2, shard=4), stamped(rows((1, 1, 0), (1, 2, 0), (5, 13, 0)), 2, shard=4)]], 3
        )


def test_a_function_may_reject_rows_and_goes_on_with_the_others(tmp_path: Path) -> None:
    step = plan.MapInArrow(0, "doubling", serialized(SCHEMA), on_error="reject")
    with unit(tmp_path, make_stage(SCHEMA, ["key"], [COUNT], steps=[step]), [doubling]) as opened:
        output = opened.wave([[stamped(rows((1, 1, 0), (1, 13, 0), (2, 3, 0)), 0)]], 1)
        assert opened.rows() == [{"key": 1, "rows": 2}, {"key": 2, "rows": 2}]
        [rejects] = output.rejects
        assert rejects.stream == "rows" and rejects.buckets == [0]
        [reject] = rejects.batch.to_pylist()
        assert reject["reason"] == "ValueError: thirteen"
        assert reject["origin"] == "stream 'rows', shard 0, bucket 0, position 1"
        assert reject["row"].startswith('{"key": 1, "value": 13')


def test_a_late_row_that_a_function_made_is_put_aside_as_its_source_row(tmp_path: Path) -> None:
    step = plan.MapInArrow(0, "doubling", serialized(SCHEMA))
    stage = make_stage(SCHEMA, ["key"], [COUNT], TEN_AT, event_time="at", late="side", steps=[step])
    with unit(tmp_path, stage, [doubling]) as opened:
        opened.wave([[stamped(rows((1, 5, 40)), 0, "at")]], 1)
        output = opened.wave([[stamped(rows((1, 6, 41), (2, 8, 3)), 1, "at")]], 2)
        assert output.rows_late == 2
        assert output.late[0].batch.to_pylist() == rows((2, 8, 3)).to_pylist()


def test_a_function_sees_the_same_rows_however_buckets_are_grouped(tmp_path: Path) -> None:
    calls: list[list[Any]] = []

    def watching(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            calls.append(batch.to_pylist())
            yield batch

    step = plan.MapInArrow(0, "watching", serialized(SCHEMA))
    result = pa.schema([("key", pa.int64()), ("rows", pa.int64())])
    after = plan.MapInArrow(0, "watching", serialized(result))
    stage = make_stage(SCHEMA, ["key"], [COUNT], steps=[step], after=[after])
    frames = [timed(rows((1, 1, 100), (2, 2, 1500), (3, 3, 1700), (4, 4, 2100))), stamped(rows((5, 5, 0)), 2)]
    seen = []
    for folder, ends in (("one", [3]), ("many", [1, 2, 3])):
        (tmp_path / folder).mkdir()
        with unit(tmp_path / folder, stage, [watching]) as opened:
            for end in ends:
                opened.wave([frames], end)
            seen.append((sorted(map(repr, calls)), opened.digests()))
            calls.clear()
    assert seen[0] == seen[1]


def test_what_a_function_gives_is_checked(tmp_path: Path) -> None:
    step = plan.MapInArrow(0, "renaming", serialized(SCHEMA))
    stage = make_stage(SCHEMA, ["key"], [COUNT], steps=[step])
    with (
        unit(tmp_path, stage, [lambda found: (part.select(["key"]) for part in found)]) as opened,
        pytest.raises(SchemaMismatch, match=r"function 'renaming' gave has the columns \['key'\]"),
    ):
        opened.wave([[stamped(rows((1, 1, 0)), 0)]], 1)


def test_texts_that_are_replaced_give_their_memory_back(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("text", pa.string())])
    text = column("text", schema)
    stage = make_stage(
        schema, ["key"], [aggregate("high", "max", text, "string"), aggregate("last", "last", text, "string")]
    )
    with unit(tmp_path, stage) as opened:
        assert opened.state is not None
        sizes = []
        for wave in range(40):
            batch = pa.RecordBatch.from_pydict(
                {"key": list(range(50)), "text": [f"{wave:08}" * 20] * 50}, schema=schema
            )
            opened.wave([[stamped(batch, wave)]], wave + 1)
            sizes.append(opened.state.heap.size_bytes)
        assert opened.rows()[-1] == {"key": 49, "high": "00000039" * 20, "last": "00000039" * 20}
        assert sizes[-1] == sizes[10]


@pytest.mark.parametrize("on_error", ["stop", "reject"])
def test_an_argument_that_cannot_be_computed_stops_or_is_rejected(on_error: str, tmp_path: Path) -> None:
    cast = plan.Call(
        "cast",
        [column("value", SCHEMA), *(plan.Constant(text, "string") for text in ("bigint", "tinyint", "UTC"))],
        "tinyint",
    )
    stage = make_stage(SCHEMA, ["key"], [aggregate("high", "max", cast, "tinyint")], on_error=on_error)
    with unit(tmp_path, stage) as opened:
        frames = [[stamped(rows((1, 1, 0), (1, 1000, 0), (1, 3, 0)), 0)]]
        if on_error == "stop":
            with pytest.raises(BadRow, match="stream 'rows', shard 0, bucket 0, position 1"):
                opened.wave(frames, 1)
        else:
            output = opened.wave(frames, 1)
            assert opened.rows() == [{"key": 1, "high": 3}]
            assert output.rejects[0].batch["origin"].to_pylist() == ["stream 'rows', shard 0, bucket 0, position 1"]


def test_a_stage_without_aggregation_passes_rows_on(tmp_path: Path) -> None:
    condition = plan.Call("greater", [column("value", SCHEMA), plan.Constant(1, "bigint")], "boolean")
    source = plan.StageInput("rows", serialized(SCHEMA), [])
    stage = plan.Stage("results", [source], serialized(SCHEMA), None, [plan.Filter(condition)], serialized(SCHEMA))
    assert layout_of(stage) is None
    operator = UnitOperator(stage, 0, 1, None, [], "UTC", WIDTH_US)
    output = operator.process([[stamped(rows((1, 1, 0), (1, 2, 0)), 0), stamped(rows((3, 4, 0)), 7)]], 0, 9)
    assert [row["value"] for row in output.rows[0].batch.to_pylist()] == [2, 4]
    assert (output.rows[0].buckets, output.rows[0].row_ends) == ([0, 7], [1, 2])


def test_windows_that_a_record_cannot_hold_are_refused() -> None:
    stage = make_stage(SCHEMA, ["key"], [COUNT, TOTAL], plan.CountWindow(1000, 1))
    with pytest.raises(UnsupportedQuery, match="more than a record holds"):
        layout_of(stage)
