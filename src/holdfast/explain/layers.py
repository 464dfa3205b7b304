"""Where the boxes of a graph stand and how the lines between them run: columns from left to right.

Invariants:
    * `layout` is a pure function of boxes and links; a box stands behind those that it reads.
    * A box is right of everything that it reads; what reads nothing is in the first column, an end in the last.
    * Boxes do not overlap. A line bends only between two columns. Where it passes a column it runs level, through a gap
      that is its own there: so no line crosses a box.

The way is the usual one for layered drawings. Columns follow from the longest path; where a line passes a column, a
slot without a box holds its place. The slots of a column are ordered by the middle of their neighbours, to and fro, and
the order with the fewest crossings is kept. Heights come by least squares: as near to the neighbours as order and gaps
allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

ROW_GAP: Final = 26.0
LINE_ROOM: Final = 12.0
"""The height that a line takes where it passes a column."""
COLUMN_GAP_MIN: Final = 64.0
COLUMN_GAP_PER_LINE: Final = 5.0
PORT_GAP: Final = 14.0
_ORDER_ROUNDS: Final = 12
_HEIGHT_ROUNDS: Final = 12
_LINE_WEIGHT: Final = 6.0
"""How much more a line wants to run straight than a box wants to stand in the middle of its neighbours."""


@dataclass(frozen=True, slots=True)
class Box:
    """What is to be placed. An end stands in the last column."""

    name: str
    width: float
    height: float
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A line from one box to another."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and its upper left corner."""

    box: Box
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Route:
    """A line: where it begins, then pairs of points between which it bends; between the pairs it runs level."""

    link: Link
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing's boxes and lines, and its size."""

    boxes: tuple[Placed, ...]
    routes: tuple[Route, ...]
    width: float
    height: float


@dataclass(slots=True, eq=False)
class _Slot:
    """A place in a column: a box, or the gap of one stream's lines on their way further right."""

    name: str
    column: int
    height: float
    weight: float
    box: Box | None = None
    before: list[_Slot] = field(default_factory=list)
    after: list[_Slot] = field(default_factory=list)
    y: float = 0.0

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def layout(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Return where everything is."""
    if not boxes:
        return Layout((), (), 0.0, 0.0)
    columns, slots, passed = _slots(boxes, links)
    _order(columns)
    _raise(columns)
    return _drawn(boxes, links, columns, slots, passed)


def _columns_of(boxes: Sequence[Box], links: Sequence[Link]) -> dict[str, int]:
    found: dict[str, int] = {}
    for box in boxes:
        found[box.name] = max((found[link.start] + 1 for link in links if link.end == box.name), default=0)
    # No box that goes on stands in the column of the ends.
    last = max(found[box.name] + (0 if box.is_end else any(each.is_end for each in boxes)) for box in boxes)
    return {box.name: last if box.is_end else found[box.name] for box in boxes}


_Passed = dict[tuple[str, int], _Slot]
"""The gap of a stream's lines in a column that they pass: lines of one stream share it."""


def _slots(boxes: Sequence[Box], links: Sequence[Link]) -> tuple[list[list[_Slot]], dict[str, _Slot], _Passed]:
    place = _columns_of(boxes, links)
    columns: list[list[_Slot]] = [[] for _ in range(max(place.values()) + 1)]
    slots: dict[str, _Slot] = {}
    passed: _Passed = {}
    for box in boxes:
        slot = _Slot(box.name, place[box.name], box.height, 1.0, box)
        slots[box.name] = slot
        columns[slot.column].append(slot)
    for link in links:
        last = slots[link.start]
        for column in range(place[link.start] + 1, place[link.end]):
            if (link.start, column) not in passed:
                gap = passed[link.start, column] = _Slot(link.start, column, LINE_ROOM, _LINE_WEIGHT)
                columns[column].append(gap)
                _connect(last, gap)
            last = passed[link.start, column]
        _connect(last, slots[link.end])
    return columns, slots, passed


def _connect(left: _Slot, right: _Slot) -> None:
    left.after.append(right)
    right.before.append(left)


# The order in each column.


def _order(columns: list[list[_Slot]]) -> None:
    """Order the slots of each column, and keep the best order that was met."""
    best, fewest = [list(column) for column in columns], _crossings(columns)
    for number in range(_ORDER_ROUNDS):
        rightwards = number % 2 == 0
        for column in columns[1:] if rightwards else columns[-2::-1]:
            _order_column(column, columns, rightwards)
        crossings = _crossings(columns)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    columns[:] = best


def _order_column(column: list[_Slot], columns: Sequence[Sequence[_Slot]], rightwards: bool) -> None:
    own = {id(slot): float(place) for place, slot in enumerate(column)}
    index = column[0].column + (-1 if rightwards else 1)
    there = {id(slot): place for place, slot in enumerate(columns[index])}
    wanted = {}
    for slot in column:
        places = sorted(there[id(each)] for each in (slot.before if rightwards else slot.after))
        wanted[id(slot)] = _middle(places) if places else own[id(slot)]
    # Sorting is stable: what wants the same keeps its order.
    column.sort(key=lambda slot: wanted[id(slot)])


def _middle(places: Sequence[float]) -> float:
    half = len(places) // 2
    return float(places[half]) if len(places) % 2 else (places[half - 1] + places[half]) / 2


def _crossings(columns: Sequence[Sequence[_Slot]]) -> int:
    found = 0
    for left, right in pairwise(columns):
        there = {id(slot): place for place, slot in enumerate(right)}
        ends = [[there[id(each)] for each in slot.after] for slot in left]
        for upper in range(len(ends)):
            for lower in range(upper + 1, len(ends)):
                found += sum(a > b for a in ends[upper] for b in ends[lower])
    return found


# The heights.


def _raise(columns: Sequence[Sequence[_Slot]]) -> None:
    """Give each slot its height: packed first, then again and again as near to its neighbours as can be."""
    for column in columns:
        top = 0.0
        for slot in column:
            slot.y, top = top, top + slot.height + ROW_GAP
    for number in range(_HEIGHT_ROUNDS):
        for column in columns if number % 2 == 0 else reversed(columns):
            _settle(column)
    top = min(slot.y for column in columns for slot in column)
    for column in columns:
        for slot in column:
            slot.y -= top


def _settle(column: Sequence[_Slot]) -> None:
    """Move a column's slots to the heights that are nearest to what they want, without a change of the order.

    With the heights above each slot taken off, this is the regression that keeps an order: neighbours that want to pass
    each other are pooled, and stand at the mean of what they want.
    """
    pools: list[tuple[float, float, int]] = []
    above = 0.0
    for slot in column:
        near = [each.middle for each in (*slot.before, *slot.after)]
        wanted = _middle(sorted(near)) - slot.height / 2 if near else slot.y
        pools.append(((wanted - above) * slot.weight, slot.weight, 1))
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] >= pools[-1][0] / pools[-1][1]:
            last = pools.pop()
            pools[-1] = (pools[-1][0] + last[0], pools[-1][1] + last[1], pools[-1][2] + last[2])
        above += slot.height + ROW_GAP
    place, above = 0, 0.0
    for total, weight, count in pools:
        for slot in column[place : place + count]:
            slot.y = total / weight + above
            above += slot.height + ROW_GAP
        place += count


