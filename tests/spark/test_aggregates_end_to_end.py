"""Aggregates of every type on generated rows, from Producer to result, against Spark batch over the same log.

The log has one partition and both fold its rows in its order, so reals are compared exactly, NaN and -0.0 included.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.spark.flow import Flow

from holdfast.spark.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = ("sum", "min", "max", "avg", "stddev_samp", "stddev_pop", "var_samp", "var_pop", "stddev", "variance")
ORDERED = ("min", "max")
TIMES = {"min_value": dt.datetime(1900, 1, 1), "max_value": dt.datetime(2200, 1, 1)}
UTC = st.just(dt.UTC)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)))


VALUES: dict[str, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    "boolean": (st.booleans(), ORDERED),
    "tinyint": (st.integers(-(2**7), 2**7 - 1), NUMBERS),
    "smallint": (st.integers(-(2**15), 2**15 - 1), NUMBERS),
    "int": (st.integers(-(2**31), 2**31 - 1), NUMBERS),
    "bigint": (st.integers(-(2**58), 2**58), NUMBERS),
    "float": (st.floats(width=32), NUMBERS),
    "double": (st.floats(), NUMBERS),
    "decimal(3,1)": (decimals(3, 1), NUMBERS),
    "decimal(8,2)": (decimals(8, 2), NUMBERS),
    "decimal(11,4)": (decimals(11, 4), NUMBERS),
    "decimal(18,0)": (decimals(18, 0), NUMBERS),
    "decimal(28,9)": (decimals(27, 9), NUMBERS),
    "decimal(38,10)": (decimals(30, 10), NUMBERS),
    "decimal(38,38)": (decimals(36, 38), NUMBERS),
    "string": (st.text(max_size=12), ORDERED),
    "binary": (st.binary(max_size=12), ORDERED),
    "date": (st.dates(), ORDERED),
    "timestamp": (st.datetimes(**TIMES, timezones=UTC), ORDERED),
    "timestamp_ntz": (st.datetimes(**TIMES), ORDERED),
    "interval day to second": (st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999)), ("sum", "avg", *ORDERED)),
}
SCHEMA = "g int, at timestamp, " + ", ".join(f"v{number} {type_}" for number, type_ in enumerate(VALUES))
POOLS = st.tuples(*(st.lists(values, min_size=10, max_size=20) for values, _ in VALUES.values()))
"""Values of each type, of which the groups are made."""
GROUPS = 60
"""Each group is a case of its own, so that one job tries many cases."""

Groups = list[list[tuple[Any, ...]]]


def groups_of(pools: tuple[list[Any], ...], seed: int) -> Groups:
    """Return the rows of each group: of one value, of nulls only, of few values, of many."""
    chooser = random.Random(seed)

    def row(nulls: float, size: int) -> tuple[Any, ...]:
        return tuple(None if chooser.random() < nulls else chooser.choice(pool[:size]) for pool in pools)

    made = []
    for group in range(GROUPS):
        nulls, size = (0.0, 0.2, 1.0)[group % 3], (1, 3, 100)[group // 3 % 3]
        made.append([row(nulls, size) for _ in range(chooser.randrange(1, 10))])
    return made


def aggregates(F: Any) -> list[Any]:
    found = [F.count("*").alias("rows"), F.count(F.lit(1)).alias("ones")]
    for number, (_, functions) in enumerate(VALUES.values()):
        name = f"v{number}"
        found += [getattr(F, function)(name).alias(f"{function} {name}") for function in functions]
        found.append(F.count(name).alias(f"count {name}"))
        found += [F.first(name).alias(f"first {name}"), F.last(name).alias(f"last {name}")]
        found += [F.first(name, True).alias(f"first value {name}"), F.last(name, True).alias(f"last value {name}")]
    return found


def result_of(flow: Flow, F: Any, name: str, columns: list[Any]) -> Any:
    timed = flow.pipeline.source("rows", SCHEMA).withWatermark("at", "1 hour")
    return timed.groupBy("g", F.window("at", "1 minute")).agg(*columns).named(name)


def table_of(groups: Groups, schema: pa.Schema, parts: int) -> list[pa.Table]:
    """Return the rows in several batches, those of a group spread over them."""
    made: list[list[tuple[Any, ...]]] = [[] for _ in range(parts)]
    for group, rows in enumerate(groups):
        for place, row in enumerate(rows):
            made[place * parts // len(rows)].append((group, dt.datetime(2025, 1, 1, tzinfo=dt.UTC), *row))
    return [
        pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)], schema=schema
        )
        for rows in made
        if rows
    ]


def by_group(table: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["g"]: row for row in table.to_pylist()}


def same(ours: Any, spark: Any) -> bool:
    if isinstance(ours, float) and isinstance(spark, float):
        return repr(ours) == repr(spark)
    return bool(ours == spark) and type(ours) is type(spark)


def compare(flow: Flow, result: Any) -> None:
    ours, spark = by_group(flow.rows(result.name)), by_group(result.toSpark().toArrow())
    assert ours.keys() == spark.keys()
    wrong = [
        f"group {group}, {name}: {ours[group][name]!r}, Spark has {found!r}"
        for group, row in spark.items()
        for name, found in row.items()
        if not same(ours[group][name], found)
    ]
    assert not wrong, "\n".join(wrong[:20])


@contextmanager
def ansi(spark: SparkSession, enabled: bool) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("ansi_enabled", [True, False])
def test_every_aggregate_of_every_type(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, ansi_enabled: bool
) -> None:
    from pyspark.sql import functions as F

    @settings(
        max_examples=1,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(POOLS, st.integers(0, 2**32))
    def check(pools: tuple[list[Any], ...], seed: int) -> None:
        flow = Flow(tmp_path_factory.mktemp("flow"))
        result = result_of(flow, F, "result", aggregates(F))
        flow.send("rows", table_of(groups_of(pools, seed), arrow_schema(flow.pipeline.struct_type(SCHEMA)), 3))
        flow.run()
        compare(flow, result)

    with ansi(spark, ansi_enabled):
        check()
