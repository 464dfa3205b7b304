"""Each aggregate against Spark's own, on the same rows in the same order."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.unit.operators.harness import aggregate, column, make_stage, stamped, unit

from holdfast import plan
from holdfast.errors import BadRow
from holdfast.operators.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = ("count", "sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop")
OTHERS = ("count", "min", "max")
PICKS = ("first", "last")
UTC = datetime.UTC
Values = list[Any]


def decimals(digits: int, scale: int) -> Values:
    largest = decimal.Decimal((0, (9,) * (digits - 1), -scale))
    smallest = decimal.Decimal((0, (1,), -scale))
    some = [decimal.Decimal((n % 2, (n % 9 + 1,) * (n % digits + 1), -scale)) for n in range(12)]
    return [smallest, smallest.copy_negate(), *some, largest, largest.copy_negate()]


COLUMNS: dict[str, tuple[Values, tuple[str, ...]]] = {
    "boolean": ([True, False], OTHERS),
    "tinyint": ([-128, 127, 0, 3], NUMBERS),
    "smallint": ([-(2**15), 2**15 - 1, 7], NUMBERS),
    "int": ([-(2**31), 2**31 - 1, 0, 12345], NUMBERS),
    "bigint": ([2**40 + 1, -(2**53) - 1, 0, 17], NUMBERS),
    "float": ([0.1, -0.0, 0.0, 3.5e38, float("nan"), float("inf"), -1.5], NUMBERS),
    "double": ([0.1, -0.0, 0.0, 1e300, float("nan"), float("-inf"), 1e-320, 3.25], NUMBERS),
    "decimal(5,2)": (decimals(5, 2), NUMBERS),
    "decimal(18,6)": (decimals(18, 6), NUMBERS),
    "decimal(25,5)": (decimals(25, 5), NUMBERS),
    "decimal(38,10)": (decimals(34, 10), ("count", "sum", "min", "max")),
    "string": (["", "a", "aa", "\x00", "\u00ff", "\U0001f600", "z" * 300], OTHERS),
    "binary": ([b"", b"\x00", b"\xff", b"\x80\x01", b"a" * 40], OTHERS),
    "date": ([datetime.date(1, 1, 1), datetime.date(2024, 2, 29), datetime.date(9999, 12, 31)], OTHERS),
    "timestamp": ([datetime.datetime(1900, 1, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, 1, tzinfo=UTC)], OTHERS),
    "timestamp_ntz": ([datetime.datetime(1900, 1, 1), datetime.datetime(2024, 2, 29, 1)], OTHERS),
    "interval day to second": ([datetime.timedelta(days=-3, seconds=1), datetime.timedelta(microseconds=5)], OTHERS),
}


def batch_of(type_: str, values: Values, seed: int) -> pa.RecordBatch:
    """Return rows of seven keys: some keys with nulls only, some with one value, most with many."""
    chooser = random.Random(seed)
    keys, chosen = [1, 2, 3, 3], [None, values[0], None, values[-1]]
    for _ in range(200):
        key = chooser.randrange(4, 8)
        finite = [value for value in values if not isinstance(value, float) or abs(value) < 1e10]
        keys.append(key)
        chosen.append(None if chooser.random() < 0.2 else chooser.choice(finite if key == 7 else values))
    schema = pa.schema([("key", pa.int64()), ("value", arrow_type(type_))])
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(chosen, schema.field("value").type)], schema=schema)


def cast_to_double(value: plan.Column) -> plan.Call:
    """Return the cast that Spark itself puts around the argument."""
    details = [plan.Constant(text, "string") for text in (value.type, "double", "UTC")]
    return plan.Call("cast", [value, *details], "double")


def of(function: str, expression: str, ignore: bool = False) -> str:
    return f"{function}({expression}{', true' if ignore else ''})"


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or left == right
    return bool(left == right) and type(left) is type(right)


@pytest.mark.parametrize("type_", COLUMNS)
def test_results_are_those_of_spark(spark: SparkSession, type_: str, tmp_path: Path) -> None:
    values, functions = COLUMNS[type_]
    batch = batch_of(type_, values, seed=len(type_))
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
    frame.createOrReplaceTempView("rows")
    calls = [("rows", "count(1)", "count_all", False)]
    calls += [(name, of(name, "value"), name, False) for name in (*functions, *PICKS)]
    calls += [(f"{name}_value", of(name, "value", True), name, True) for name in PICKS]
    asked = spark.sql(
        f"select key, {', '.join(f'{call} as `{name}`' for name, call, *_ in calls)} from rows group by key"
    )
    types = {field.name: field.dataType.simpleString() for field in asked.schema}
    value = column("value", batch.schema)
    aggregates = []
    for name, _, function, ignore in calls:
        argument: plan.Expression | None = None if function == "count_all" else value
        if function.startswith(("stddev", "var")) and type_ != "double":
            argument = cast_to_double(value)
        aggregates.append(aggregate(name, function, argument, types[name], ignore_nulls=ignore))
    with unit(tmp_path, make_stage(batch.schema, ["key"], aggregates)) as opened:
        # Two waves, so that values also come from the state.
        opened.wave([[stamped(batch.slice(0, 90), 0)]], 1)
        opened.wave([[stamped(batch.slice(90), 1)]], 2)
        ours = {row["key"]: row for row in opened.rows()}
    expected = {row["key"]: row for row in asked.toArrow().to_pylist()}
    assert ours.keys() == expected.keys()
    for key, row in expected.items():
        for name, found in row.items():
            assert same(ours[key][name], found), f"{name} of key {key}: {ours[key][name]!r}, Spark has {found!r}"


def test_an_average_of_decimals_rounds_as_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.int64()), ("value", pa.decimal128(9, 4))])
    keys, values = [], []
    for key in range(200):
        for n in range(key % 17 + 1):
            keys.append(key)
            values.append(decimal.Decimal((key % 2, (key % 9 + 1, n % 10, 7, 5), -4)))
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values, pa.decimal128(9, 4))], schema=schema)
    spark.createDataFrame(pa.Table.from_batches([batch])).createOrReplaceTempView("rows")
    expected = spark.sql("select key, avg(value) as mean from rows group by key order by key").toArrow().to_pylist()
    stage = make_stage(schema, ["key"], [aggregate("mean", "avg", column("value", schema), "decimal(13,8)")])
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(batch, 0)]], 1)
        assert opened.rows() == expected


@pytest.mark.parametrize(("size", "slide", "start"), [(10, 10, 0), (10, 3, 1), (7, 2, 0)])
def test_time_windows_are_those_of_spark(
    spark: SparkSession, size: int, slide: int, start: int, tmp_path: Path
) -> None:
    seconds = 1_000_000
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
    chooser = random.Random(size)
    times = [None if n % 20 == 0 else chooser.randrange(-60 * seconds, 60 * seconds) for n in range(300)]
    batch = pa.RecordBatch.from_pydict({"key": [f"k{n % 3}" for n in range(300)], "at": times}, schema=schema)
    spark.createDataFrame(pa.Table.from_batches([batch])).createOrReplaceTempView("rows")
    shape = f"window(at, '{size} seconds', '{slide} seconds', '{start} seconds')"
    expected = spark.sql(f"select key, {shape} as window, count(1) as rows from rows group by key, {shape}")
    window = plan.TimeWindow(column("at", schema), size * seconds, slide * seconds, start * seconds)
    stage = make_stage(schema, ["key"], [aggregate("rows", "count_all", None, "bigint")], window)
    with unit(tmp_path, stage) as opened:
        opened.wave([[stamped(batch, 0)]], 1, ended=True)
        found = opened.rows()
    assert sorted(map(repr, found)) == sorted(map(repr, expected.toArrow().to_pylist()))


@pytest.mark.parametrize(
    ("type_", "values"),
    [("bigint", [2**63 - 1, 1]), ("decimal(38,0)", [decimal.Decimal(10**38 - 1), decimal.Decimal(1)])],
)
def test_a_sum_that_does_not_fit_is_an_error_in_both(
    spark: SparkSession, type_: str, values: Values, tmp_path: Path
) -> None:
    schema = pa.schema([("key", pa.int64()), ("value", arrow_type(type_))])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 1]), pa.array(values, schema.field("value").type)], schema=schema)
    spark.createDataFrame(pa.Table.from_batches([batch])).createOrReplaceTempView("rows")
    with pytest.raises(Exception, match=r"ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE"):
        spark.sql("select sum(value) from rows").collect()
    total = aggregate("total", "sum", column("value", schema), type_)
    with (
        unit(tmp_path, make_stage(schema, ["key"], [total])) as opened,
        pytest.raises(BadRow, match=r"stream 'rows', shard 0, bucket 0, position 1"),
    ):
        opened.wave([[stamped(batch, 0)]], 1)
