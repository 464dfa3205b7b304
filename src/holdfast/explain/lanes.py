"""Draw a graph as rows of text: a vertical lane for each stream that somebody below still reads.

Invariants:
    * `lanes_of` is a pure function of its nodes; a node stands behind those that it reads.
    * Every input of a node is joined with it by a line, and a line that is not joined with a node passes it by: where a
      lane is crossed, the lane is drawn whole.
    * A lane is `LANE_WIDTH` characters, and no row is wider than the widest moment of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LANE_WIDTH: Final = 2

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = {
    0: " ",
    _UP: "│",
    _DOWN: "│",
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
    _UP | _LEFT: "╯",
    _UP | _RIGHT: "╰",
    _DOWN | _LEFT: "╮",
    _DOWN | _RIGHT: "╭",
    _UP | _LEFT | _RIGHT: "┴",
    _DOWN | _LEFT | _RIGHT: "┬",
}
ARROW: Final = "▷"


@dataclass(frozen=True, slots=True)
class Node:
    """A thing with a row of its own: its mark, and the nodes that it reads. An end is drawn as an arrow."""

    name: str
    mark: str
    inputs: tuple[str, ...] = ()
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What stands left of a node's first line and of its further ones; a row without a node joins lanes."""

    node: str | None
    first: str
    further: str


def lanes_of(nodes: Sequence[Node]) -> list[Row]:
    """Return the rows of a graph, from the sources down."""
    drawing = _Drawing(Counter(name for node in nodes for name in node.inputs))
    rows = [row for node in nodes for row in drawing.rows_of(node)]
    width = max((len(row.first) for row in rows), default=0)
    return [Row(row.node, row.first.ljust(width), row.further.ljust(width)) for row in rows]


class _Drawing:
    def __init__(self, readers: Mapping[str, int]) -> None:
        self._left = dict(readers)
        """How many nodes below still read a stream."""
        self._lanes: list[str | None] = []

    def rows_of(self, node: Node) -> list[Row]:
        if node.is_end and len(node.inputs) == 1:
            return [self._end(node)]
        before = list(self._lanes)
        sources = [before.index(name) for name in node.inputs]
        for name in node.inputs:
            self._left[name] -= 1
        ending = [lane for lane in sources if not self._left[before[lane] or ""]]
        for lane in ending:
            self._lanes[lane] = None
        lane = min(ending) if ending else self._free()
        rows = []
        if sources and sources != [lane]:
            rows.append(Row(None, _joined(before, self._lanes, sources, lane), ""))
        marked = _verticals(self._lanes)
        marked += " " * (lane * LANE_WIDTH + 1 - len(marked))
        first = marked[: lane * LANE_WIDTH] + node.mark + marked[lane * LANE_WIDTH + 1 :]
        self._lanes[lane] = node.name if self._left.get(node.name) else None
        rows.append(Row(node.name, first.rstrip(), _verticals(self._lanes)))
        return rows

    def _end(self, node: Node) -> Row:
        """Return the row of what only takes rows: an arrow out of its stream's lane, to the right of all lanes."""
        lane = self._lanes.index(node.inputs[0])
        self._left[node.inputs[0]] -= 1
        before = list(self._lanes)
        if not self._left[node.inputs[0]]:
            self._lanes[lane] = None
        last = max(place for place, name in enumerate(before) if name is not None)
        cells = [
            " "
            if place < lane and name is None
            else "│"
            if place != lane and name is not None
            else "─"
            if place > lane
            else _LINES[_UP | _RIGHT | (_DOWN if self._lanes[lane] else 0)]
            for place, name in enumerate(before[: last + 1])
        ]
        text = "".join(cell + ("─" if place >= lane else " ") for place, cell in enumerate(cells))
        return Row(node.name, text + ARROW, _verticals(self._lanes))

    def _free(self) -> int:
        if None in self._lanes:
            return self._lanes.index(None)
        self._lanes.append(None)
        return len(self._lanes) - 1


def _verticals(lanes: Sequence[str | None]) -> str:
    return (" " * (LANE_WIDTH - 1)).join(" " if name is None else "│" for name in lanes).rstrip()


def _joined(before: Sequence[str | None], after: Sequence[str | None], sources: Sequence[int], target: int) -> str:
    """Return the row in which the lanes of a node's inputs come together above it."""
    first, last = min(*sources, target), max(*sources, target)
    text = ""
    for lane in range(max(len(before), len(after), last + 1)):
        was = lane < len(before) and before[lane] is not None
        goes_on = lane < len(after) and after[lane] is not None
        inside = first <= lane <= last
        sides = (_LEFT if first < lane <= last else 0) | (_RIGHT if first <= lane < last else 0)
        if not inside or not (lane == target or lane in sources):
            text += _LINES[_UP | _DOWN if was else sides]
        else:
            text += _LINES[sides | (_UP if was else 0) | (_DOWN if goes_on or lane == target else 0)]
        text += "─" if first <= lane < last else " "
    return text.rstrip()
