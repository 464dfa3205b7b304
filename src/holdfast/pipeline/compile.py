"""From what the user wrote to `plan.Topology`.

Invariants:
    * Everything that cannot be run is found here, before anything is touched; the message has the user's line.
    * A stage's inputs are its branches, one for each source or named stream below it, with every step that stands
      before the aggregation, also those after a union.
    * A column is traced to an input only through projections that leave it as it is. Only a traced column can be an
      event time, or decide the shard when a row is logged.
    * Stages are in the order in which they were named, so a stage stands behind those that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from holdfast import plan
from holdfast.errors import UnsupportedQuery
from holdfast.operators.partition_function import PartitionFunction
from holdfast.operators.types import arrow_type
from holdfast.origins import Origin, behind
from holdfast.pipeline.lineage import (
    AggregationNode,
    MapNode,
    Node,
    SourceNode,
    StageNode,
    StepNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    has_transform,
    nodes,
)

_SURELY_FIT: Final = 16
"""So many aggregates over all open windows of a key, and keys, have room in a record whatever their types are."""
_OPEN_WINDOWS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Sharding:
    """For each key that gives a row's shard: the columns that hold it; and the number of the user's function, if one's.

    None in its place: rows may be in any shard.
    """

    columns: tuple[frozenset[str], ...]
    function: int | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """The way of one input's rows to the aggregation; `origin` is from the rows at this point to the input's."""

    stream: str
    kind: Literal["source", "stream"]
    steps: tuple[plan.Step, ...]
    origin: Origin
    event_time: str | None = None
    delay_us: int = 0

    def __str__(self) -> str:
        return f"the {self.kind} {self.stream!r}"


@dataclass(frozen=True, slots=True)
class DeclaredSource:
    """A source as `Pipeline.source` was called."""

    source: plan.Source
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """A named stream: its tree, the schema of its rows, its dial, and what decides its shards instead of a hash."""

    name: str
    node: Node
    schema: bytes
    checkpoint_every_us: int | None
    partition_by: PartitionFunction | None = None


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
        self.table: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, node: MapNode) -> int:
        """Return the number of a node's function; a node that is met twice keeps its number."""
        return self._number(node, node.function)

    def number_of_partitioning(self, by: PartitionFunction) -> int:
        """Return the number of a function that decides shards; two stages with the same one have the same number."""
        return self._number(by.function, by)

    def _number(self, identity: object, function: Any) -> int:
        if id(identity) not in self._numbers:
            self._numbers[id(identity)] = len(self.table)
            self.table.append(function)
        return self._numbers[id(identity)]


def compile_topology(
    settings: Settings,
    sources: Mapping[str, DeclaredSource],
    stages: Sequence[DeclaredStage],
    sinks: Sequence[plan.Sink],
    there: plan.Topology | None = None,
) -> tuple[plan.Topology, list[Any]]:
    """Return the whole pipeline as data, and the table of the user's functions it refers to by number.

    What is `there`, in the store, decides how rows are written that were written before: stages come and go.
    """
    compiler = _StageCompiler(sources, stages)
    made = [compiler.stage(declared) for declared in stages]
    before = {} if there is None else {source.name: source for source in there.sources}
    inputs = [_with_uses(declared.source, made, before.get(name)) for name, declared in sources.items()]
    topology = plan.Topology(
        name=settings.name,
        shards=settings.shards,
        bucket_width_us=settings.bucket_width_us,
        sources=inputs,
        stages=_with_sharding(made, inputs),
        sinks=list(sinks),
        session_time_zone=settings.session_time_zone,
    )
    return topology, compiler.functions.table


@dataclass(frozen=True, slots=True)
class _Made:
    """A stage, and the branches that became its inputs."""

    stage: plan.Stage
    branches: Sequence[Branch]


