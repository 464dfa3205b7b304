"""The plan in Spark's words: expressions as SQL text, steps as the DataFrame methods that make them.

Invariants:
    * A cast that Spark has put in shows as a cast; nothing that changes a value is left out.
    * Whatever a plan may hold has a text: a step or function that is not known here shows by its own name.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from holdfast import plan
from holdfast.operators.types import arrow_type, quoted

_INFIX: Final = {
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "integral_divide": ("div", 6),
    "remainder": ("%", 6),
    "add": ("+", 5),
    "subtract": ("-", 5),
    "equal": ("=", 4),
    "null_safe_equal": ("<=>", 4),
    "less": ("<", 4),
    "less_equal": ("<=", 4),
    "greater": (">", 4),
    "greater_equal": (">=", 4),
    "like": ("LIKE", 4),
    "and": ("AND", 2),
    "or": ("OR", 1),
}
"""Operators between two values, and how tightly they bind."""
_UNARY: Final = {"is_null": "IS NULL", "is_not_null": "IS NOT NULL"}
_NOT_BINDS: Final = 3
_BINDS_MOST: Final = 9
_NAMES: Final = {
    "is_nan": "isnan",
    "left_trim": "ltrim",
    "right_trim": "rtrim",
    "starts_with": "startswith",
    "ends_with": "endswith",
    "date_diff": "datediff",
    "day_of_week": "dayofweek",
    "day_of_year": "dayofyear",
    "week_day": "weekday",
    "week_of_year": "weekofyear",
    "count_all": "count",
    "stddev_samp": "stddev",
    "var_samp": "variance",
}
_WITH_ZONE: Final = frozenset(("hour", "minute", "second", "date_trunc"))
"""Their last argument is the session's time zone, which nobody has written."""
_UNITS_US: Final = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1_000),
    ("microsecond", 1),
)
Texts = Mapping[str, str]


def duration_text(length_us: int) -> str:
    """Return an interval as PySpark writes it."""
    if not length_us:
        return "0 seconds"
    parts = []
    for unit, unit_us in _UNITS_US:
        count, length_us = divmod(length_us, unit_us)
        if count:
            parts.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(parts)


def expression_text(expression: plan.Expression, columns: Texts | None = None) -> str:
    """Return an expression as Spark SQL; `columns` gives texts in place of some columns."""
    return _text(expression, columns or {})[0]


def _text(expression: plan.Expression, columns: Texts) -> tuple[str, int]:
    """Return the text, and how tightly its outermost operator binds."""
    if isinstance(expression, plan.Column):
        found = columns.get(expression.name)
        return (found, _BINDS_MOST) if found is not None else (quoted(expression.name), _BINDS_MOST)
    if isinstance(expression, plan.Constant):
        return _constant(expression), _BINDS_MOST
    return _call(expression, columns)


def _call(call: plan.Call, columns: Texts) -> tuple[str, int]:
    function, arguments = call.function, call.arguments
    if function in _INFIX and len(arguments) == 2:
        word, binds = _INFIX[function]
        left, right = _inside(arguments[0], columns, binds), _inside(arguments[1], columns, binds + 1)
        return f"{left} {word} {right}", binds
    if function in _UNARY:
        return f"{_inside(arguments[0], columns, 5)} {_UNARY[function]}", 4
    if function == "not":
        return f"NOT {_inside(arguments[0], columns, _NOT_BINDS)}", _NOT_BINDS
    if function == "negate":
        return f"-{_inside(arguments[0], columns, _BINDS_MOST)}", 8
    if function == "cast":
        return f"CAST({_text(arguments[0], columns)[0]} AS {call.type.upper()})", _BINDS_MOST
    if function == "case_when":
        return _case(arguments, columns), _BINDS_MOST
    if function == "field":
        return _field(call, columns), _BINDS_MOST
    texts = [_text(each, columns)[0] for each in arguments]
    if function == "is_in":
        return f"{texts[0]} IN ({', '.join(texts[1:])})", 4
    if function in _WITH_ZONE:
        texts.pop()
    return f"{_NAMES.get(function, function)}({', '.join(texts)})", _BINDS_MOST


def _inside(expression: plan.Expression, columns: Texts, binds_min: int) -> str:
    text, binds = _text(expression, columns)
    return text if binds >= binds_min else f"({text})"


def _case(arguments: Sequence[plan.Expression], columns: Texts) -> str:
    texts = [_text(each, columns)[0] for each in arguments]
    pairs = [f" WHEN {texts[place]} THEN {texts[place + 1]}" for place in range(0, len(texts) - 1, 2)]
    otherwise = f" ELSE {texts[-1]}" if len(texts) % 2 else ""
    return f"CASE{''.join(pairs)}{otherwise} END"


def _field(call: plan.Call, columns: Texts) -> str:
    """Return `struct.field`: the plan knows a field by its place, the type's text by its name."""
    struct, place = call.arguments
    base = _inside(struct, columns, _BINDS_MOST)
    assert isinstance(place, plan.Constant) and isinstance(place.value, int), "a field has a place"
    return f"{base}.{quoted(arrow_type(struct.type).field(place.value).name)}"


