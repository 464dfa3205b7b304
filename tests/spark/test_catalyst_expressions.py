"""Every function of the expression engine gives what Spark gives, value by value, on generated rows."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import plan
from holdfast.errors import BadRow, UnsupportedQuery
from holdfast.operators.expressions import apply_steps, evaluate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "t tinyint, s smallint, i int, j int, b bigint, f float, d double, e double, m decimal(10,2), n decimal(38,10), "
    "w decimal(38,18), z string, y string, number string, flag boolean, other boolean, day date, at timestamp, "
    "local timestamp_ntz, raw binary, pair struct<x:int,y:string>"
)
SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.5, 0.285, 2.675, 1e300, -1e-300, 1e15 + 0.3]
TEXTS = ["", "a", "abc", " abc ", "Straße", "ΑΣ", "x_y%z", "日本語テキスト", "a\nb", "ABC", "b%"]


def _rows(count: int) -> list[tuple[Any, ...]]:
    made = random.Random(7)

    def maybe(value: Any) -> Any:
        return None if made.random() < 0.15 else value

    def row() -> tuple[Any, ...]:
        moment = dt.datetime(2024, 2, 29, 23, 59, 59, 999_999) + dt.timedelta(
            seconds=made.randint(-2_000_000_000, 2_000_000_000), microseconds=made.choice([0, 1, 500_000, 999_999])
        )
        return (
            maybe(made.randint(-60, 60)),
            maybe(made.randint(-1000, 1000)),
            maybe(made.choice([0, 1, -1, 7, -7, 1000, -12345])),
            maybe(made.choice([3, -3, 1, 5, 1000])),
            maybe(made.choice([0, 1, -(2**40), 2**40, 25, -25, 15])),
            maybe(made.choice([*SPECIAL[:8], made.random()])),
            maybe(made.choice([*SPECIAL, made.random() * 1000])),
            maybe(made.choice([*SPECIAL, made.random() * 1000])),
            maybe(Decimal(made.randint(-(10**6), 10**6)).scaleb(-2)),
            maybe(Decimal(made.randint(-(10**15), 10**15)).scaleb(-10)),
            maybe(Decimal(made.randint(1, 10**20)).scaleb(-18)),
            maybe(made.choice(TEXTS)),
            maybe(made.choice(TEXTS)),
            maybe(made.choice(["12", " -7 ", "+5", "0", "007", "99"])),
            maybe(made.random() < 0.5),
            maybe(made.random() < 0.5),
            maybe(moment.date()),
            maybe(moment.replace(tzinfo=dt.UTC)),
            maybe(moment),
            maybe(made.choice([b"", b"a", b"\x00\xff", b"abc"])),
            maybe((maybe(made.randint(0, 3)), maybe("q"))),
        )

    return [row() for _ in range(count)]


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    # A common subexpression is computed before anybody knows that a branch will not need it.
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    rows = spark.createDataFrame(_rows(300), SCHEMA).coalesce(1).cache()
    rows.count()
    yield rows
    spark.conf.unset("spark.sql.subexpressionElimination.enabled")


EXPRESSIONS = """
t + t | s - s | i * j | b + i | d + e | d * e | f - f | m + n | m - m | n * m | m * m | w * w | n + w | i / j
m / (abs(m) + 1) | n / (abs(m) + 1) | m / w | i % j | t % 7Y | d % 3.5D | m % 0.7 | -7 % j | b div j | m div 3.3
-i | -d | -m | abs(i) | abs(d) | abs(m) | +i | floor(f % 10) | floor(d % 10) | ceil(d % 10) | ceil(double('NaN'))
-0.0D | floor(m) | ceil(m) | ceil(i) | floor(n) | round(d, 2) | round(d) | round(f, 1) | round(e, -1) | round(m, 1)
round(m) | round(n, 4) | round(i, -1) | round(b, -2) | round(m, -2) | round(d, 0) | d = e | d < e | d <= e | d > e
d >= e | d <=> e | d != e | f = f | f < 1.5 | i = j | i <=> j | m < n | z < y | z = y | z >= y | flag = other
flag < other | day < date'2020-01-01' | at >= timestamp'2020-01-01 00:00:00' | raw < X'61' | local = local
i <=> null | d = -0.0D | z <=> y | i = b | m = i | flag and other | flag or other | not flag | flag and null
flag or null | i > 0 and 10 / i > 2 | i = 0 or 10 / i > 2 | i is null | i is not null | isnan(d) | isnull(z)
isnotnull(m) | d is null and isnan(e) | i in (1, 7, 1000) | i in (1, null) | i not in (0, 1, null)
z in ('a', 'abc') | d in (double('NaN'), 1.5D, -0.0D) | i in (j, t) | i between 0 and 10 | d between e and 5
m between -1 and 1.5 | z between 'a' and 'b' | case when i > 0 then 'p' when i < 0 then 'n' else 'z' end
case when flag then i end | if(flag, i, j) | if(i = 0, -1, 10 div i) | coalesce(i, j, 0) | coalesce(z, 'none')
coalesce(m, n) | ifnull(i, j) | nvl(i, 0) | nullif(i, 0) | nullif(z, y) | nvl2(i, j, t)
case when i is null then null when i = 0 then 0 else 100 / i end | coalesce(nullif(i, 0), 5) + 1 | greatest(i, j, b)
least(d, e) | greatest(z, y) | least(m, n) | nullif(d, e) | case i when 1 then 'one' when 7 then 'seven' end
cast(i as bigint) | cast(t as smallint) | cast(i as double) | cast(b as float) | cast(d as float)
cast(f as double) | cast(i as string) | cast(flag as string) | cast(day as string) | cast(m as string)
cast(n as string) | cast(at as string) | cast(local as string) | cast(number as int) | cast(number as bigint)
cast(number as double) | cast(number as decimal(10,3)) | cast(number as float) | cast(i as boolean)
cast(d as boolean) | cast(m as boolean) | cast(flag as int) | cast(flag as double) | cast(flag as decimal(5,2))
cast(i as decimal(12,4)) | cast(b as decimal(20,0)) | cast(m as decimal(12,1)) | cast(n as decimal(38,2))
cast(m as int) | cast(m as double) | cast(n as bigint) | cast(m as float) | cast(day as timestamp)
cast(at as date) | cast(local as date) | cast(at as timestamp_ntz) | cast(local as timestamp)
cast(day as timestamp_ntz) | cast(at as bigint) | cast(at as double) | cast(b as timestamp) | cast(z as binary)
cast(null as int) | cast(raw as binary) | cast(i + 0.5D as int) | cast(-i - 0.5D as bigint)
cast('2024-2-9' as date) | cast(' 1999 ' as date) | cast('2020-02-29 10:00' as date) | cast('tRue' as boolean)
cast(cast(day as string) as date) | cast('1.5e3' as double) | cast('inf' as double) | cast('1e2' as decimal(10,2))
cast(1.005D as decimal(10,2)) | cast(f + 0.5 as decimal(20,3)) is null | cast(round(e, 3) % 1000 as decimal(12,3))
cast(n as double) | cast(i - 0.5D as decimal(12,1)) | upper(z) | lower(z) | length(z) | length(raw)
octet_length(z) | char_length(z) | substring(z, 2, 2) | substring(z, -3, 2) | substring(z, 0, 2)
substring(z, -10, 9) | substr(z, 2) | left(z, 2) | right(z, 2) | concat(z, '-', y) | concat(z, z) | z || y | trim(z)
ltrim(z) | rtrim(z) | trim(both 'a' from z) | startswith(z, 'a') | endswith(z, 'c') | contains(z, 'b') | z like 'a%'
z like '_b%' | z like '%\\\\_y\\\\%%' | z not like '%z' | year(day) | month(day) | day(day) | dayofmonth(day)
quarter(day) | dayofweek(day) | weekday(day) | dayofyear(day) | weekofyear(day) | year(at) | month(at) | hour(at)
minute(at) | second(at) | hour(local) | second(local) | date_trunc('year', at) | date_trunc('quarter', at)
date_trunc('month', at) | date_trunc('week', at) | date_trunc('day', at) | date_trunc('HOUR', at)
date_trunc('minute', at) | date_trunc('second', at) | date_add(day, 3) | date_sub(day, i)
datediff(day, date'2000-01-01') | date_add(day, t) | pair.x | pair.y | struct(i, z) | named_struct('p', i, 'q', d)
struct(i, z).i | pair.x + i | 1 | 'text' | 1.5D | 1.25BD | true | null | X'00ff' | date'2024-02-29'
timestamp'2024-02-29 12:00:00.000001' | 5Y | 7S | float('NaN') | double('-0.0') | timestamp_ntz'2024-02-29 12:00:00'
123456789012345678901234567890.12BD | i / null | null + i | i % nullif(j, 3)
"""


def _listed(text: str) -> list[str]:
    """Return the expressions of a text: a single bar separates, two join strings."""
    lines = text.strip().splitlines()
    return [part.strip().replace("\0", " || ") for line in lines for part in line.replace(" || ", "\0").split(" | ")]


def _values(column: Any) -> list[Any]:
    """Return a column as Python values; moments as numbers, since Python has no year 40000."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return found


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        # repr tells -0.0 from 0.0 and holds every digit.
        return repr(ours) == repr(theirs)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    return type(ours) is type(theirs) and ours == theirs


