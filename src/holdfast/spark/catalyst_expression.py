"""Catalyst's analysed expressions as the plan's.

Invariants:
    * Spark has resolved names and types and made every cast explicit; nothing is guessed here.
    * What our engine does not compute exactly as Spark does is refused, with the text of the expression and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.types import StructType

from holdfast import plan
from holdfast.errors import UnsupportedQuery
from holdfast.operators.expressions import constant, folded
from holdfast.operators.functions import calendar, casts, texts
from holdfast.operators.types import arrow_type, is_decimal, is_nested
from holdfast.spark.types import type_text

JavaObject = Any

_SIMPLE: Final = {
    "Add": "add",
    "Subtract": "subtract",
    "Multiply": "multiply",
    "Divide": "divide",
    "IntegralDivide": "integral_divide",
    "Remainder": "remainder",
    "UnaryMinus": "negate",
    "Abs": "abs",
    "Floor": "floor",
    "Ceil": "ceil",
    "EqualTo": "equal",
    "EqualNullSafe": "null_safe_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "In": "is_in",
    "Greatest": "greatest",
    "Least": "least",
    "IsNull": "is_null",
    "IsNotNull": "is_not_null",
    "IsNaN": "is_nan",
    "Not": "not",
    "And": "and",
    "Or": "or",
    "CaseWhen": "case_when",
    "If": "case_when",
    "Coalesce": "coalesce",
    "Upper": "upper",
    "Lower": "lower",
    "Length": "length",
    "OctetLength": "octet_length",
    "Concat": "concat",
    "Year": "year",
    "Quarter": "quarter",
    "Month": "month",
    "DayOfMonth": "day",
    "DayOfWeek": "day_of_week",
    "WeekDay": "week_day",
    "DayOfYear": "day_of_year",
    "WeekOfYear": "week_of_year",
    "DateAdd": "date_add",
    "DateSub": "date_sub",
    "DateDiff": "date_diff",
}
_WITH_LITERALS: Final = {
    "Substring": "substring",
    "StartsWith": "starts_with",
    "EndsWith": "ends_with",
    "Contains": "contains",
    "Round": "round",
    "StringTrim": "trim",
    "StringTrimLeft": "left_trim",
    "StringTrimRight": "right_trim",
}
_WITH_ZONE: Final = {"Hour": "hour", "Minute": "minute", "Second": "second"}
_TRANSPARENT: Final = frozenset({"Alias", "UnaryPositive", "KnownNotNull", "KnownNullable", "CommonExpressionDef"})
_COMPARING: Final = frozenset(
    ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "In")
)
_NUMBERS_BY_WIDTH: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_DIGITS_OF_WHOLE: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_REPLACEABLE: Final = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable"
ADVICE: Final = "compute it in mapInArrow, or in the program that fills the source"

Known = Callable[[JavaObject], plan.Expression | None]
"""Gives the expression for what is already computed: a grouping column, an aggregate."""


def class_name(expression: JavaObject) -> str:
    """Return the simple name of a Java object's class."""
    return str(expression.getClass().getSimpleName())


def members(sequence: JavaObject) -> Iterator[JavaObject]:
    """Return what is in a Scala sequence."""
    return (sequence.apply(index) for index in range(sequence.size()))


def expression_type(expression: JavaObject) -> str:
    """Return the plan's text for the type of a resolved expression."""
    field = {"name": "x", "nullable": True, "metadata": {}, "type": json.loads(expression.dataType().json())}
    return type_text(StructType.fromJson({"type": "struct", "fields": [field]}).fields[0].dataType)


def is_java_instance(expression: JavaObject, name: str) -> bool:
    """Return whether a Java object is of a class or has a trait."""
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None, "an analysed expression lives in a running JVM"
    return bool(is_instance_of(gateway, expression, name))


def evaluation_mode(expression: JavaObject) -> str:
    """Return `ANSI`, `LEGACY` or `TRY`."""
    names = {method.getName() for method in expression.getClass().getMethods()}
    if "evalContext" in names:
        return str(expression.evalContext().evalMode().toString())
    if "evalMode" in names:
        return str(expression.evalMode().toString())
    for flag in ("failOnError", "ansiEnabled"):
        if flag in names:
            return "ANSI" if getattr(expression, flag)() else "LEGACY"
    return "ANSI"