# The lines.


def _drawn(
    boxes: Sequence[Box],
    links: Sequence[Link],
    columns: Sequence[Sequence[_Slot]],
    slots: Mapping[str, _Slot],
    passed: _Passed,
) -> Layout:
    lefts, rights = _edges_of(columns)
    entries = _entries(links, slots, passed)
    placed = tuple(Placed(box, lefts[slots[box.name].column], slots[box.name].y) for box in boxes)
    routes = []
    for link in links:
        start, end = slots[link.start], slots[link.end]
        assert start.box is not None, "a line begins at a box"
        points = [(lefts[start.column] + start.box.width, start.middle), (rights[start.column], start.middle)]
        for column in range(start.column + 1, end.column):
            middle = passed[link.start, column].middle
            points += [(lefts[column], middle), (rights[column], middle)]
        points.append((lefts[end.column], entries[link]))
        routes.append(Route(link, tuple(points)))
    height = max(slot.y + slot.height for column in columns for slot in column)
    return Layout(placed, tuple(routes), rights[-1], height)


def _edges_of(columns: Sequence[Sequence[_Slot]]) -> tuple[list[float], list[float]]:
    """Return the left and the right edge of each column; the gap between two is wider where many lines run."""
    lefts, rights, x = [], [], 0.0
    for column in columns:
        lefts.append(x)
        x += max((slot.box.width for slot in column if slot.box is not None), default=0.0)
        rights.append(x)
        x += COLUMN_GAP_MIN + COLUMN_GAP_PER_LINE * sum(len(slot.after) for slot in column)
    return lefts, rights


def _entries(links: Sequence[Link], slots: Mapping[str, _Slot], passed: _Passed) -> dict[Link, float]:
    """Return the height at which each line comes in: side by side, in the order in which they come."""
    found: dict[Link, float] = {}
    for name, slot in slots.items():
        coming = [link for link in links if link.end == name]
        coming.sort(key=lambda link: _last(link, slots, passed).middle)
        gap = min(PORT_GAP, slot.height / (len(coming) + 1)) if coming else 0.0
        for place, link in enumerate(coming):
            found[link] = slot.middle + (place - (len(coming) - 1) / 2) * gap
    return found


def _last(link: Link, slots: Mapping[str, _Slot], passed: _Passed) -> _Slot:
    return passed.get((link.start, slots[link.end].column - 1)) or slots[link.start]