def test_every_expression_gives_what_spark_gives(frame: DataFrame) -> None:
    from holdfast.spark import catalyst, types

    expressions = _listed(EXPRESSIONS)
    empty = catalyst.empty_frame(frame.sparkSession, frame.schema)
    written = [f"{expression} as c{index}" for index, expression in enumerate(expressions)]
    theirs = frame.selectExpr(*written).toArrow()
    steps = catalyst.row_steps(empty.selectExpr(*written))
    table = frame.toArrow().cast(types.arrow_schema(frame.schema))
    (batch,) = table.combine_chunks().to_batches()
    ours = apply_steps(steps, batch)
    wrong: list[str] = []
    for index, expression in enumerate(expressions):
        mine, right = _values(ours.column(index)), _values(theirs.column(index))
        expected_type = types.to_arrow(empty.selectExpr(written[index]).schema.fields[0].dataType)
        if ours.column(index).type != expected_type:
            wrong.append(f"{expression}: type {ours.column(index).type}, Spark has {expected_type}")
        different = [row for row in range(len(mine)) if not _same(mine[row], right[row])]
        if different:
            row = different[0]
            wrong.append(f"{expression}: {len(different)} rows, such as {mine[row]!r}, Spark has {right[row]!r}")
    assert not wrong, "\n".join(wrong)


