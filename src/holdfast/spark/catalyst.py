"""Reads what Spark's analyser made of one step of a query into the plan.

Invariants:
    * Every step is analysed on an empty DataFrame of its input's schema, so that what is read is that step and nothing
      below it. Spark raises its own errors for names and types.
    * A step that Spark turned into something other than a projection, a filter or an aggregation is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from holdfast import plan
from holdfast.config import interval_us
from holdfast.errors import Misconfigured, UnsupportedQuery
from holdfast.operators.types import is_nested
from holdfast.spark.catalyst_expression import (
    Converter,
    JavaObject,
    class_name,
    evaluation_mode,
    expression_type,
    members,
    refusal,
)

_LEAVES: Final = frozenset({"LocalRelation", "LogicalRDD"})
_AGGREGATES: Final = {
    "Count": "count",
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "Average": "avg",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
    "First": "first",
    "Last": "last",
}
_WINDOW_ARGUMENTS_MAX: Final = 4
WINDOWS_OF_A_ROW_MAX: Final = 1000
COUNT_WINDOW_TYPE: Final = StructType(
    [
        StructField("start", TimestampType(), True),
        StructField("end", TimestampType(), True),
        StructField("number", LongType(), True),
    ]
)
COUNT_WINDOW_COLUMN: Final = "window"


@dataclass(frozen=True, slots=True)
class Grouped:
    """An analysed `groupBy(...).agg(...)`: the plan's step, and the schema of its rows."""

    aggregation: plan.Aggregation
    schema: StructType


