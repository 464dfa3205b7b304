"""A pipeline as a picture: sources on the left, sinks on the right, what there is to know in the boxes.

Invariants:
    * The file stands for itself: no script, no font and no picture is fetched.
    * Text fits its box wherever a font of fixed width is there: a box is as wide as its longest line.
    * Light and dark follow the reader's setting; a line's kind is its dashes, never its colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from holdfast.explain.facts import PipelineFacts, SinkFacts, SourceFacts, StageFacts
from holdfast.explain.layers import Box, Layout, Link, Placed, Route, layout
from holdfast.explain.text import Line, counted, edge_text, printable, sink_lines, source_lines, stage_lines

CHARACTER: Final = 7.0
"""Width of a character at `FONT_SIZE`: a little more than the widest of the usual fonts of fixed width has."""
FONT_SIZE: Final = 11.5
LINE_HEIGHT: Final = 16.0
PADDING: Final = 12.0
HEAD_HEIGHT: Final = 30.0
NAME_CHARACTER: Final = 8.6
NAME_SIZE: Final = 14
LABEL_CHARACTERS: Final = 12
TEXT_CHARACTERS: Final = 38
MARGIN: Final = 24.0
TITLE_HEIGHT: Final = 44.0
LEGEND_HEIGHT: Final = 40.0
ARROW: Final = 7.0
BEND: Final = 0.5
STYLE: Final = (
    "svg{--ground:#fff;--ink:#1f2328;--soft:#59636e;--line:#7d8590;--source:#eaf5ec;--source-edge:#3d8b4f;"
    "--stage:#eef4fc;--stage-edge:#3b73c4;--sink:#fdf3e4;--sink-edge:#b7791f;background:var(--ground)}"
    "@media (prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--soft:#9198a1;--line:#7d8590;"
    "--source:#12261a;--source-edge:#4aa564;--stage:#131f33;--stage-edge:#5b94e6;--sink:#2b2111;--sink-edge:#d19a3c}}"
    ".ground{fill:var(--ground)}text{font:11.5px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
    "'Liberation Mono',monospace;fill:var(--ink);white-space:pre}"
    ".name{font-size:14px;font-weight:700}.title{font-size:18px;font-weight:700}.soft{fill:var(--soft)}"
    ".box rect{stroke-width:1.5}.source rect{fill:var(--source);stroke:var(--source-edge)}"
    ".stage rect{fill:var(--stage);stroke:var(--stage-edge)}.sink rect{fill:var(--sink);stroke:var(--sink-edge)}"
    ".edge{fill:none;stroke:var(--line);stroke-width:1.6}.rekeyed{stroke-dasharray:6 4}.arrow{fill:var(--line)}"
)


@dataclass(frozen=True, slots=True)
class _Card:
    """What a box shows: a name, what it is, and labelled lines."""

    key: str
    kind: str
    name: str
    what: str
    lines: tuple[Line, ...]


def svg_of(facts: PipelineFacts) -> str:
    """Return the picture of a pipeline."""
    cards = [*map(_source_card, facts.sources), *map(_stage_card, facts.stages), *map(_sink_card, facts.sinks)]
    boxes = [Box(card.key, _width(card), _height(card), is_end=card.kind == "sink") for card in cards]
    kinds = {Link(edge.stream, stage.name): edge.kind for stage in facts.stages for edge in stage.inputs}
    links = [*kinds, *(Link(sink.stream, _key(sink)) for sink in facts.sinks)]
    placed = layout(boxes, links)
    by_key = {card.key: card for card in cards}
    parts = [_route(route, kinds.get(route.link)) for route in placed.routes]
    parts += [_card(by_key[each.box.name], each) for each in placed.boxes]
    return _document(facts, placed, parts)


def _document(facts: PipelineFacts, placed: Layout, parts: Sequence[str]) -> str:
    about = f"{counted(facts.shards, 'shard')}, buckets of {facts.bucket}, time zone {facts.time_zone}"
    title_width = len(facts.name) * 11 + 16 + len(about) * CHARACTER
    width = round(max(placed.width, title_width, _LEGEND_WIDTH) + 2 * MARGIN)
    height = round(placed.height + TITLE_HEIGHT + LEGEND_HEIGHT + 2 * MARGIN)
    title = (
        f'<text class="title" x="{MARGIN:g}" y="{MARGIN + 18:g}">{escape(facts.name)}'
        f'<tspan class="soft" style="font-size:{FONT_SIZE}px;font-weight:400" dx="16">{escape(about)}</tspan></text>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(facts.name)}: sources, stages and sinks</title>\n<style>{STYLE}</style>\n"
        f'<rect class="ground" width="{width}" height="{height}"/>\n{title}\n'
        f'<g transform="translate({MARGIN:g},{MARGIN + TITLE_HEIGHT:g})">\n{body}\n</g>\n'
        f"{_legend(height - MARGIN)}\n</svg>\n"
    )


_LEGEND: Final = (
    ("edge", "one-to-one: each shard reads its own shard"),
    ("edge rekeyed", "re-keyed: each shard picks its rows from all shards"),
)
_LEGEND_WIDTH: Final = sum(len(text) * CHARACTER + 84 for _, text in _LEGEND)


def _legend(y: float) -> str:
    parts, x = [], MARGIN
    for kind, text in _LEGEND:
        parts.append(f'<path class="{kind}" d="M{x:g} {y - 4:g}h36"/>')
        parts.append(f'<text class="soft" x="{x + 46:g}" y="{y:g}">{text}</text>')
        x += len(text) * CHARACTER + 84
    return "".join(parts)


# Boxes.


def _source_card(source: SourceFacts) -> _Card:
    (name, _), *lines = source_lines(source)
    return _Card(source.name, "source", name, "source", (("rows", source.kind), *lines))


def _stage_card(stage: StageFacts) -> _Card:
    (name, what), *lines = stage_lines(stage)
    reads = [("" if number else "from", edge_text(edge)) for number, edge in enumerate(stage.inputs)]
    return _Card(stage.name, "stage", name, what, (*reads, *lines[len(reads) :]))


def _sink_card(sink: SinkFacts) -> _Card:
    _, *lines = sink_lines(sink)
    return _Card(_key(sink), "sink", sink.name, "sink", (("to", sink.kind), *lines))


def _key(sink: SinkFacts) -> str:
    # A stream has no blank in its name.
    return f"sink {sink.name}"


def _wrapped(card: _Card) -> Iterator[Line]:
    for label, text in card.lines:
        for number, line in enumerate(textwrap.wrap(printable(text), TEXT_CHARACTERS, break_on_hyphens=False)):
            yield label if number == 0 else "", line


def _width(card: _Card) -> float:
    body = (LABEL_CHARACTERS + max(len(text) for _, text in _wrapped(card))) * CHARACTER
    head = len(card.name) * NAME_CHARACTER + 12 + len(card.what) * CHARACTER
    return max(body, head) + 2 * PADDING


def _height(card: _Card) -> float:
    return HEAD_HEIGHT + sum(LINE_HEIGHT for _ in _wrapped(card)) + PADDING


def _card(card: _Card, place: Placed) -> str:
    box = place.box
    head = (
        f'<text class="name" x="{PADDING:g}" y="21">{escape(card.name)}</text>'
        f'<text class="soft" x="{box.width - PADDING:g}" y="21" text-anchor="end">{escape(card.what)}</text>'
    )
    rows = []
    for number, (label, text) in enumerate(_wrapped(card)):
        y = HEAD_HEIGHT + number * LINE_HEIGHT + 12
        if label:
            rows.append(f'<text class="soft" x="{PADDING:g}" y="{y:g}">{escape(label)}</text>')
        rows.append(f'<text x="{PADDING + LABEL_CHARACTERS * CHARACTER:g}" y="{y:g}">{escape(text)}</text>')
    return (
        f'<g class="box {card.kind}" transform="translate({place.x:.1f},{place.y:.1f})">'
        f'<rect width="{box.width:.1f}" height="{box.height:.1f}" rx="8"/>{head}{"".join(rows)}</g>'
    )


# Lines.


def _route(route: Route, kind: str | None) -> str:
    """Return a line that bends between columns, with the head of an arrow where it comes in."""
    (x, y), *further = route.points
    path = f"M{x:.1f} {y:.1f}"
    for start, end in zip(further[::2], further[1::2], strict=True):
        path += f"H{start[0]:.1f}"
        bend = (end[0] - start[0]) * BEND
        path += f"C{start[0] + bend:.1f} {start[1]:.1f} {end[0] - bend:.1f} {end[1]:.1f} {end[0]:.1f} {end[1]:.1f}"
    x, y = route.points[-1]
    head = f'<path class="arrow" d="M{x:.1f} {y:.1f}l-{ARROW * 1.4:.1f} {-ARROW / 1.6:.1f}v{ARROW * 1.25:.1f}z"/>'
    return f'<path class="edge{" rekeyed" if kind == "re-keyed" else ""}" d="{path}"/>{head}'
