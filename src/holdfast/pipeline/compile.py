"""From what the user wrote to `plan.Topology`.

Invariants:
    * Everything that cannot be run is found here, before anything is touched; the message has the user's line.
    * A stage's inputs are its branches, one for each source below it, with every step that stands before the
      aggregation, also those after a union.
    * A column is traced to a source only through projections that leave it as it is. Only a traced column can be an
      event time, or decide the shard when a row is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from holdfast import plan
from holdfast.errors import UnsupportedQuery
from holdfast.operators.types import arrow_type
from holdfast.pipeline.lineage import (
    AggregationNode,
    MapNode,
    Node,
    SourceNode,
    StepNode,
    UnionNode,
    WatermarkNode,
)

_SURELY_FIT: Final = 16
"""So many aggregates over all open windows of a key, and keys, have room in a record whatever their types are."""
_OPEN_WINDOWS_MAX: Final = 1000
_MOVE_TO_SOURCE: Final = "make it a column of the source itself, and only rename it on the way"


@dataclass(frozen=True, slots=True)
class Branch:
    """The way of one source's rows to the aggregation.

    `origin` maps a column of the rows at this point to the source's column that it is, where it is one.
    """

    source: str
    steps: tuple[plan.Step, ...]
    origin: Mapping[str, str]
    event_time: str | None = None
    delay_us: int = 0


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """A source as `Pipeline.source` was called."""

    source: plan.Source
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """A named stream: its tree, the schema of its rows, its dial."""

    name: str
    node: Node
    schema: bytes
    checkpoint_every_us: int | None


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for the whole pipeline."""

    name: str
    shards: int
    bucket_width_us: int
    session_time_zone: str


class Functions:
    """The user's functions, numbered in the order they are met."""

    def __init__(self) -> None:
        self.table: list[Callable[..., Any]] = []
        self._numbers: dict[int, int] = {}

    def number(self, node: MapNode) -> int:
        """Return the number of a node's function; a node that is met twice keeps its number."""
        if id(node) not in self._numbers:
            self._numbers[id(node)] = len(self.table)
            self.table.append(node.function)
        return self._numbers[id(node)]


def compile_topology(
    settings: Settings,
    sources: Mapping[str, DeclaredSource],
    stages: Sequence[DeclaredStage],
    sinks: Sequence[plan.Sink],
) -> tuple[plan.Topology, list[Callable[..., Any]]]:
    """Return the whole pipeline as data, and the table of the user's functions it refers to by number."""
    functions = Functions()
    made = [_StageCompiler(sources, functions).stage(declared) for declared in stages]
    inputs = {name: _with_uses(declared.source, made) for name, declared in sources.items()}
    topology = plan.Topology(
        name=settings.name,
        shards=settings.shards,
        bucket_width_us=settings.bucket_width_us,
        sources=list(inputs.values()),
        stages=[_with_sharding(each, inputs) for each in made],
        sinks=list(sinks),
        session_time_zone=settings.session_time_zone,
    )
    return topology, functions.table


_Made = tuple[plan.Stage, Mapping[str, tuple[str, ...] | None]]
"""A stage, and for each of its inputs the source's columns that are the grouping keys (None if one is computed)."""


class _StageCompiler:
    def __init__(self, sources: Mapping[str, DeclaredSource], functions: Functions) -> None:
        self._sources = sources
        self._functions = functions

    def stage(self, declared: DeclaredStage) -> _Made:
        behind, aggregation = _split(declared.node)
        below = declared.node if aggregation is None else aggregation.parent
        branches = self._branches(below)
        _check_inputs(branches, declared)
        if aggregation is not None:
            _check_aggregation(aggregation, branches)
        stage = plan.Stage(
            name=declared.name,
            inputs=[self._input(branch) for branch in branches],
            union_schema=declared.schema if aggregation is None else aggregation.input_schema,
            aggregation=None if aggregation is None else aggregation.aggregation,
            steps=[step for node in behind for step in self._steps(node)],
            schema=declared.schema,
            checkpoint_every_us=declared.checkpoint_every_us,
        )
        if aggregation is not None:
            _check_state(stage, aggregation)
        return stage, {branch.source: _key_columns(aggregation, branch) for branch in branches}

    def _steps(self, node: StepNode | MapNode) -> Sequence[plan.Step]:
        return (self._map(node, "stop"),) if isinstance(node, MapNode) else node.steps

    def _branches(self, node: Node) -> list[Branch]:
        if isinstance(node, SourceNode):
            columns = self._sources[node.name].columns
            return [Branch(node.name, (), {column: column for column in columns})]
        if isinstance(node, UnionNode):
            return [
                _advanced(branch, steps)
                for parent, steps in zip(node.parents, node.steps, strict=True)
                for branch in self._branches(parent)
            ]
        assert not isinstance(node, AggregationNode), "a second aggregation is refused where it is written"
        below = self._branches(node.parent)
        if isinstance(node, WatermarkNode):
            return [_watermarked(branch, node) for branch in below]
        if isinstance(node, StepNode):
            return [_advanced(branch, node.steps) for branch in below]
        return [_advanced(branch, (self._map(node, self._sources[branch.source].source.on_error),)) for branch in below]

    def _map(self, node: MapNode, on_error: Literal["stop", "reject"]) -> plan.MapInArrow:
        return plan.MapInArrow(self._functions.number(node), node.name, node.schema, on_error)

    def _input(self, branch: Branch) -> plan.StageInput:
        source = self._sources[branch.source].source
        return plan.StageInput(
            stream=branch.source,
            schema=source.schema,
            steps=list(branch.steps),
            late=source.late,
            on_error=source.on_error,
            event_time=branch.event_time,
            delay_us=branch.delay_us,
        )


