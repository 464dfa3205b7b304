"""Draw a table of transitions as SVG: states from the top down, every transition a line that is named by its step.

The tables are those that the code runs by, so a diagram cannot say anything else than the code does. `make docs` draws
them into `docs/diagrams`; a test compares what is committed there with the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from html import escape
from typing import Final

BOX_WIDTH: Final = 120
BOX_HEIGHT: Final = 34
ROW_HEIGHT: Final = 96
LANE_WIDTH: Final = 112
LEFT: Final = 120
TOP: Final = 16
CHARACTER_WIDTH: Final = 6.4
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#222}.s{font-weight:600;text-anchor:middle}"
    "rect{fill:#eef4fb;stroke:#356}path{fill:none;stroke:#356}.l{paint-order:stroke;stroke:#fff;stroke-width:4px}"
)
MARKER: Final = (
    '<marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<polygon points="0,0 8,4 0,8" fill="#356"/></marker>'
)

Edges = dict[tuple[int, int], list[str]]


def draw(transitions: Mapping[tuple[Enum, Enum], Enum]) -> str:
    """Return the table as an SVG image."""
    states = list(type(next(iter(transitions.values()))))
    edges = edges_of(states, transitions)
    far = sorted((edge for edge in edges if edge[1] - edge[0] not in (0, 1)), key=lambda edge: abs(edge[0] - edge[1]))
    parts = [_box(index, state.value) for index, state in enumerate(states)]
    parts += [_down(edge[0], names) for edge, names in edges.items() if edge[1] - edge[0] == 1]
    parts += [_loop(edge[0], names) for edge, names in edges.items() if edge[1] == edge[0]]
    parts += [_lane(edge, edges[edge], lane) for lane, edge in enumerate(far)]
    width = LEFT + BOX_WIDTH + LANE_WIDTH * (len(far) + 1)
    height = TOP * 2 + ROW_HEIGHT * (len(states) - 1) + BOX_HEIGHT
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style><defs>{MARKER}</defs>\n'
        f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>\n{body}\n</svg>\n'
    )


def edges_of(states: list[Enum], transitions: Mapping[tuple[Enum, Enum], Enum]) -> Edges:
    """Return the names of the steps between each two states, by their places in the table's own order."""
    found: Edges = {}
    for (before, step), after in transitions.items():
        found.setdefault((states.index(before), states.index(after)), []).append(str(step.value))
    return found


def _box(index: int, name: str) -> str:
    top = TOP + index * ROW_HEIGHT
    text = f'<text class="s" x="{LEFT + BOX_WIDTH // 2}" y="{top + 22}">{escape(name)}</text>'
    return f'<rect x="{LEFT}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>{text}'


def _down(index: int, names: list[str]) -> str:
    """Return a step to the next state, as a line between the boxes."""
    x, top = LEFT + BOX_WIDTH // 3, TOP + index * ROW_HEIGHT + BOX_HEIGHT
    return _line(f"M{x} {top}V{top + ROW_HEIGHT - BOX_HEIGHT}") + _text(x + 8, top + 34, names)


def _loop(index: int, names: list[str]) -> str:
    """Return a step that leaves the state as it is, on the left."""
    y = TOP + index * ROW_HEIGHT
    right = 34
    return _line(f"M{LEFT} {y + 8}H{LEFT - right}V{y + 26}H{LEFT}") + _text(4, y + 21, names)


def _lane(edge: tuple[int, int], names: list[str], lane: int) -> str:
    """Return a step over several states or back, in a lane of its own on the right."""
    right = LEFT + BOX_WIDTH
    x = right + LANE_WIDTH * lane + LANE_WIDTH // 2 + 24
    start, end = (TOP + place * ROW_HEIGHT + BOX_HEIGHT // 2 for place in edge)
    start, end = (start - 8, end + 8) if end < start else (start + 8, end - 8)
    # Names of neighbouring lanes stand at different heights, so that they never cover each other.
    middle = min(start, end) + abs(start - end) // 2 + (lane % 3 - 1) * 18
    return _line(f"M{right} {start}H{x}V{end}H{right}") + _text(x + 6, middle, names)


def _line(path: str) -> str:
    return f'<path d="{path}" marker-end="url(#a)"/>'


def _text(x: int, y: int, names: list[str]) -> str:
    rows = [f'<text class="l" x="{x}" y="{y + 14 * place}">{escape(name)}</text>' for place, name in enumerate(names)]
    return "".join(rows)