class _StageCompiler:
    def __init__(self, sources: Mapping[str, DeclaredSource], stages: Sequence[DeclaredStage]) -> None:
        self.functions = Functions()
        self._sources = sources
        self._schemas = {declared.name: declared.schema for declared in stages}

    def stage(self, declared: DeclaredStage) -> _Made:
        if has_transform(declared.node):
            return self._stage_of_jobs(declared)
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
            partition_by=self._partitioning(declared, aggregation),
        )
        if aggregation is not None:
            _check_state(stage, aggregation)
        return _Made(stage, branches)

    def _partitioning(self, declared: DeclaredStage, node: AggregationNode | None) -> plan.Partitioning | None:
        by = declared.partition_by
        if by is None:
            return None
        if node is None or not node.aggregation.keys:
            raise UnsupportedQuery(
                f"partition_by={by.name} decides where the keys of groupBy go, and the stage {declared.name!r} has "
                f"none; name it without partition_by (at {by.line})"
            )
        return plan.Partitioning(self.functions.number_of_partitioning(by), by.name)

    def _stage_of_jobs(self, declared: DeclaredStage) -> _Made:
        """Return a stage all of whose steps Spark does, in jobs: in the plan there are none."""
        (branch,) = self._branches(declared.node)
        made = nodes(declared.node, TransformNode)
        _check_order(made, declared)
        read = msgspec.structs.replace(self._input(replace(branch, steps=())), late="drop", on_error="stop")
        stage = plan.Stage(
            name=declared.name,
            inputs=[read],
            union_schema=read.schema,
            aggregation=None,
            steps=[],
            schema=declared.schema,
            checkpoint_every_us=None,
            transform=plan.Transform(", ".join(node.name for node in reversed(made)), list(made[0].order_by)),
        )
        return _Made(stage, [branch])

    def _steps(self, node: StepNode | MapNode) -> Sequence[plan.Step]:
        return (self._map(node, "stop"),) if isinstance(node, MapNode) else node.steps

    def _branches(self, node: Node) -> list[Branch]:
        if isinstance(node, SourceNode):
            columns = self._sources[node.name].columns
            return [Branch(node.name, "source", (), {column: column for column in columns})]
        if isinstance(node, StageNode):
            names = pa.ipc.read_schema(pa.py_buffer(self._schemas[node.name])).names
            return [Branch(node.name, "stream", (), {name: name for name in names})]
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
        if isinstance(node, TransformNode):
            return [replace(branch, origin=_through(branch.origin, node.kept)) for branch in below]
        return [_advanced(branch, (self._map(node, self._policies(branch)[1]),)) for branch in below]

    def _map(self, node: MapNode, on_error: Literal["stop", "reject"]) -> plan.MapInArrow:
        return plan.MapInArrow(self.functions.number(node), node.name, node.schema, on_error)

    def _policies(self, branch: Branch) -> tuple[Literal["drop", "side"], Literal["stop", "reject"]]:
        """Return what becomes of an input's late rows, and of those that cannot be taken."""
        if branch.kind == "stream":
            return "drop", "stop"
        source = self._sources[branch.stream].source
        return source.late, source.on_error

    def _input(self, branch: Branch) -> plan.StageInput:
        is_source = branch.kind == "source"
        late, on_error = self._policies(branch)
        return plan.StageInput(
            stream=branch.stream,
            schema=self._sources[branch.stream].source.schema if is_source else self._schemas[branch.stream],
            steps=list(branch.steps),
            late=late,
            on_error=on_error,
            event_time=branch.event_time,
            delay_us=branch.delay_us,
        )


def _split(node: Node) -> tuple[list[StepNode | MapNode], AggregationNode | None]:
    """Return what stands behind the aggregation, in order, and the aggregation; nothing where there is none."""
    behind: list[StepNode | MapNode] = []
    while not isinstance(node, AggregationNode):
        if isinstance(node, (SourceNode, StageNode, UnionNode, TransformNode)):
            return [], None
        if isinstance(node, (StepNode, MapNode)):
            behind.insert(0, node)
        node = node.parent
    return behind, node


def _advanced(branch: Branch, steps: Sequence[plan.Step]) -> Branch:
    return replace(branch, steps=(*branch.steps, *steps), origin=behind(branch.origin, steps))


def _through(origin: Origin, kept: Mapping[str, str]) -> Origin:
    return {name: origin[before] for name, before in kept.items() if before in origin}


def _watermarked(branch: Branch, node: WatermarkNode) -> Branch:
    column = branch.origin.get(node.column)
    if column is None:
        instead = "" if branch.kind == "source" else " before its .named('...')"
        raise UnsupportedQuery(
            f"the event time {node.column!r} of withWatermark is not a column of {branch} but computed from it; make "
            f"it a column of the {branch.kind} itself{instead}, and only rename it on the way (at {node.line})"
        )
    return replace(branch, event_time=column, delay_us=node.delay_us)