def _split(node: Node) -> tuple[list[StepNode | MapNode], AggregationNode | None]:
    """Return what stands behind the aggregation, in order, and the aggregation; nothing where there is none."""
    behind: list[StepNode | MapNode] = []
    while not isinstance(node, AggregationNode):
        if isinstance(node, (SourceNode, UnionNode)):
            return [], None
        if isinstance(node, (StepNode, MapNode)):
            behind.insert(0, node)
        node = node.parent
    return behind, node


def _advanced(branch: Branch, steps: Sequence[plan.Step]) -> Branch:
    origin = dict(branch.origin)
    for step in steps:
        if isinstance(step, plan.Project):
            origin = {
                column.name: origin[column.expression.name]
                for column in step.columns
                if isinstance(column.expression, plan.Column) and column.expression.name in origin
            }
        elif isinstance(step, plan.MapInArrow):
            origin = {}
    return replace(branch, steps=(*branch.steps, *steps), origin=origin)


def _watermarked(branch: Branch, node: WatermarkNode) -> Branch:
    column = branch.origin.get(node.column)
    if column is None:
        raise UnsupportedQuery(
            f"the event time {node.column!r} of withWatermark is not a column of the source {branch.source!r} but "
            f"computed from it; {_MOVE_TO_SOURCE} (at {node.line})"
        )
    return replace(branch, event_time=column, delay_us=node.delay_us)


def _check_inputs(branches: Sequence[Branch], declared: DeclaredStage) -> None:
    names = [branch.source for branch in branches]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnsupportedQuery(
            f"the source {twice[0]!r} is in the stage {declared.name!r} twice, and a stage reads each input once; "
            f"make both parts in one pass, with F.when or mapInArrow (at {declared.node.line})"
        )


def _check_aggregation(node: AggregationNode, branches: Sequence[Branch]) -> None:
    for key in node.aggregation.keys:
        if _holds_array_or_map(arrow_type(key.expression.type)):
            raise UnsupportedQuery(
                f"groupBy({key.name!r}): {key.expression.type} cannot be grouped by; group by atomic columns, or by "
                f"structs of them (at {node.line})"
            )
    window = node.aggregation.window
    if not isinstance(window, plan.TimeWindow):
        return
    assert isinstance(window.event_time, plan.Column), "the analysis takes nothing but a column"
    name = window.event_time.name
    for branch in branches:
        if branch.event_time is None:
            raise UnsupportedQuery(
                f"F.window({name!r}, ...) needs to know when a window is over, and the source {branch.source!r} has no "
                f"watermark; call .withWatermark({name!r}, '2 seconds') before groupBy (at {node.line})"
            )
        if branch.origin.get(name) != branch.event_time:
            raise UnsupportedQuery(
                f"F.window({name!r}, ...) has to be on the column of the watermark, which is {branch.event_time!r} of "
                f"the source {branch.source!r}, unchanged and not through mapInArrow (at {node.line})"
            )


def _holds_array_or_map(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return any(_holds_array_or_map(field.type) for field in type_)
    return bool(pa.types.is_list(type_) or pa.types.is_map(type_))


def _check_state(stage: plan.Stage, node: AggregationNode) -> None:
    """Refuse windows that a unit's records cannot hold."""
    window = node.aggregation.window
    open_windows = -(-window.size // window.slide) if isinstance(window, plan.CountWindow) else 1
    if open_windows > _OPEN_WINDOWS_MAX:
        raise UnsupportedQuery(
            f"groupBy: {open_windows:,} count windows of a key would be open at once, at most {_OPEN_WINDOWS_MAX:,} "
            f"can be: use a slide that is a larger part of the size (at {node.line})"
        )
    if open_windows * len(node.aggregation.aggregates) + len(node.aggregation.keys) <= _SURELY_FIT:
        return
    # Only here, as it loads the kernels, which the node's own process does without.
    from holdfast.operators.stage import layout_of

    try:
        layout_of(stage)
    except UnsupportedQuery as error:
        raise UnsupportedQuery(f"groupBy: {error} (at {node.line})") from error


def _key_columns(node: AggregationNode | None, branch: Branch) -> tuple[str, ...] | None:
    """Return the source's columns that are the grouping keys, in their order; None where one is computed."""
    if node is None:
        return ()
    found: list[str] = []
    for key in node.aggregation.keys:
        column = branch.origin.get(key.expression.name) if isinstance(key.expression, plan.Column) else None
        if column is None:
            return None
        found.append(column)
    return tuple(found)


def _with_uses(source: plan.Source, made: Sequence[_Made]) -> plan.Source:
    """Return a source with what its stages ask of it: how to shard it, and which column is its event time."""
    shard_by: tuple[str, ...] | None = None
    event_time: str | None = None
    for stage, keys in made:
        for each in stage.inputs:
            if each.stream != source.name:
                continue
            # Of several stages with different keys the first decides; the others pick their rows out when they read.
            if shard_by is None and stage.aggregation is not None:
                shard_by = keys[source.name]
            if each.event_time is not None and event_time not in (None, each.event_time):
                raise UnsupportedQuery(
                    f"the source {source.name!r} has the event times {event_time!r} and {each.event_time!r} in two "
                    "stages; one is possible, so log the rows as two sources"
                )
            event_time = each.event_time or event_time
    return msgspec.structs.replace(source, shard_by=list(shard_by or ()), event_time=event_time)


def _with_sharding(made: _Made, sources: Mapping[str, plan.Source]) -> plan.Stage:
    """Return a stage that knows whether a shard of it reads nothing but the same shard of its inputs."""
    stage, keys = made
    aligned = all(columns is not None and list(columns) == sources[name].shard_by for name, columns in keys.items())
    # Without an aggregation rows may be anywhere.
    return msgspec.structs.replace(stage, sharded=stage.aggregation is None or aligned)
