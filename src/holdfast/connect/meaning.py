"""What a stage means: what is left when everything is taken away that its rows do not depend on.

Pure. Two stages with one meaning make the same rows of the same log.

Invariants:
    * A column that a stage does not use is no part of its meaning, wherever in its steps it comes by: a source may
      get more columns, and a stage over the old ones stays what it is.
    * A user's function sees all columns of its rows, so it uses all of them. It is known by its name: under which
      number it travels, and what its body says, is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from holdfast.operators.words import expression_text
from holdfast.plan import (
    Aggregation,
    Call,
    Column,
    CountWindow,
    Expression,
    Filter,
    MapInArrow,
    Named,
    Project,
    Stage,
    StageInput,
    Step,
    TimeWindow,
    Transform,
)

Used = frozenset[str] | None
"""Columns by name; None for all of them."""


def differences(there: Stage, asked: Stage) -> list[str]:
    """Say in the user's words how a stage differs from what it was; nothing where its meaning is the same."""
    if there.event_time is not None and asked.event_time not in (None, there.event_time):
        return [f"its event time was {there.event_time!r}, now {asked.event_time!r}"]
    before, now = _pruned(there), _pruned(asked)
    if _plain(before) == _plain(now):
        return []
    found = [*_inputs(before, now), *_grouping(before.aggregation, now.aggregation), *_columns(before, now)]
    found += _steps("behind its groupBy", before.steps, now.steps)
    found += _functions(before, now)
    if before.sharded != now.sharded:
        found.append("its inputs are sharded in another way")
    return found or ["its steps are others"]


def schema_text(serialized: bytes) -> str:
    """Return a schema as people write it."""
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    return ", ".join(f"{field.name} {field_text(field)}" for field in schema)


def field_text(field: pa.Field) -> str:
    """Return a column's type as people write it."""
    return f"{field.type}{'' if field.nullable else ' not null'}"


def plain(value: Any) -> Any:
    """Return plain data with readable schemas, without policies and numbers that mean nothing."""
    if isinstance(value, bytes):
        return schema_text(value)
    if isinstance(value, dict):
        # How an input's rows are picked follows from the keys.
        free: tuple[str, ...] = ("on_error", "late", "keyed_by") if "delay_us" in value else ()
        free += ("on_error",) if _is_map(value) else ()
        free += ("function",) if _is_map(value) or value.keys() == {"function", "name"} else ()
        return {name: plain(each) for name, each in value.items() if name not in free}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def meaning(stage: Stage) -> Any:
    """Return what a stage means as plain data."""
    return _plain(_pruned(stage))


def _plain(stage: Stage) -> Any:
    found = plain(msgspec.to_builtins(stage, builtin_types=(bytes,)))
    # How often it is checkpointed changes no row, nor does what frames say and how they are laid out for the stages
    # behind it: each frame says for itself what is in it.
    free = ("checkpoint_every_us", "event_time", "event_time_edge", "shard_by")
    return {name: value for name, value in found.items() if name not in free}


def _is_map(value: dict[str, Any]) -> bool:
    return value.get("type") == "map_in_arrow"


# What is used


def _pruned(stage: Stage) -> Stage:
    used: Used = None if stage.aggregation is None else frozenset(_used_by_aggregation(stage.aggregation))
    inputs = [_pruned_input(read, used) for read in stage.inputs]
    return replace(stage, inputs=inputs, union_schema=_restricted(stage.union_schema, used))


def _pruned_input(read: StageInput, used: Used) -> StageInput:
    kept: list[Step] = []
    for step in reversed(read.steps):
        step, used = _pruned_step(step, used)
        kept.insert(0, step)
    if used is not None and read.event_time is not None:
        used |= {read.event_time}
    return replace(read, steps=kept, schema=_restricted(read.schema, used))


def _pruned_step(step: Step, used: Used) -> tuple[Step, Used]:
    """Return what is left of a step, and what it uses of the rows before it."""
    if isinstance(step, MapInArrow):
        return step, None
    if isinstance(step, Filter):
        return step, None if used is None else used | frozenset(_names(step.condition))
    columns = [column for column in step.columns if used is None or column.name in used]
    return Project(columns), frozenset(name for column in columns for name in _names(column.expression))


def _used_by_aggregation(aggregation: Aggregation) -> Iterable[str]:
    for key in aggregation.keys:
        yield from _names(key.expression)
    for aggregate in aggregation.aggregates:
        if aggregate.argument is not None:
            yield from _names(aggregate.argument)
    if isinstance(aggregation.window, TimeWindow):
        yield from _names(aggregation.window.event_time)


def _names(expression: Expression) -> Iterable[str]:
    if isinstance(expression, Column):
        yield expression.name
    elif isinstance(expression, Call):
        for argument in expression.arguments:
            yield from _names(argument)


def _restricted(serialized: bytes, used: Used) -> bytes:
    """Return a schema with the columns that are used, sorted: who asks by name does not ask for a place."""
    if used is None:
        return serialized
    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    return bytes(pa.schema([schema.field(name) for name in sorted(used & set(schema.names))]).serialize())


# In words