def _constant(constant: plan.Constant) -> str:
    value, kind = constant.value, constant.type
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if kind == "string":
        return "'" + str(value).replace("'", "\\'") + "'"
    if kind == "date" and isinstance(value, int):
        return f"DATE '{datetime.date(1970, 1, 1) + datetime.timedelta(days=value)}'"
    if kind.startswith("timestamp") and isinstance(value, int):
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=value)
        return f"TIMESTAMP '{moment}{'Z' if kind == 'timestamp' else ''}'"
    return str(value)


def steps_texts(steps: Sequence[plan.Step], columns: Sequence[str], texts: Texts | None = None) -> list[str]:
    """Return each step as the method call that makes it; `columns` are those of the rows before the first one.

    A projection that only keeps the columns (what a union does to fit its inputs together) is nothing to show.
    """
    shown = []
    for step in steps:
        if isinstance(step, plan.Filter):
            shown.append(f"filter({expression_text(step.condition, texts)})")
        elif isinstance(step, plan.Project):
            text = _projection(step, columns, texts or {})
            if text is not None:
                shown.append(text)
            columns = [column.name for column in step.columns]
        elif isinstance(step, plan.MapInArrow):
            shown.append(f"mapInArrow({step.name.removeprefix('<locals>.').rpartition('<locals>.')[2]})")
        else:
            shown.append(type(step).__name__)
    return shown


def _projection(step: plan.Project, columns: Sequence[str], texts: Texts) -> str | None:
    names = [column.name for column in step.columns]
    changed = [column for column in step.columns if not _is_itself(column)]
    if names == list(columns) and not changed:
        return None
    kept = set(columns) <= set(names) and names[: len(columns)] == list(columns)
    if kept and 0 < len(changed) < len(names):
        method = "withColumn" if len(changed) == 1 else "withColumns"
        return f"{method}({', '.join(_named(column, texts) for column in changed)})"
    if len(changed) == 1 and [_column_of(column) for column in step.columns] == list(columns):
        return f"withColumnRenamed({quoted(_column_of(changed[0]) or '')}, {quoted(changed[0].name)})"
    if not changed and len(names) < len(columns) and 2 * len(names) > len(columns):
        gone = [name for name in columns if name not in names]
        if [name for name in columns if name in names] == names:
            return f"drop({', '.join(map(quoted, gone))})"
    return f"select({', '.join(_named(column, texts) for column in step.columns)})"


def _is_itself(column: plan.Named) -> bool:
    return isinstance(column.expression, plan.Column) and column.expression.name == column.name


def _column_of(column: plan.Named) -> str | None:
    return column.expression.name if isinstance(column.expression, plan.Column) else None


def _named(column: plan.Named, texts: Texts) -> str:
    text = expression_text(column.expression, texts)
    return text if text == quoted(column.name) else f"{text} AS {quoted(column.name)}"


def aggregates_texts(aggregation: plan.Aggregation) -> list[str]:
    """Return what `agg` was given: each output but the keys and the window."""
    texts = {each.name: aggregate_text(each) for each in aggregation.aggregates}
    plain = {key.name for key in aggregation.keys} | {aggregation.window_column}
    return [
        _named(output, texts)
        for output in aggregation.outputs
        if not (isinstance(output.expression, plan.Column) and output.expression.name in plain)
    ]


def aggregate_text(aggregate: plan.Aggregate) -> str:
    """Return an aggregate function as Spark SQL."""
    argument = "*" if aggregate.argument is None else expression_text(aggregate.argument)
    nulls = " IGNORE NULLS" if aggregate.ignore_nulls else ""
    return f"{_NAMES.get(aggregate.function, aggregate.function)}({argument}{nulls})"


def window_text(window: plan.TimeWindow | plan.CountWindow) -> str:
    """Return a window as the call in `groupBy` that makes it."""
    if isinstance(window, plan.CountWindow):
        slide = "" if window.slide == window.size else f", slide={window.slide}"
        return f"count_window({window.size}{slide})"
    parts = [expression_text(window.event_time), duration_text(window.size_us)]
    if window.slide_us != window.size_us or window.start_us:
        parts.append(duration_text(window.slide_us))
    if window.start_us:
        parts.append(duration_text(window.start_us) if window.start_us > 0 else f"-{duration_text(-window.start_us)}")
    return f"window({', '.join(parts)})"


def stage_text(stage: plan.Stage) -> str:
    """Return all that a stage does to rows, as one would write it."""
    inputs = [read.stream + _called(steps_texts(read.steps, _names(read.schema))) for read in stage.inputs]
    text = inputs[0] if len(inputs) == 1 else f"({' + '.join(inputs)})"
    names = _names(stage.union_schema)
    if stage.transform is not None:
        text += f".transform({stage.transform.name})"
    if stage.aggregation is not None:
        aggregation = stage.aggregation
        keys = [_named(key, {}) for key in aggregation.keys]
        keys += [] if aggregation.window is None else [window_text(aggregation.window)]
        text += f".groupBy({', '.join(keys)}).agg({', '.join(aggregates_texts(aggregation))})"
        names = [column.name for column in aggregation.outputs]
    return text + _called(steps_texts(stage.steps, names))


def _called(steps: Sequence[str]) -> str:
    return "".join(f".{step}" for step in steps)


def _names(schema: bytes) -> list[str]:
    return list(pa.ipc.read_schema(pa.py_buffer(schema)).names)
