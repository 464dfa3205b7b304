"""Lanes as a person reads them."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.explain.lanes import Node, lanes_of

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def drawn(*nodes: Node) -> list[str]:
    return [f"{row.first} {row.node or ''}".rstrip() for row in lanes_of(nodes)]


def test_a_union_and_a_sink() -> None:
    assert drawn(Node("a", "○"), Node("b", "○"), Node("c", "●", ("a", "b")), Node("sink", "", ("c",), is_end=True)) == [
        "○   a",
        "│ ○ b",
        "├─╯",
        "●   c",
        "╰─▷ sink",
    ]


def test_streams_that_several_read() -> None:
    assert drawn(
        Node("a", "○"),
        Node("b", "●", ("a",)),
        Node("b's sink", "", ("b",), is_end=True),
        Node("c", "●", ("a", "b")),
        Node("d", "●", ("b", "c")),
    ) == [
        "○     a",
        "├─╮",
        "│ ●   b",
        "│ ├─▷ b's sink",
        "├─┤",
        "● │   c",
        "├─╯",
        "●     d",
    ]


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 12))):
        before = [node.name for node in nodes if not node.is_end]
        inputs = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        is_end = len(inputs) == 1 and draw(st.booleans())
        nodes.append(Node(f"n{number}", "" if is_end else "●", tuple(inputs), is_end))
    return nodes


UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
ARMS = {
    **{" ": 0, "│": UP | DOWN, "─": LEFT | RIGHT, "├": UP | DOWN | RIGHT, "┤": UP | DOWN | LEFT, "┼": 15},
    **{"╯": UP | LEFT, "╰": UP | RIGHT, "╮": DOWN | LEFT, "╭": DOWN | RIGHT, "▷": LEFT},
    **{"┴": UP | LEFT | RIGHT, "┬": DOWN | LEFT | RIGHT},
}


@MANY
@given(graphs())
def test_every_line_ends_where_another_begins(nodes: list[Node]) -> None:
    rows = lanes_of(nodes)
    assert [row.node for row in rows if row.node] == [node.name for node in nodes]
    assert len({len(row.first) for row in rows}) == 1
    above: list[int] = []
    for row in rows:
        arms = [ARMS.get(character, -1) for character in row.first]
        for place, arm in enumerate(arms):
            was = above[place] if place < len(above) else 0
            if arm >= 0:
                assert bool(arm & UP) == bool(was & DOWN) or was == -1, "a lane is cut or comes from nowhere"
            if place and arm >= 0 and arms[place - 1] >= 0:
                crossed = UP | DOWN in (arm, arms[place - 1])
                assert crossed or bool(arm & LEFT) == bool(arms[place - 1] & RIGHT), "a joint is open at its side"
        if row.node is None:
            above = arms
            continue
        below = [ARMS[character] for character in row.further]
        for place, arm in enumerate(below):
            own = arms[place]
            assert own == -1 or bool(arm & UP) == bool(own & DOWN) or not arm, "a lane goes on that was not there"
        above = below


@MANY
@given(graphs())
def test_as_many_lanes_come_into_a_node_as_it_reads_streams(nodes: list[Node]) -> None:
    left = Counter(name for node in nodes for name in node.inputs)
    rows = {row.node: row for row in lanes_of(nodes) if row.node}
    open_lanes: set[str] = set()
    for node in nodes:
        left.subtract(node.inputs)
        open_lanes = {name for name in (*open_lanes, node.name) if left[name] > 0}
        assert rows[node.name].further.count("│") == len(open_lanes)
