"""What was called on a stream, step by step: a tree with sources and named streams as its leaves.

Invariants:
    * The plan ends at a named stream: what stands behind it is a stage of its own. `replay` goes on to the sources.
    * A node never changes. Each knows what the plan does (`steps`), and how the very same is called on an ordinary
      DataFrame (`replay`), which is what `toSpark()` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RowFunction = Callable[..., Any]
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """The rows of a source, as they were logged."""

    name: str
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class StageNode:
    """The rows of a named stream; `made_by` is the tree of the stage that makes them."""

    name: str
    made_by: Node
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class StepNode:
    """Row-wise steps; `replay` is the DataFrame method that was called."""

    parent: Node
    steps: tuple[plan.Step, ...]
    replay: Callable[[DataFrame], DataFrame]
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class MapNode:
    """A user's function over batches."""

    parent: Node
    function: RowFunction
    name: str
    schema: bytes
    replay: Callable[[DataFrame], DataFrame]
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class UnionNode:
    """Two streams as one; `steps` is what happens to the rows of each before."""

    parents: tuple[Node, Node]
    steps: tuple[tuple[plan.Step, ...], tuple[plan.Step, ...]]
    replay: Callable[[DataFrame, DataFrame], DataFrame]
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class WatermarkNode:
    """Event time: a column, and how late its rows may be."""

    parent: Node
    column: str
    delay_us: int
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class AggregationNode:
    """`groupBy(...).agg(...)` over rows of `input_schema`."""

    parent: Node
    aggregation: plan.Aggregation
    input_schema: bytes
    replay: Callable[[DataFrame], DataFrame]
    line: str


@dataclass(frozen=True, slots=True, eq=False)
class TransformNode:
    """A user's function from DataFrame to DataFrame; `kept` has the columns that it leaves as they are: new to old."""

    parent: Node
    name: str
    order_by: tuple[str, ...]
    kept: dict[str, str]
    replay: Callable[[DataFrame], DataFrame]
    line: str


Node = SourceNode | StageNode | StepNode | MapNode | UnionNode | WatermarkNode | AggregationNode | TransformNode


def replay(node: Node, read: Callable[[str], DataFrame]) -> DataFrame:
    """Call everything again, on the DataFrames that `read` gives for the sources."""
    if isinstance(node, SourceNode):
        return read(node.name)
    if isinstance(node, StageNode):
        return replay(node.made_by, read)
    if isinstance(node, UnionNode):
        left, right = (replay(parent, read) for parent in node.parents)
        return node.replay(left, right)
    below = replay(node.parent, read)
    # A watermark only says when a window is final; over a whole log every window is.
    return below if isinstance(node, WatermarkNode) else node.replay(below)


def over(node: Node, rows: DataFrame) -> DataFrame:
    """Call everything between a stage's one input and its result again, on the rows of that input."""
    if isinstance(node, (SourceNode, StageNode)):
        return rows
    assert not isinstance(node, (UnionNode, AggregationNode)), "a stage of jobs has one input and no state"
    below = over(node.parent, rows)
    return below if isinstance(node, WatermarkNode) else node.replay(below)


def has_transform(node: Node) -> bool:
    """Return whether a function from DataFrame to DataFrame is in the tree."""
    return bool(nodes(node, TransformNode))


def has_count_window(node: Node) -> bool:
    """Return whether a window that Spark does not have is in the tree, or in a stage before it."""
    return any(isinstance(each.aggregation.window, plan.CountWindow) for each in nodes(node, AggregationNode)) or any(
        has_count_window(each.made_by) for each in nodes(node, StageNode)
    )


def has_aggregation(node: Node) -> bool:
    """Return whether a stateful step is in the tree."""
    return bool(nodes(node, AggregationNode))


def has_watermark(node: Node) -> bool:
    """Return whether an event time was declared in the tree."""
    return bool(nodes(node, WatermarkNode))


def nodes(node: Node, kind: type[_Kind]) -> list[_Kind]:
    """Return the nodes of one kind in the tree, but not in the stages that it reads."""
    own: list[_Kind] = [node] if isinstance(node, kind) else []
    if isinstance(node, (SourceNode, StageNode)):
        return own
    parents = node.parents if isinstance(node, UnionNode) else (node.parent,)
    return own + [found for parent in parents for found in nodes(parent, kind)]