def empty_frame(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return a DataFrame without rows; Spark analyses a step on it."""
    java = spark._jsparkSession
    jvm: Any = spark._jvm
    data_type = java.parseDataType(schema.json())
    return DataFrame(java.createDataFrame(jvm.java.util.ArrayList(), data_type), spark)


def row_steps(frame: DataFrame) -> list[plan.Step]:
    """Return the projections and filters between an empty frame and `frame`."""
    return _steps(_analyzed(frame))


def union_steps(frame: DataFrame) -> list[list[plan.Step]]:
    """Return, for each input of a union of empty frames, what Spark does to its rows before they are one."""
    union = _analyzed(frame)
    if class_name(union) != "Union":
        raise _step_refusal(union)
    return [_aligned(_steps(branch), branch, frame.schema) for branch in members(union.children())]


def grouped(frame: DataFrame, keys: int, count_window: tuple[int, plan.CountWindow] | None = None) -> Grouped:
    """Return the plan of an aggregation over an empty frame with `keys` grouping expressions.

    `count_window` is our own window and its place among the grouping columns: Spark has not seen it.
    """
    top = _analyzed(frame)
    if class_name(top) != "Aggregate":
        raise UnsupportedQuery(f"the aggregation became {class_name(top)} in Spark; {_SIMPLER}")
    reader = _AggregateReader(frame, top, keys)
    outputs = reader.outputs()
    schema = frame.schema
    window: plan.TimeWindow | plan.CountWindow | None = reader.window
    window_column = reader.window_column
    if count_window is not None:
        place, window = count_window
        if window_column is not None:
            raise UnsupportedQuery("groupBy has both F.window and hf.count_window; one window is possible")
        window_column = COUNT_WINDOW_COLUMN
        field = StructField(COUNT_WINDOW_COLUMN, COUNT_WINDOW_TYPE, False)
        schema = StructType([*schema.fields[:place], field, *schema.fields[place:]])
        column = plan.Column(COUNT_WINDOW_COLUMN, _COUNT_WINDOW_TEXT)
        outputs.insert(place, plan.Named(COUNT_WINDOW_COLUMN, column, False))
    _check_unique([field.name for field in schema.fields], "the aggregation's result")
    aggregation = plan.Aggregation(
        reader.keys, reader.aggregates, outputs, window, window_column or COUNT_WINDOW_COLUMN
    )
    return Grouped(aggregation, schema)


def check_windows(columns: Sequence[Any]) -> None:
    """Refuse an `F.window` whose windows overlap so often that Spark's analysis of it would not end."""
    for column in columns:
        call: JavaObject = column._jc.node() if is_column(column) else None
        while call is not None and class_name(call) == "Alias":
            call = call.child()
        if call is None or class_name(call) != "UnresolvedFunction" or str(call.functionName()) != "window":
            continue
        try:
            lengths = [interval_us(str(each.value())) for each in list(members(call.arguments()))[1:3]]
        except (Misconfigured, Py4JError):
            # Spark says what is wrong with these.
            continue
        if len(lengths) == 2 and 0 < lengths[1] * WINDOWS_OF_A_ROW_MAX < lengths[0]:
            raise UnsupportedQuery(
                f"{column}: a row would be in {-(-lengths[0] // lengths[1]):,} windows, at most "
                f"{WINDOWS_OF_A_ROW_MAX:,} are possible; make the slide longer"
            )


def session_time_zone(spark: SparkSession) -> str:
    """Return the zone in which dates and hours are read."""
    return str(spark.conf.get("spark.sql.session.timeZone"))


def is_column(value: object) -> bool:
    """Return whether a value is a column expression of PySpark's."""
    return isinstance(value, Column)


_COUNT_WINDOW_TEXT: Final = "struct<start:timestamp,end:timestamp,number:bigint>"
_SIMPLER: Final = "write it as projections, filters and one groupBy(...).agg(...), or use mapInArrow"


def _analyzed(frame: DataFrame) -> JavaObject:
    return frame._jdf.queryExecution().analyzed()


def _steps(node: JavaObject) -> list[plan.Step]:
    """Return the steps from the leaf up to `node`."""
    found: list[JavaObject] = []
    while class_name(node) not in _LEAVES:
        # All kinds first: what Spark puts around a step that we do not have is none of the user's.
        if class_name(node) not in ("Project", "Filter", "SubqueryAlias"):
            raise _step_refusal(node)
        found.insert(0, node)
        node = node.children().apply(0)
    return [_step(each) for each in found if class_name(each) != "SubqueryAlias"]


def _step(node: JavaObject) -> plan.Step:
    if class_name(node) == "Filter":
        return plan.Filter(Converter().convert(node.condition()))
    return _projection(node)


def _projection(node: JavaObject) -> plan.Project:
    converter = Converter()
    columns = [
        plan.Named(str(each.name()), converter.convert(each), bool(each.nullable()))
        for each in members(node.projectList())
    ]
    _check_unique([column.name for column in columns], "the projection")
    return plan.Project(columns)


def _aligned(steps: list[plan.Step], branch: JavaObject, schema: StructType) -> list[plan.Step]:
    """Give a branch's columns the names of the union, which are those of its first input, and its nullability."""
    own = list(members(branch.output()))
    if [(str(each.name()), bool(each.nullable())) for each in own] == [(f.name, f.nullable) for f in schema.fields]:
        return steps
    columns = [
        plan.Named(field.name, plan.Column(str(each.name()), expression_type(each)), field.nullable)
        for field, each in zip(schema.fields, own, strict=True)
    ]
    return [*steps, plan.Project(columns)]


def _check_unique(names: Sequence[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnsupportedQuery(f"{what} has two columns named {twice[0]!r}; rename one with alias or withColumnRenamed")


def _step_refusal(node: JavaObject) -> UnsupportedQuery:
    return UnsupportedQuery(
        f"Spark makes a {class_name(node)} of this step ({str(node.simpleString(5))[:200]}), "
        f"and holdfast cannot run that as a stream; {_SIMPLER}"
    )


class _AggregateReader:
    """Reads one analysed Aggregate node: keys, window, aggregates, and outputs over them."""

    def __init__(self, frame: DataFrame, top: JavaObject, keys: int) -> None:
        self._expressions = list(members(top.aggregateExpressions()))
        self._grouping = list(members(top.groupingExpressions()))
        if len(self._grouping) != keys or len(self._expressions) < keys:
            raise UnsupportedQuery(
                f"groupBy has {keys} columns and Spark kept {len(self._grouping)}; holdfast needs "
                "spark.sql.retainGroupColumns=true, and plain columns in groupBy (no rollup, no cube)"
            )
        self._positions = {str(each.canonicalized().toString()): index for index, each in enumerate(self._grouping)}
        self._converter = Converter(self._computed)
        self._by_text: dict[str, plan.Aggregate] = {}
        self.aggregates: list[plan.Aggregate] = []
        self.window: plan.TimeWindow | None = None
        self.window_column: str | None = None
        self.keys: list[plan.Named] = []
        self._window_index = self._find_window(frame, top)
        self._read_keys()

    def outputs(self) -> list[plan.Named]:
        """Return the output columns; the aggregates they use are collected on the way."""
        return [
            plan.Named(str(each.name()), self._converter.convert(each), bool(each.nullable()))
            for each in self._expressions
        ]

    def _find_window(self, frame: DataFrame, top: JavaObject) -> int | None:
        logical = list(members(frame._jdf.queryExecution().logical().groupingExpressions()))
        found: int | None = None
        for index, written in enumerate(logical):
            call = written.children().apply(0) if class_name(written) == "Alias" else written
            name = _function_name(call)
            if name == "session_window":
                raise UnsupportedQuery(f"{call.sql()}: session windows come with a later version; use F.window")
            if name != "window":
                continue
            if found is not None:
                raise UnsupportedQuery("groupBy has two time windows; one is possible")
            found = index
            self.window = _time_window(call, frame)
            self.window_column = str(self._expressions[index].name())
        child = class_name(top.children().apply(0))
        if found is None and child not in _LEAVES:
            raise UnsupportedQuery(
                f"Spark puts a {child} below this groupBy; make what is grouped by a column first, with withColumn"
            )
        return found

    def _read_keys(self) -> None:
        plain = Converter()
        for index, grouping in enumerate(self._grouping):
            if index != self._window_index:
                output = self._expressions[index]
                expression = plain.convert(grouping)
                self.keys.append(plan.Named(str(output.name()), expression, bool(output.nullable())))

    def _computed(self, expression: JavaObject) -> plan.Expression | None:
        """Return the column that already has an expression's value: a key, the window, an aggregate."""
        name = class_name(expression)
        if name == "AggregateExpression":
            return self._aggregate(expression)
        if name == "Alias":
            return None
        index = self._positions.get(str(expression.canonicalized().toString()))
        if index is None:
            return None
        return plan.Column(str(self._expressions[index].name()), expression_type(expression))

    def _aggregate(self, expression: JavaObject) -> plan.Column:
        text = str(expression.canonicalized().toString())
        if text not in self._by_text:
            made = _aggregate(expression, f"_aggregate_{len(self.aggregates)}")
            self.aggregates.append(made)
            self._by_text[text] = made
        return plan.Column(self._by_text[text].name, self._by_text[text].type)


def _function_name(call: JavaObject) -> str | None:
    if class_name(call) != "UnresolvedFunction":
        return None
    return str(call.nameParts().last()).lower()


def _aggregate(expression: JavaObject, name: str) -> plan.Aggregate:
    function = expression.aggregateFunction()
    kind = _AGGREGATES.get(class_name(function))
    if kind is None:
        supported = "count, sum, min, max, avg, stddev, var, first and last"
        name = function.prettyName()
        raise UnsupportedQuery(f"{expression.sql()}: the aggregate {name} is not there; {supported} are")
    if expression.isDistinct():
        raise UnsupportedQuery(f"{expression.sql()}: DISTINCT in an aggregate is not there yet")
    if expression.filter().isDefined():
        raise UnsupportedQuery(
            f"{expression.sql()}: FILTER in an aggregate is not there yet; aggregate F.when(condition, value) instead"
        )
    if kind == "count":
        return _count(expression, function, name)
    mode = evaluation_mode(function)
    argument = Converter().convert(function.children().apply(0))
    if is_nested(argument.type):
        raise UnsupportedQuery(
            f"{expression.sql()}: {kind} of a struct, array or map is not there yet; aggregate its fields, or count it"
        )
    if mode == "TRY" and argument.type not in ("float", "double"):
        raise UnsupportedQuery(f"{expression.sql()}: aggregates that make an overflow null (try_...) are not there yet")
    ignore_nulls = kind in ("first", "last") and bool(function.ignoreNulls())
    return plan.Aggregate(name, kind, argument, expression_type(expression), ignore_nulls, mode == "ANSI")


def _count(expression: JavaObject, function: JavaObject, name: str) -> plan.Aggregate:
    children = list(members(function.children()))
    if all(class_name(child) == "Literal" and not child.nullable() for child in children):
        return plan.Aggregate(name, "count_all", None, "bigint")
    if len(children) > 1:
        raise refusal(expression, "count of several columns is not there yet")
    return plan.Aggregate(name, "count", Converter().convert(children[0]), "bigint")


def _time_window(call: JavaObject, frame: DataFrame) -> plan.TimeWindow:
    arguments = list(members(call.arguments()))
    time = arguments[0]
    if class_name(time) != "UnresolvedAttribute" or len(arguments) > _WINDOW_ARGUMENTS_MAX:
        raise UnsupportedQuery(f"{call.sql()}: F.window needs a column; compute the time with withColumn first")
    name = ".".join(str(part) for part in members(time.nameParts()))
    column = _input_column(frame, name)
    numbers = [_literal_interval(each, call) for each in arguments[1:]]
    size = numbers[0]
    slide = numbers[1] if len(numbers) > 1 else size
    start = numbers[2] if len(numbers) > 2 else 0
    if not 0 < slide <= size:
        raise UnsupportedQuery(f"{call.sql()}: the slide must be longer than nothing and at most the window")
    return plan.TimeWindow(column, size, slide, start)


def _input_column(frame: DataFrame, name: str) -> plan.Column:
    leaf = _analyzed(frame)
    while leaf.children().size():
        leaf = leaf.children().apply(0)
    for each in members(leaf.output()):
        if str(each.name()).lower() == name.lower():
            kind = expression_type(each)
            if kind not in ("timestamp", "timestamp_ntz"):
                raise UnsupportedQuery(f"F.window needs a timestamp, and {name!r} is {kind}; cast it with withColumn")
            return plan.Column(str(each.name()), kind)
    raise UnsupportedQuery(f"F.window needs a column of the stream, and {name!r} is none; use withColumn first")


def _literal_interval(argument: JavaObject, call: JavaObject) -> int:
    if class_name(argument) != "Literal" or expression_type(argument) != "string":
        raise UnsupportedQuery(f"{call.sql()}: the durations of F.window have to be texts such as '10 seconds'")
    return interval_us(str(argument.value().toString()))
