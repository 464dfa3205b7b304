"""Which column of a stream a column of the rows at hand is: followed through steps that leave it as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast import plan

Origin = Mapping[str, str]
"""From a column of the rows at hand to the column that it is of the rows before, where it is one."""


def behind(origin: Origin, steps: Sequence[plan.Step]) -> Origin:
    """Return the origins of the columns that the steps leave."""
    for step in steps:
        if isinstance(step, plan.Project):
            origin = {
                column.name: origin[column.expression.name]
                for column in step.columns
                if isinstance(column.expression, plan.Column) and column.expression.name in origin
            }
        elif isinstance(step, plan.MapInArrow):
            origin = {}
    return origin
