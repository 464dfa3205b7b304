"""Which line of the user's program a step was written on, so that an error at run time can name it.

Lines are no part of the plan: a program that moves by a line is still the same pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast import plan
from holdfast.operators.steps import step_key
from holdfast.pipeline.compile import DeclaredStage
from holdfast.pipeline.lineage import AggregationNode, MapNode, StepNode, UnionNode, nodes


def lines_of(topology: plan.Topology, declared: Iterable[DeclaredStage]) -> dict[str, str]:
    """Return the line of each step, by `step_key`, and that of each stage's aggregation, by the stage's name.

    Of steps that are the same to the letter the first one's line stands for all.
    """
    lines: dict[str, str] = {}
    functions: dict[tuple[str, bytes], str] = {}
    for stage in declared:
        for node in nodes(stage.node, StepNode):
            for step in node.steps:
                lines.setdefault(step_key(step), node.line)
        for union in nodes(stage.node, UnionNode):
            for steps in union.steps:
                for step in steps:
                    lines.setdefault(step_key(step), union.line)
        for mapped in nodes(stage.node, MapNode):
            functions.setdefault((mapped.name, mapped.schema), mapped.line)
        for aggregation in nodes(stage.node, AggregationNode):
            lines.setdefault(stage.name, aggregation.line)
    for step in _steps(topology):
        if isinstance(step, plan.MapInArrow) and (step.name, step.schema) in functions:
            lines[step_key(step)] = functions[step.name, step.schema]
    return lines


def _steps(topology: plan.Topology) -> Iterable[plan.Step]:
    for stage in topology.stages:
        for read in stage.inputs:
            yield from read.steps
        yield from stage.steps