FAILING = """
i / 0 | j + 1 / i | i + 2147483647 | t * 100Y | abs(-128Y) | -(-2147483648) | round(125Y, -1) | d % 0 | m / 0
i div 0 | cast('0x1F' as int) | cast('1.50' as int) | cast('' as int) | cast('99999999999' as int)
cast('abc' as boolean) | cast('2023-02-29' as date) | cast('x' as double) | cast('1,5' as decimal(5,2))
cast(12345.67BD as decimal(5,2)) | floor(9.3e18D) | cast(1e10D as int) | cast(double('NaN') as bigint)
cast(m as tinyint) | cast(at as int) | cast(b as smallint)
9999999999999999999999999999.0000000001BD * 1000000000000
"""


@pytest.mark.parametrize("expression", _listed(FAILING))
def test_where_spark_fails_the_row_is_named(frame: DataFrame, expression: str) -> None:
    from pyspark.errors import PySparkException

    from holdfast.spark import catalyst, types

    # Spark's interpreter is its own reference, and starts faster than compiled code.
    frame.sparkSession.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    try:
        with pytest.raises(PySparkException):
            frame.selectExpr(f"{expression} as c").toArrow()
    finally:
        frame.sparkSession.conf.unset("spark.sql.codegen.factoryMode")
    steps = catalyst.row_steps(catalyst.empty_frame(frame.sparkSession, frame.schema).selectExpr(f"{expression} as c"))
    (batch,) = frame.toArrow().cast(types.arrow_schema(frame.schema)).combine_chunks().to_batches()
    with pytest.raises(BadRow, match=r"row \d+ of the batch cannot be computed") as caught:
        apply_steps(steps, batch)
    row = caught.value.row
    assert row is not None
    # It is the first such row: those before it can be computed.
    apply_steps(steps, batch.slice(0, row))


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("rand()", "rand"),
        ("try_divide(1, i)", "try_"),
        ("cast(d as string)", "from double to string"),
        ("substring(z, i, 2)", "literals"),
        ("regexp_replace(z, 'a', 'b')", "regexp_replace"),
        ("pair = pair", "structs"),
        ("at + interval 1 day", "not there yet"),
        ("current_timestamp()", "not there yet"),
    ],
)
def test_what_is_not_there_is_refused_with_its_text(frame: DataFrame, expression: str, told: str) -> None:
    from holdfast.spark import catalyst

    empty = catalyst.empty_frame(frame.sparkSession, frame.schema)
    with pytest.raises(UnsupportedQuery, match="mapInArrow") as caught:
        catalyst.row_steps(empty.selectExpr(f"{expression} as c"))
    assert told in str(caught.value)