def _check_inputs(branches: Sequence[Branch], declared: DeclaredStage) -> None:
    names = [branch.stream for branch in branches]
    twice = [branch for branch in branches if names.count(branch.stream) > 1]
    if twice:
        raise UnsupportedQuery(
            f"{twice[0]} is in the stage {declared.name!r} twice, and a stage reads each input once; "
            f"make both parts in one pass, with F.when or mapInArrow (at {declared.node.line})"
        )


def _check_order(made: Sequence[TransformNode], declared: DeclaredStage) -> None:
    """Refuse an order that what stands behind it would lose; the last transform comes first in `made`."""
    for node in made[1:]:
        if node.order_by:
            raise UnsupportedQuery(
                "transform(order_by=...): another transform stands behind it, so the order would be lost; give the "
                f"result a name, with .named('...'), or give order_by to the last one (at {node.line})"
            )
    names = pa.ipc.read_schema(pa.py_buffer(declared.schema)).names
    for column in made[0].order_by:
        if column not in names:
            raise UnsupportedQuery(
                f"transform(order_by=...): the column {column!r} is dropped or renamed before .named(...), and rows "
                f"of {declared.name!r} cannot be ordered by what they do not have; do that in a stage behind "
                f"(at {made[0].line})"
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
                f"F.window({name!r}, ...) needs to know when a window is over, and {branch} has no "
                f"watermark; call .withWatermark({name!r}, '2 seconds') before groupBy (at {node.line})"
            )
        if branch.origin.get(name) != branch.event_time:
            raise UnsupportedQuery(
                f"F.window({name!r}, ...) has to be on the column of the watermark, which is {branch.event_time!r} of "
                f"{branch}, unchanged and not through mapInArrow (at {node.line})"
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


def _key_columns(made: _Made, branch: Branch) -> tuple[str, ...] | None:
    """Return the input's columns that are the grouping keys, in their order; None where one is computed."""
    assert made.stage.aggregation is not None, "only an aggregation has keys"
    found: list[str] = []
    for key in made.stage.aggregation.keys:
        column = branch.origin.get(key.expression.name) if isinstance(key.expression, plan.Column) else None
        if column is None:
            return None
        found.append(column)
    return tuple(found)


def _readers(stream: str, made: Sequence[_Made]) -> list[tuple[_Made, Branch]]:
    return [(each, branch) for each in made for branch in each.branches if branch.stream == stream]


def _with_uses(source: plan.Source, made: Sequence[_Made], before: plan.Source | None) -> plan.Source:
    """Return a source with what its stages ask of it: how to shard it, and which column is its event time."""
    # What another pipeline has written lies as it lies.
    asked = () if source.is_foreign else _asked_sharding(source.name, made) or ()
    shard_by = list(asked) if before is None else before.shard_by
    event_time = _event_time(source.name, made, "log the rows as two sources")
    return msgspec.structs.replace(source, shard_by=shard_by, event_time=event_time)


def _asked_sharding(stream: str, made: Sequence[_Made]) -> tuple[str, ...] | None:
    """Return the columns that a stream should be sharded by; None where that is all the same.

    Of several stages with different keys the first decides; the others pick their rows out when they read. A stage
    without state leaves rows in their shards, so what is asked of its output is asked of its input.
    """
    for each, branch in _readers(stream, made):
        if each.stage.partition_by is not None:
            continue
        if each.stage.aggregation is not None:
            columns = _key_columns(each, branch)
        else:
            asked = _asked_sharding(each.stage.name, made)
            traced = [branch.origin.get(column) for column in asked or ()]
            columns = None if asked is None else tuple(column for column in traced if column is not None)
            columns = columns if columns is not None and len(columns) == len(traced) else None
        if columns is not None:
            return columns
    return None


def _event_time(stream: str, made: Sequence[_Made], instead: str) -> str | None:
    """Return the column of a stream that its readers have a watermark on."""
    asked = list(dict.fromkeys(branch.event_time for _, branch in _readers(stream, made) if branch.event_time))
    if len(asked) > 1:
        raise UnsupportedQuery(
            f"the {_readers(stream, made)[0][1].kind} {stream!r} has the event times {asked[0]!r} and {asked[1]!r} in "
            f"two stages; one is possible, so {instead}"
        )
    return asked[0] if asked else None


def _window_edge(stage: plan.Stage, column: str | None) -> Literal["start", "end"] | None:
    """Return which edge of the stage's own windows a column of its output is, unchanged; None if it is none."""
    spec = stage.aggregation
    if column is None or spec is None or not isinstance(spec.window, plan.TimeWindow):
        return None
    edge: Literal["start", "end"] | None = None
    for step in reversed([plan.Project(spec.outputs), *stage.steps]):
        if isinstance(step, plan.MapInArrow):
            return None
        if not isinstance(step, plan.Project):
            continue
        found = next(each.expression for each in step.columns if each.name == column)
        if isinstance(found, plan.Call) and found.function == "field" and edge is None:
            found, ordinal = found.arguments
            assert isinstance(ordinal, plan.Constant), "the analysis gives a field's place"
            edge = "start" if ordinal.value == 0 else "end"
        if not isinstance(found, plan.Column):
            return None
        column = found.name
    return edge if column == spec.window_column else None


def _with_sharding(made: Sequence[_Made], sources: Sequence[plan.Source]) -> list[plan.Stage]:
    """Return the stages, each of which knows whether a shard of it reads nothing but the same shard of its inputs."""
    shardings: dict[str, Sharding | None] = {
        source.name: None if source.is_foreign else Sharding(tuple(frozenset({column}) for column in source.shard_by))
        for source in sources
    }
    stages = []
    for each in made:
        # Without an aggregation rows may be anywhere.
        sharded = each.stage.aggregation is None or all(
            _is_aligned(each.stage, _key_columns(each, branch), shardings[branch.stream]) for branch in each.branches
        )
        event_time = _event_time(each.stage.name, made, "name the rows twice, as two streams")
        edge = _window_edge(each.stage, event_time)
        stage = msgspec.structs.replace(each.stage, sharded=sharded, event_time=event_time, event_time_edge=edge)
        stages.append(stage if sharded else _with_keys(stage, each))
        shardings[each.stage.name] = _output_sharding(each, shardings)
    return [msgspec.structs.replace(stage, shard_by=_picked_by(stage.name, stages)) for stage in stages]


def _with_keys(stage: plan.Stage, made: _Made) -> plan.Stage:
    """Return a stage whose units pick their rows, with what of each input they pick by where that is its hash."""
    if stage.partition_by is not None:
        return stage
    keys = [list(_key_columns(made, branch) or ()) for branch in made.branches]
    inputs = [msgspec.structs.replace(read, keyed_by=columns) for read, columns in zip(stage.inputs, keys, strict=True)]
    return msgspec.structs.replace(stage, inputs=inputs)


def _picked_by(stream: str, stages: Sequence[plan.Stage]) -> list[str]:
    """Return the columns by which all stages that pick their rows from a stream do so; nothing where they differ."""
    picking = [read.keyed_by for stage in stages if not stage.sharded for read in stage.inputs if read.stream == stream]
    return picking[0] if picking and all(columns == picking[0] for columns in picking) else []


def _is_aligned(stage: plan.Stage, columns: Sequence[str] | None, sharding: Sharding | None) -> bool:
    if columns is None or sharding is None or len(columns) != len(sharding.columns):
        return False
    function = None if stage.partition_by is None else stage.partition_by.function
    same = all(column in there for column, there in zip(columns, sharding.columns, strict=True))
    # Without keys all rows are in the first shard, whatever the function.
    return same and (function == sharding.function or not columns)


def _output_sharding(made: _Made, shardings: Mapping[str, Sharding | None]) -> Sharding | None:
    """Return how a stage's output is sharded: by its keys, or as all its inputs are."""
    aggregation = made.stage.aggregation
    if aggregation is not None:
        steps = [plan.Project(aggregation.outputs), *made.stage.steps]
        origin = behind({key.name: key.name for key in aggregation.keys}, steps)
        by = made.stage.partition_by
        columns = tuple(_columns_of(origin, {key.name}) for key in aggregation.keys)
        return Sharding(columns, None if by is None else by.function)
    found: Sharding | None = None
    for number, branch in enumerate(made.branches):
        sharding = shardings[branch.stream]
        if sharding is None:
            return None
        own = tuple(_columns_of(branch.origin, columns) for columns in sharding.columns)
        if number == 0 or found is None:
            found = Sharding(own, sharding.function)
            continue
        if len(own) != len(found.columns) or sharding.function != found.function:
            return None
        found = Sharding(tuple(a & b for a, b in zip(found.columns, own, strict=True)), found.function)
    return found


def _columns_of(origin: Origin, columns: Collection[str]) -> frozenset[str]:
    return frozenset(column for column, before in origin.items() if before in columns)