class Converter:
    """Turns analysed expressions over one set of columns into the plan's."""

    def __init__(self, known: Known | None = None) -> None:
        self._known = known

    def convert(self, expression: JavaObject) -> plan.Expression:
        """Return the plan's expression; `UnsupportedQuery` if our engine does not have a part of it."""
        return self._convert(expression, {})

    def _convert(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        found = self._known(expression) if self._known is not None else None
        if found is not None:
            return found
        name = class_name(expression)
        if name == "With":
            return self._with(expression, common)
        if name == "CommonExpressionRef":
            return common[expression.id().toString()]
        if name in _TRANSPARENT:
            return self._convert(expression.children().apply(0), common)
        special = _SPECIAL.get(name)
        if special is not None:
            return special(self, expression, common)
        if name in _SIMPLE or name in _WITH_LITERALS or name in _WITH_ZONE:
            return self._function(name, expression, common)
        if is_java_instance(expression, _REPLACEABLE):
            return self._convert(expression.replacement(), common)
        raise refusal(expression)

    def _arguments(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> list[plan.Expression]:
        return [self._convert(child, common) for child in members(expression.children())]

    def _function(self, name: str, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        arguments = self._arguments(expression, common)
        _check_function(name, expression, arguments)
        if name in _WITH_ZONE:
            return plan.Call(_WITH_ZONE[name], [*arguments, _zone(expression)], expression_type(expression))
        function = _SIMPLE.get(name) or _WITH_LITERALS[name]
        if name == "UnaryMinus" and evaluation_mode(expression) != "ANSI":
            return _negated(expression, arguments[0])
        if name in _WITH_LITERALS and any(not isinstance(each, plan.Constant) for each in arguments[1:]):
            raise refusal(expression, "its arguments after the first have to be literals")
        return folded(plan.Call(function, arguments, expression_type(expression)))

    def _with(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        body, *definitions = members(expression.children())
        inner = dict(common)
        for definition in definitions:
            inner[definition.id().toString()] = self._convert(definition, common)
        return self._convert(body, inner)

    def _column(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        return plan.Column(str(expression.name()), expression_type(expression))

    def _literal(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        kind, value = expression_type(expression), expression.value()
        if kind.startswith("decimal(") and value is not None:
            value = value.toJavaBigDecimal()
        elif kind == "string" and value is not None:
            value = str(value.toString())
        if is_nested(kind) and value is not None:
            raise refusal(expression, "nested literals are not there yet")
        return constant(bytes(value) if isinstance(value, (bytes, bytearray)) else value, kind)

    def _cast(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        (argument,) = self._arguments(expression, common)
        source, target = argument.type, expression_type(expression)
        if source == target:
            return argument
        if not casts.castable(source, target):
            raise refusal(expression, f"a cast from {source} to {target} is not there")
        mode = evaluation_mode(expression)
        if mode != "ANSI" and not _never_fails(source, target):
            raise refusal(expression, _mode_reason(mode))
        details = [constant(source, "string"), constant(target, "string"), _zone(expression)]
        return folded(plan.Call("cast", [argument, *details], target))

    def _like(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        arguments = self._arguments(expression, common)
        pattern = arguments[1]
        if not isinstance(pattern, plan.Constant) or str(expression.escapeChar()) != "\\":
            raise refusal(expression, "its pattern has to be a literal, with a backslash to escape")
        if pattern.value is not None:
            texts.like_regex(str(pattern.value))
        return plan.Call("like", arguments, "boolean")

    def _truncate(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        arguments = self._arguments(expression, common)
        unit = arguments[0]
        if not isinstance(unit, plan.Constant) or unit.value is None or not calendar.is_unit(str(unit.value)):
            raise refusal(expression, "its unit has to be a literal such as 'hour' or 'month'")
        return plan.Call("date_trunc", [*arguments, _zone(expression)], expression_type(expression))

    def _field(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        arguments = self._arguments(expression, common)
        ordinal = constant(int(expression.ordinal()), "int")
        return plan.Call("field", [*arguments, ordinal], expression_type(expression))

    def _struct(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        values = [
            self._convert(child, common) for index, child in enumerate(members(expression.children())) if index % 2
        ]
        return plan.Call("struct", values, expression_type(expression))

    def _null_if(self, expression: JavaObject, common: Mapping[str, plan.Expression]) -> plan.Expression:
        condition, value = self._arguments(expression, common)
        return plan.Call("case_when", [condition, constant(None, value.type), value], value.type)


_Special = Callable[[Converter, JavaObject, Mapping[str, plan.Expression]], plan.Expression]
_SPECIAL: Final[dict[str, _Special]] = {
    "AttributeReference": Converter._column,
    "Literal": Converter._literal,
    "Cast": Converter._cast,
    "Like": Converter._like,
    "TruncTimestamp": Converter._truncate,
    "GetStructField": Converter._field,
    "CreateNamedStruct": Converter._struct,
    "NullIfResult": Converter._null_if,
}


def refusal(expression: JavaObject, reason: str | None = None) -> UnsupportedQuery:
    """Return the error for an expression that is not computed here; it gives Spark's own text of it."""
    name, text = class_name(expression), str(expression.sql())
    if "UDF" in name:
        reason = "a Python function in an expression is not run row by row; put it into mapInArrow"
        return UnsupportedQuery(f"{text}: {reason}")
    if name == "AggregateExpression":
        return UnsupportedQuery(f"{text}: {reason or 'an aggregate has to stand in groupBy(...).agg(...)'}")
    why = reason or f"the function {expression.prettyName()} is not there yet"
    return UnsupportedQuery(f"{text}: {why}; {ADVICE}")


def _zone(expression: JavaObject) -> plan.Constant:
    zone = expression.timeZoneId()
    return constant(str(zone.get()) if zone.isDefined() else "UTC", "string")


def _negated(expression: JavaObject, argument: plan.Expression) -> plan.Expression:
    """Return the negative of what cannot overflow; Spark writes some functions with an unchecked minus."""
    made = folded(plan.Call("negate", [argument], argument.type))
    if isinstance(made, plan.Call) and argument.type not in ("float", "double"):
        raise refusal(expression, _mode_reason(evaluation_mode(expression)))
    return made


def _mode_reason(mode: str) -> str:
    if mode == "TRY":
        return "functions that make errors null (try_...) are not there yet"
    return "holdfast computes as spark.sql.ansi.enabled=true does, which is Spark's default; this session has it off"


def _never_fails(source: str, target: str) -> bool:
    if source == "void" or target == "string":
        return True
    if source in _NUMBERS_BY_WIDTH and target in _NUMBERS_BY_WIDTH:
        return _NUMBERS_BY_WIDTH.index(source) <= _NUMBERS_BY_WIDTH.index(target)
    if is_decimal(source) or is_decimal(target):
        return _decimal_never_fails(source, target)
    return source in ("date", "timestamp", "timestamp_ntz") and target in ("date", "timestamp", "timestamp_ntz")


def _decimal_never_fails(source: str, target: str) -> bool:
    if target in ("float", "double"):
        return True
    digits = _DIGITS_OF_WHOLE.get(source)
    if not is_decimal(target) or (digits is None and not is_decimal(source)):
        return False
    wanted, scale = arrow_type(target), 0
    if digits is None:
        found = arrow_type(source)
        digits, scale = found.precision - found.scale, found.scale
    # A scale that is cut may round up into one more digit.
    return bool(wanted.precision - wanted.scale >= digits + (1 if wanted.scale < scale else 0))


def _check_function(name: str, expression: JavaObject, arguments: list[plan.Expression]) -> None:
    mode = evaluation_mode(expression)
    floats = all(argument.type in ("float", "double") for argument in arguments)
    safe = name == "UnaryMinus" or (floats and name in ("Add", "Subtract", "Multiply", "Abs"))
    if mode != "ANSI" and not safe:
        raise refusal(expression, _mode_reason(mode))
    kinds = [argument.type for argument in arguments]
    if name in (*_COMPARING, "Greatest", "Least") and any(is_nested(kind) for kind in kinds):
        raise refusal(expression, "structs, arrays and maps are not compared; compare their fields")
    if name == "Concat" and any(kind not in ("string", "binary") for kind in kinds):
        raise refusal(expression, "only strings and binaries are joined")
    numeric = name in ("Add", "Subtract", "Multiply", "Divide", "Remainder", "UnaryMinus", "Abs", "IntegralDivide")
    if numeric and any("interval" in kind or "timestamp" in kind or "date" in kind for kind in kinds):
        raise refusal(expression, "arithmetic on dates, timestamps and intervals is not there yet")