def test_without_ansi_what_could_wrap_is_refused(spark: SparkSession) -> None:
    from holdfast.spark import catalyst, types

    empty = catalyst.empty_frame(spark, types.struct_type(pa.schema([("i", pa.int32()), ("d", pa.float64())])))
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(UnsupportedQuery, match="ansi"):
            catalyst.row_steps(empty.selectExpr("i + i as c"))
        assert catalyst.row_steps(empty.selectExpr("d + d as c"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Kolkata", "America/New_York"])
def test_dates_and_hours_are_those_of_the_session_time_zone(spark: SparkSession, zone: str) -> None:
    from holdfast.spark import catalyst, types

    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        changes = [dt.datetime(2024, 3, 31, tzinfo=dt.UTC), dt.datetime(2024, 10, 27, tzinfo=dt.UTC)]
        moments = [change + dt.timedelta(minutes=37 * n) for change in changes for n in range(-300, 300)]
        table = pa.table({"at": pa.array(moments, pa.timestamp("us", tz="UTC"))})
        frame = spark.createDataFrame(table).coalesce(1)
        written = ["hour(at)", "minute(at)", "cast(at as date)", "cast(at as string)", "date_trunc('day', at)"]
        written += ["date_trunc('hour', at)", "cast(cast(at as date) as timestamp)", "cast(at as timestamp_ntz)"]
        written = [f"{each} as c{index}" for index, each in enumerate(written)]
        theirs = frame.selectExpr(*written).toArrow()
        steps = catalyst.row_steps(catalyst.empty_frame(spark, types.struct_type(table.schema)).selectExpr(*written))
        (batch,) = table.to_batches()
        ours = apply_steps(steps, batch)
        for index, each in enumerate(written):
            assert _values(ours.column(index)) == _values(theirs.column(index)), each
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_row_keeps_its_number_through_a_filter(spark: SparkSession) -> None:
    from holdfast.spark import catalyst, types

    empty = catalyst.empty_frame(spark, types.struct_type(pa.schema([("i", pa.int32())])))
    steps = catalyst.row_steps(empty.where("i != 5")) + catalyst.row_steps(empty.selectExpr("10 div i as c"))
    batch = pa.record_batch({"i": pa.array([5, 1, 5, 0, 2], pa.int32())})
    with pytest.raises(BadRow) as caught:
        apply_steps(steps, batch)
    assert caught.value.row == 3


def test_a_column_alone_is_not_copied() -> None:
    batch = pa.record_batch({"b": pa.array([1, 2, 3])})
    found = evaluate(plan.Column("b", "bigint"), batch)
    assert found.buffers()[1].address == batch.column(0).buffers()[1].address
