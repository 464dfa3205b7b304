"""A pipeline as text for a terminal: lanes on the left, what there is to know on the right.

Invariants:
    * No line is wider than the width that was asked for, as long as that leaves room beside the lanes.
    * In ASCII everything is there that is there otherwise.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Final

from holdfast.explain.facts import EdgeFacts, PipelineFacts, Promises, SinkFacts, SourceFacts, StageFacts
from holdfast.explain.lanes import LANE_WIDTH, Node, lanes_of

SOURCE, ONE_TO_ONE, REKEYED = "○", "●", "◆"
_ASCII: Final = str.maketrans("│─├┤┼╯╰╮╭┴┬▷○●◆", "|-|||'`.,++>o*#")
_LABEL_WIDTH: Final = 12
_TEXT_WIDTH_MIN: Final = 30
WIDTH_MIN: Final = 60
WIDTH_MAX: Final = 120
Line = tuple[str, str]
"""A label and its text."""


def text_of(facts: PipelineFacts, width: int = 80, ascii_only: bool = False) -> str:
    """Return the drawing of a pipeline, whose lines end with newlines."""
    width = max(WIDTH_MIN, min(width, WIDTH_MAX))
    lines = list(_lines(facts, width))
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if ascii_only else text


def _lines(facts: PipelineFacts, width: int) -> Iterator[str]:
    head = f"{facts.name}: {counted(facts.shards, 'shard')}, buckets of {facts.bucket}, time zone {facts.time_zone}"
    yield from textwrap.wrap(head, width, break_on_hyphens=False)
    yield ""
    described = {name: list(lines) for name, lines in _descriptions(facts).items()}
    for row in lanes_of(nodes_of(facts)):
        if row.node is None:
            yield row.first
            continue
        room = max(_TEXT_WIDTH_MIN, width - len(row.first) - 1)
        (name, what), *details = [(label, printable(text)) for label, text in described[row.node]]
        first, *rest = textwrap.wrap(f"{name}  {what}", room, subsequent_indent="  ", break_on_hyphens=False)
        yield f"{row.first} {first}"
        for line in rest:
            yield f"{row.further} {line}"
        for label, text in details:
            for line in _labelled(label, text, room - LANE_WIDTH):
                yield f"{row.further} {' ' * LANE_WIDTH}{line}"
        yield row.further
    yield from textwrap.wrap(_legend(facts), width, break_on_hyphens=False)


def _labelled(label: str, text: str, width: int) -> list[str]:
    indent = " " * _LABEL_WIDTH
    lead = f"{label:<{_LABEL_WIDTH}}" if label else indent
    return textwrap.wrap(text, width, initial_indent=lead, subsequent_indent=indent, break_on_hyphens=False)


def _legend(facts: PipelineFacts) -> str:
    kinds = {edge.kind for stage in facts.stages for edge in stage.inputs}
    parts = [f"{SOURCE} source"]
    if "one-to-one" in kinds:
        parts.append(f"{ONE_TO_ONE} stage, one-to-one: each shard reads its own shard")
    if "re-keyed" in kinds:
        parts.append(f"{REKEYED} stage, re-keyed: each shard picks its rows from all shards")
    if facts.sinks:
        parts.append("─▷ sink")
    return "; ".join(parts)


def nodes_of(facts: PipelineFacts) -> list[Node]:
    """Return the graph: a source just before the first stage that reads it, a sink just behind its stream."""
    nodes: list[Node] = []
    there: set[str] = set()
    by_name = {source.name: source for source in facts.sources}

    def add(name: str, mark: str, inputs: tuple[str, ...] = ()) -> None:
        there.add(name)
        nodes.append(Node(name, mark, inputs))
        sinks = [sink for sink in facts.sinks if sink.stream == name]
        nodes.extend(Node(_sink_key(sink), "", (name,), is_end=True) for sink in sinks)

    for stage in facts.stages:
        for edge in stage.inputs:
            if edge.stream in by_name and edge.stream not in there:
                add(edge.stream, SOURCE)
        rekeyed = any(edge.kind == "re-keyed" for edge in stage.inputs)
        add(stage.name, REKEYED if rekeyed else ONE_TO_ONE, tuple(edge.stream for edge in stage.inputs))
    for source in facts.sources:
        if source.name not in there:
            add(source.name, SOURCE)
    return nodes


def _sink_key(sink: SinkFacts) -> str:
    # A stream has no blank in its name, so no sink has the key of a stream.
    return f"sink {sink.name}"


def _descriptions(facts: PipelineFacts) -> dict[str, Iterator[Line]]:
    found: dict[str, Iterator[Line]] = {source.name: source_lines(source) for source in facts.sources}
    found |= {stage.name: stage_lines(stage) for stage in facts.stages}
    return found | {_sink_key(sink): sink_lines(sink) for sink in facts.sinks}


def source_lines(source: SourceFacts) -> Iterator[Line]:
    """Yield the name of a source and what it is, then what there is to say of it."""
    yield source.name, f"source: {source.kind}"
    yield "schema", source.schema
    yield "tuple_time", source.tuple_time
    if source.sharded_by is None:
        yield "shards", "as the other pipeline has split it"
    else:
        yield "shards", f"split by {', '.join(source.sharded_by)}" if source.sharded_by else "not split: all in shard 0"
    yield "on_error", source.on_error
    yield from promise_lines(source.promises)


def stage_lines(stage: StageFacts) -> Iterator[Line]:
    """Yield the name of a stage, then what it reads, does, keeps and promises."""
    yield stage.name, f"stage in {counted(stage.shards, 'shard')}"
    for number, edge in enumerate(stage.inputs):
        yield "from" if number == 0 else "", edge_text(edge)
    by_reason: dict[tuple[str, str], None] = dict.fromkeys((edge.kind, edge.reason) for edge in stage.inputs)
    yield from by_reason
    if stage.transform:
        yield "transform", stage.transform
    if stage.aggregates or stage.keys or stage.window:
        yield "groupBy", ", ".join([*stage.keys, *([stage.window] if stage.window else [])]) or "nothing"
        yield "agg", ", ".join(stage.aggregates) or "nothing"
    if stage.partition_by:
        yield "partitions", stage.partition_by
    if stage.watermark:
        yield "watermark", stage.watermark
    if stage.steps:
        yield "then", "".join(f".{step}" for step in stage.steps)
    yield "schema", stage.schema
    yield "state", stage.state
    yield "checkpoint", stage.checkpoint
    yield from promise_lines(stage.promises)


def sink_lines(sink: SinkFacts) -> Iterator[Line]:
    """Yield a sink's place, then what is promised there."""
    yield sink.kind, f"({sink.name})"
    yield "promised", f"{sink.guarantee}: {sink.meaning}"


def promise_lines(promises: Promises) -> Iterator[Line]:
    """Yield what a stream promises."""
    yield "promised", promises.delivery
    yield "order", promises.order
    yield "late rows", promises.late


def edge_text(edge: EdgeFacts) -> str:
    """Return a stream with the steps on the way, as one would write it."""
    return edge.stream + "".join(f".{step}" for step in edge.steps)


def printable(text: str) -> str:
    """Return a text without what would move a terminal's cursor, or is not allowed in a picture."""
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def counted(count: int, noun: str) -> str:
    """Return a number and a noun that agree."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
