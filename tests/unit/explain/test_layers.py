"""Boxes keep clear of each other, and lines of boxes, whatever the graph is."""

from __future__ import annotations

from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.explain.layers import Box, Layout, Link, Placed, Route, layout

MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Link]]:
    """Some sources, stages that read what stands before them, and ends."""
    count = draw(st.integers(1, 14))
    boxes, links = [], []
    for number in range(count):
        size = draw(st.tuples(st.integers(40, 300), st.integers(30, 200)))
        before = [box.name for box in boxes if not box.is_end]
        is_end = bool(before) and draw(st.booleans())
        inputs = draw(st.lists(st.sampled_from(before), max_size=1 if is_end else 3, unique=True)) if before else []
        boxes.append(Box(f"n{number}", float(size[0]), float(size[1]), is_end and bool(inputs)))
        links += [Link(name, f"n{number}") for name in inputs]
    return boxes, links


def points_of(route: Route) -> list[tuple[float, float]]:
    """Return points along a line as it is drawn: level, then a bend with level ends, and so on."""
    (x, y), *further = route.points
    points = [(x, y)]
    for (left, top), (right, bottom) in zip(further[::2], further[1::2], strict=True):
        points += [(points[-1][0] + (left - points[-1][0]) * step / 8, top) for step in range(9)]
        half = (left + right) / 2
        for step in range(17):
            t = step / 16
            a, b, c, d = (1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3
            points.append((a * left + b * half + c * half + d * right, (a + b) * top + (c + d) * bottom))
    return points


def inside(placed: Placed, x: float, y: float) -> bool:
    slack = 1e-6
    return (
        placed.x + slack < x < placed.x + placed.box.width - slack
        and placed.y + slack < y < placed.y + placed.box.height - slack
    )


def overlap(one: Placed, other: Placed) -> bool:
    return (
        one.x < other.x + other.box.width
        and other.x < one.x + one.box.width
        and one.y < other.y + other.box.height
        and other.y < one.y + one.box.height
    )


@MANY
@given(graphs())
def test_nothing_stands_or_runs_over_a_box(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    drawn = layout(boxes, links)
    assert drawn == layout(boxes, links), "the same graph is always drawn the same"
    assert not any(overlap(one, other) for one, other in combinations(drawn.boxes, 2))
    for route in drawn.routes:
        for x, y in points_of(route):
            assert not any(inside(placed, x, y) for placed in drawn.boxes), f"{route.link} crosses a box at {x}, {y}"
    assert all(
        0 <= each.x <= drawn.width - each.box.width and -1e-6 <= each.y <= drawn.height - each.box.height + 1e-6
        for each in drawn.boxes
    )


@MANY
@given(graphs())
def test_lines_lead_from_left_to_right_from_box_to_box(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    drawn = layout(boxes, links)
    placed = {each.box.name: each for each in drawn.boxes}
    assert [route.link for route in drawn.routes] == links
    for route in drawn.routes:
        start, end = placed[route.link.start], placed[route.link.end]
        xs = [x for x, _ in route.points]
        assert xs == sorted(xs) and xs[0] == start.x + start.box.width and xs[-1] == end.x
        assert start.y <= route.points[0][1] <= start.y + start.box.height
        assert end.y <= route.points[-1][1] <= end.y + end.box.height
    first = {each.x for each in drawn.boxes if not any(link.end == each.box.name for link in links)}
    assert first == {0.0} or not drawn.boxes
    ends = {each.x for each in drawn.boxes if each.box.is_end}
    assert len(ends) <= 1 and all(each.x < max(ends, default=1e9) for each in drawn.boxes if not each.box.is_end)


def test_a_graph_that_need_not_cross_does_not() -> None:
    boxes = [Box(name, 100, 50) for name in "abcd"]
    drawn = layout(boxes, [Link("a", "d"), Link("b", "c")])
    at = {each.box.name: each.y for each in drawn.boxes}
    assert (at["a"] < at["b"]) == (at["d"] < at["c"])


def test_nothing_is_an_empty_drawing() -> None:
    assert layout([], []) == Layout((), (), 0.0, 0.0)