def _inputs(before: Stage, now: Stage) -> list[str]:
    there = {read.stream: read for read in before.inputs}
    asked = {read.stream: read for read in now.inputs}
    found = [f"it reads {name!r}, which it did not" for name in asked if name not in there]
    found += [f"it does not read {name!r} any more" for name in there if name not in asked]
    if not found and list(there) != list(asked):
        found.append(f"its inputs were {', '.join(there)}, now {', '.join(asked)}: their order decides between rows")
    for name in [name for name in there if name in asked]:
        found += _input(there[name], asked[name])
    return found


def _input(before: StageInput, now: StageInput) -> list[str]:
    found = []
    if (before.event_time, before.delay_us) != (now.event_time, now.delay_us):
        found.append(f"the watermark on {before.stream!r} was {_watermark_text(before)}, now {_watermark_text(now)}")
    found += _steps(f"on {before.stream!r}", before.steps, now.steps)
    found += _schemas(f"of {before.stream!r}, which all go through it,", before.schema, now.schema)
    return found


def _grouping(before: Aggregation | None, now: Aggregation | None) -> list[str]:
    if before is None or now is None:
        if before is None and now is None:
            return []
        return ["it had a groupBy, now it has none" if now is None else "it had no groupBy, now it has one"]
    found = []
    keys = [_named_texts(each.keys) for each in (before, now)]
    if keys[0] != keys[1]:
        found.append(f"groupBy was on {_listed(keys[0])}, now on {_listed(keys[1])}")
    if before.window != now.window:
        found.append(f"its window was {_window_text(before.window)}, now {_window_text(now.window)}")
    aggregates = [[_aggregate_text(each) for each in one.aggregates] for one in (before, now)]
    if aggregates[0] != aggregates[1]:
        found.append(f"its aggregates were {_listed(aggregates[0])}, now {_listed(aggregates[1])}")
    outputs = [_named_texts(each.outputs) for each in (before, now)]
    if not found and outputs[0] != outputs[1]:
        found.append(f"its columns were {_listed(outputs[0])}, now {_listed(outputs[1])}")
    return found


def _functions(before: Stage, now: Stage) -> list[str]:
    found = []
    by = [None if each.partition_by is None else each.partition_by.name for each in (before, now)]
    if by[0] != by[1]:
        found.append(f"its partition_by was {by[0] or 'none'}, now {by[1] or 'none'}")
    if before.transform != now.transform:
        texts = [_transform_text(each.transform) for each in (before, now)]
        found.append(f"its transform was {texts[0]}, now {texts[1]}")
    return found


def _transform_text(transform: Transform | None) -> str:
    if transform is None:
        return "none"
    return transform.name + (f" with order_by {_listed(transform.order_by)}" if transform.order_by else "")


def _columns(before: Stage, now: Stage) -> list[str]:
    return _schemas("of its own", before.schema, now.schema)


def _schemas(whose: str, before: bytes, now: bytes) -> list[str]:
    there, asked = (pa.ipc.read_schema(pa.py_buffer(each)) for each in (before, now))
    fresh = [name for name in asked.names if name not in there.names]
    gone = [name for name in there.names if name not in asked.names]
    found = [f"the columns {whose} got {_listed(fresh)}"] if fresh else []
    found += [f"the columns {whose} lack {_listed(gone)}"] if gone else []
    for name in [name for name in there.names if name in asked.names]:
        if not there.field(name).equals(asked.field(name)):
            texts = [field_text(each.field(name)) for each in (there, asked)]
            found.append(f"the column {name!r} {whose} was {texts[0]}, now {texts[1]}")
    if not found and there.names != asked.names:
        found.append(f"the columns {whose} were in the order {_listed(there.names)}, now {_listed(asked.names)}")
    return found


def _steps(where: str, before: Sequence[Step], now: Sequence[Step]) -> list[str]:
    texts = [[_step_text(step) for step in steps] for steps in (before, now)]
    if texts[0] == texts[1]:
        return []
    pairs = zip([*texts[0], "nothing"], [*texts[1], "nothing"], strict=False)
    first, second = next(pair for pair in pairs if pair[0] != pair[1])
    return [f"a step {where} was {first}, now {second}"]


def _step_text(step: Step) -> str:
    if isinstance(step, MapInArrow):
        return f"mapInArrow({step.name}) to {schema_text(step.schema)}"
    if isinstance(step, Filter):
        return f"filter({expression_text(step.condition)})"
    return f"select({', '.join(_named_texts(step.columns))})"


def _named_texts(columns: Iterable[Named]) -> list[str]:
    return [
        text if text == column.name else f"{text} AS {column.name}"
        for column, text in ((column, expression_text(column.expression)) for column in columns)
    ]


def _aggregate_text(aggregate: Any) -> str:
    inside = "*" if aggregate.argument is None else expression_text(aggregate.argument)
    nulls = " ignoring nulls" if aggregate.ignore_nulls else ""
    return f"{aggregate.function}({inside}){nulls} {aggregate.type}"


def _window_text(window: TimeWindow | CountWindow | None) -> str:
    if window is None:
        return "none"
    if isinstance(window, CountWindow):
        return f"{window.size} rows every {window.slide}"
    start = f" from {window.start_us / 1e6:g} s" if window.start_us else ""
    return (
        f"{window.size_us / 1e6:g} s every {window.slide_us / 1e6:g} s of {expression_text(window.event_time)}{start}"
    )


def _watermark_text(read: StageInput) -> str:
    return "none" if read.event_time is None else f"{read.event_time!r} with {read.delay_us / 1e6:g} s"


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts) or "nothing"
