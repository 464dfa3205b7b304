"""Expressions and steps as they are written in Spark; the terminal's signs only where it has them."""

from __future__ import annotations

import pytest

from holdfast.explain.terminal import shows_unicode
from holdfast.operators.words import aggregate_text, duration_text, expression_text, steps_texts, window_text
from holdfast.plan import (
    Aggregate,
    Call,
    Column,
    Constant,
    CountWindow,
    Expression,
    Filter,
    MapInArrow,
    Named,
    Project,
    TimeWindow,
)

PRICE, COUNT, ITEM = Column("price", "double"), Column("count", "int"), Column("item", "string")


def call(function: str, *arguments: Expression, type: str = "double") -> Call:
    return Call(function, list(arguments), type)


def number(value: float) -> Constant:
    return Constant(value, "double")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (call("multiply", call("add", PRICE, number(1.0)), COUNT), "(price + 1.0) * count"),
        (call("add", call("multiply", PRICE, COUNT), number(1.0)), "price * count + 1.0"),
        (call("subtract", PRICE, call("subtract", PRICE, COUNT)), "price - (price - count)"),
        (call("and", call("or", ITEM, ITEM), call("not", ITEM)), "(item OR item) AND NOT item"),
        (call("cast", COUNT, Constant("int", "string"), type="bigint"), "CAST(count AS BIGINT)"),
        (call("case_when", ITEM, PRICE, number(0.0)), "CASE WHEN item THEN price ELSE 0.0 END"),
        (call("is_in", ITEM, Constant("a'b", "string"), Constant(None, "string")), "item IN ('a\\'b', NULL)"),
        (call("is_not_null", call("add", PRICE, COUNT)), "price + count IS NOT NULL"),
        (call("hour", Column("at", "timestamp"), Constant("UTC", "string")), "hour(at)"),
        (call("field", Column("p", "struct<a:int,b c:string>"), Constant(1, "int")), "p.`b c`"),
        (Constant(0, "date"), "DATE '1970-01-01'"),
        (Constant(1_000_000, "timestamp"), "TIMESTAMP '1970-01-01 00:00:01Z'"),
        (Column("two words", "int"), "`two words`"),
        (call("something_new", PRICE), "something_new(price)"),
    ],
)
def test_an_expression_reads_as_sql(expression: Expression, text: str) -> None:
    assert expression_text(expression) == text


def project(*columns: Named) -> Project:
    return Project(list(columns))


def test_steps_read_as_the_methods_that_make_them() -> None:
    item, price, count = (Named(each.name, each) for each in (ITEM, PRICE, COUNT))
    twice = Named("twice", call("add", PRICE, PRICE))
    columns = ["item", "price", "count"]
    steps = [
        project(item, price, count),
        Filter(call("greater", PRICE, number(1.0))),
        project(item, price, count, twice),
        project(item, Named("cost", PRICE), count, Named("twice", Column("twice", "double"))),
        project(item, count, Named("twice", Column("twice", "double"))),
        MapInArrow(0, "build.<locals>.clean", b""),
        project(Named("a", ITEM), Named("b", COUNT)),
    ]
    assert steps_texts(steps, columns) == [
        "filter(price > 1.0)",
        "withColumn(price + price AS twice)",
        "withColumnRenamed(price, cost)",
        "drop(cost)",
        "mapInArrow(clean)",
        "select(item AS a, count AS b)",
    ]


def test_windows_aggregates_and_durations() -> None:
    at = Column("at", "timestamp")
    assert window_text(TimeWindow(at, 10_000_000, 10_000_000)) == "window(at, 10 seconds)"
    assert window_text(TimeWindow(at, 10_000_000, 5_000_000, 1_000)) == (
        "window(at, 10 seconds, 5 seconds, 1 millisecond)"
    )
    assert window_text(CountWindow(10, 10)) == "count_window(10)"
    assert window_text(CountWindow(10, 5)) == "count_window(10, slide=5)"
    assert aggregate_text(Aggregate("x", "first", PRICE, "double", ignore_nulls=True)) == "first(price IGNORE NULLS)"
    assert aggregate_text(Aggregate("x", "count_all", None, "bigint")) == "count(*)"
    assert duration_text(90_061_000_001) == "1 day 1 hour 1 minute 1 second 1 microsecond"
    assert duration_text(0) == "0 seconds"


@pytest.mark.parametrize(
    ("encoding", "environment", "expected"),
    [
        ("utf-8", {"LANG": "de_DE.UTF-8"}, True),
        ("utf-8", {}, True),
        ("utf-8", {"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, False),
        ("utf-8", {"LC_ALL": "C.utf8"}, True),
        ("iso8859-1", {"LANG": "de_DE.UTF-8"}, False),
        (None, {}, False),
    ],
)
def test_signs_beyond_ascii_are_drawn_where_locale_and_output_have_them(
    encoding: str | None, environment: dict[str, str], expected: bool
) -> None:
    assert shows_unicode(encoding, environment) is expected
