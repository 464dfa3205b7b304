"""The expression engine without Spark; tests/spark compares it with Spark."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from holdfast import plan
from holdfast.errors import BadRow, UnsupportedQuery
from holdfast.operators.expressions import apply_steps, can_fail, columns_of, constant, evaluate, folded, text

A = plan.Column("a", "int")
B = plan.Column("b", "int")
ZERO = constant(0, "int")
BATCH = pa.record_batch({"a": pa.array([6, 2**31 - 1, None, 4], pa.int32()), "b": pa.array([3, 1, 0, 0], pa.int32())})


def call(function: str, type: str, *arguments: plan.Expression) -> plan.Call:
    return plan.Call(function, list(arguments), type)


def test_the_first_row_that_overflows_is_named_with_its_values() -> None:
    with pytest.raises(BadRow, match=r"row 1 .*add\(a, b\).*2147483647, 1") as caught:
        evaluate(call("add", "int", A, B), BATCH)
    assert caught.value.row == 1


def test_a_null_row_cannot_fail() -> None:
    assert evaluate(call("integral_divide", "int", A, B), BATCH.slice(0, 3)).to_pylist() == [2, 2147483647, None]


def test_a_branch_that_is_not_taken_cannot_fail() -> None:
    guarded = call("case_when", "int", call("equal", "boolean", B, ZERO), ZERO, call("integral_divide", "int", A, B))
    assert evaluate(guarded, BATCH).to_pylist() == [2, 2147483647, 0, 0]


def test_what_stands_behind_false_or_true_is_not_computed() -> None:
    risky = call("greater", "boolean", call("integral_divide", "int", A, B), ZERO)
    both = call("and", "boolean", call("not", "boolean", call("equal", "boolean", B, ZERO)), risky)
    either = call("or", "boolean", call("equal", "boolean", B, ZERO), risky)
    assert evaluate(both, BATCH).to_pylist() == [True, True, False, False]
    assert evaluate(either, BATCH).to_pylist() == [True, True, True, True]


def test_coalesce_computes_a_later_argument_only_where_it_is_needed() -> None:
    risky = call("integral_divide", "int", constant(1, "int"), B)
    batch = pa.record_batch({"a": pa.array([1, None], pa.int32()), "b": pa.array([0, 1], pa.int32())})
    assert evaluate(call("coalesce", "int", A, risky), batch).to_pylist() == [1, 1]


def test_a_failure_in_a_branch_has_the_row_of_the_batch() -> None:
    risky = call("case_when", "int", call("equal", "boolean", B, ZERO), call("integral_divide", "int", A, B))
    with pytest.raises(BadRow) as caught:
        evaluate(risky, BATCH)
    assert caught.value.row == 3


def test_nan_is_equal_to_itself_and_greatest() -> None:
    nan = float("nan")
    batch = pa.record_batch({"x": [nan, nan, 1.0, -0.0], "y": [nan, 1.0, nan, 0.0]})
    x, y = plan.Column("x", "double"), plan.Column("y", "double")
    assert evaluate(call("equal", "boolean", x, y), batch).to_pylist() == [True, False, False, True]
    assert evaluate(call("less", "boolean", x, y), batch).to_pylist() == [False, False, True, False]


def test_an_empty_batch_has_the_right_type_and_cannot_fail() -> None:
    found = evaluate(call("integral_divide", "int", constant(1, "int"), ZERO), BATCH.slice(0, 0))
    assert found.type == pa.int32() and len(found) == 0


@pytest.mark.parametrize(
    ("value", "type"),
    [(float("nan"), "double"), (-0.0, "double"), (float("inf"), "float"), (b"\x00\xff", "binary"), (None, "date")],
)
def test_a_literal_survives_json(value: object, type: str) -> None:
    kept = msgspec.json.decode(msgspec.json.encode(constant(value, type)), type=plan.Constant)
    found = evaluate(kept, BATCH.slice(0, 1)).to_pylist()[0]
    assert repr(found) == repr(value)


def test_zero_and_negative_zero_are_two_literals() -> None:
    one_row = BATCH.slice(0, 1)
    assert repr(evaluate(constant(0.0, "double"), one_row)[0].as_py()) == "0.0"
    assert repr(evaluate(constant(-0.0, "double"), one_row)[0].as_py()) == "-0.0"


def test_literals_are_folded_unless_they_fail() -> None:
    assert folded(call("add", "int", constant(1, "int"), constant(2, "int"))) == constant(3, "int")
    failing = call("integral_divide", "int", constant(1, "int"), ZERO)
    assert folded(failing) is failing


def test_a_function_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedQuery, match="from_the_future"):
        evaluate(call("from_the_future", "int", A), BATCH)


def test_steps_filter_and_project_and_keep_nullability() -> None:
    keep = plan.Filter(call("greater", "boolean", B, ZERO))
    half = plan.Project([plan.Named("h", call("integral_divide", "int", A, B), nullable=False)])
    found = apply_steps([keep, half], BATCH)
    assert found.to_pylist() == [{"h": 2}, {"h": 2147483647}]
    assert not found.schema.field("h").nullable


def test_what_an_expression_reads_and_whether_it_can_fail() -> None:
    both = call("add", "int", A, B)
    assert columns_of(both) == {"a", "b"}
    assert can_fail(both)
    assert not can_fail(call("equal", "boolean", A, B))
    assert text(call("cast", "bigint", A)) == "cast(a as bigint)"
