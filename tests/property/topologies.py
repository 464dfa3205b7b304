"""Topologies by chance, and what has to come out of them, in plain Python without anything of ours.

All streams have the same columns, so that any can be read by any: `item`, `n` and the event time `at`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import plan
from holdfast.operators.partition_function import PartitionFunction
from holdfast.pipeline.compile import DeclaredSource, DeclaredStage, Settings, compile_topology
from holdfast.pipeline.lineage import AggregationNode, Node, SourceNode, StageNode, StepNode, UnionNode, WatermarkNode

TIMES: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema([("item", pa.string()), ("n", pa.int64()), ("at", TIMES)])
BYTES: Final = SCHEMA.serialize().to_pybytes()
ITEM, N, AT = plan.Column("item", "string"), plan.Column("n", "bigint"), plan.Column("at", "timestamp")
WINDOW_TYPE: Final = "struct<start:timestamp,end:timestamp>"
ITEMS: Final = ("a", "bb", "ccc", "dd", "e", None)
SOURCES: Final = ("north", "south")

Row = tuple[str | None, int, int]
Buckets = dict[int, list[Row]]


@dataclass(frozen=True)
class Read:
    """An input of a stage: a stream, and below which `n` its rows are left out (None: none are)."""

    stream: str
    least: int | None


@dataclass(frozen=True)
class Spec:
    """A stage: `window` is (size, slide, which edge is `at`) in microseconds; one whose keys are None has no state."""

    name: str
    reads: tuple[Read, ...]
    keys: tuple[str, ...] | None
    window: tuple[int, int, str] | None
    delay_us: int
    partitioned: bool


def some_specs(chooser: random.Random, unit_us: int, windows_only: bool = False) -> list[Spec]:
    """Return two to five stages over two sources; a stream may be read by any number of later stages."""
    specs: list[Spec] = []
    for number in range(chooser.randint(2, 5)):
        streams = [*SOURCES, *(spec.name for spec in specs)]
        # A stage mostly reads another one: that is what is looked for.
        chosen = {streams[-1] if specs and chooser.random() < 0.6 else chooser.choice(streams)}
        if chooser.random() < 0.4:
            chosen.add(chooser.choice(streams))
        reads = tuple(Read(stream, chooser.choice([None, None, -3, 2])) for stream in sorted(chosen))
        kind = chooser.choice(["window", "window", "window", "none", *([] if windows_only else ["running"])])
        keys = chooser.choice([("item",), ("n",), ("item", "n"), ("n", "item"), ()])
        slide = chooser.randint(1, 3)
        window = (slide * chooser.randint(1, 3) * unit_us, slide * unit_us, chooser.choice(["start", "end"]))
        specs.append(
            Spec(
                f"s{number}",
                reads,
                None if kind == "none" else keys,
                window if kind == "window" else None,
                chooser.choice([0, 0, 1, 3]) * unit_us,
                kind != "none" and bool(keys) and chooser.random() < 0.3,
            )
        )
    return specs


def some_rows(chooser: random.Random, least_us: int, most_us: int, count: int) -> list[Row]:
    times = sorted(chooser.randrange(least_us, most_us) for _ in range(count))
    return [(chooser.choice(ITEMS), chooser.randint(-5, 5), time) for time in times]


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


# As a plan.


def by_first(keys: pa.RecordBatch) -> pa.Array:
    """Partition by the first key alone."""
    first = keys.column(0)
    return pc.fill_null(pc.utf8_length(first), 5) if pa.types.is_string(first.type) else first


def compiled(specs: Sequence[Spec], shards: int, bucket_us: int) -> tuple[plan.Topology, list[Any]]:
    """Return the topology and the table of its functions, as the front end would have them."""
    sources = {
        name: DeclaredSource(plan.Source(name, BYTES, plan.ProducerSource()), tuple(SCHEMA.names)) for name in SOURCES
    }
    nodes: dict[str, Node] = {}
    stages = []
    for spec in specs:
        nodes[spec.name] = node = _node(spec, nodes)
        by = PartitionFunction(by_first, "by_first", "here:1") if spec.partitioned else None
        stages.append(DeclaredStage(spec.name, node, BYTES, None, by))
    return compile_topology(Settings("retail", shards, bucket_us, "UTC"), sources, stages, [])


def _node(spec: Spec, nodes: Mapping[str, Node]) -> Node:
    below: Node | None = None
    for read in spec.reads:
        made = nodes.get(read.stream)
        leaf: Node = SourceNode(read.stream, "here:2") if made is None else StageNode(read.stream, made, "here:3")
        if spec.window is not None:
            leaf = WatermarkNode(leaf, "at", spec.delay_us, "here:4")
        if read.least is not None or (spec.keys is None and len(spec.reads) == 1):
            least = plan.Constant(-1000 if read.least is None else read.least, "bigint")
            keep = plan.Filter(plan.Call("greater_equal", [N, least], "boolean"))
            leaf = StepNode(leaf, (keep,), lambda frame: frame, "here:5")
        below = leaf if below is None else UnionNode((below, leaf), ((), ()), lambda left, right: left, "here:6")
    assert below is not None
    return below if spec.keys is None else _aggregation(spec, below)


def _aggregation(spec: Spec, below: Node) -> AggregationNode:
    assert spec.keys is not None
    columns = {"item": ITEM, "n": N}
    keys = [plan.Named(key, columns[key]) for key in spec.keys]
    aggregates = [
        plan.Aggregate("most", "max", ITEM, "string"),
        plan.Aggregate("total", "sum", N, "bigint"),
        plan.Aggregate("latest", "max", AT, "timestamp"),
    ]
    at: plan.Expression = plan.Column("latest", "timestamp")
    window = None
    if spec.window is not None:
        size, slide, edge = spec.window
        window = plan.TimeWindow(AT, size, slide)
        place = plan.Constant(0 if edge == "start" else 1, "int")
        at = plan.Call("field", [plan.Column("window", WINDOW_TYPE), place], "timestamp")
    outputs = [
        plan.Named("item", ITEM if "item" in spec.keys else plan.Column("most", "string")),
        plan.Named("n", N if "n" in spec.keys else plan.Column("total", "bigint")),
        plan.Named("at", at),
    ]
    return AggregationNode(
        below, plan.Aggregation(keys, aggregates, outputs, window), BYTES, lambda frame: frame, "here:7"
    )


# As what has to come out.


def expected(specs: Sequence[Spec], sources: Mapping[str, Buckets], last: int) -> dict[str, Buckets]:
    """Return the rows of every stage by bucket, from the rules alone; all windows end with the bucket `last`."""
    streams: dict[str, Buckets] = {name: dict(buckets) for name, buckets in sources.items()}
    highest = {
        name: {bucket: max(at for _, _, at in rows) for bucket, rows in buckets.items()}
        for name, buckets in sources.items()
    }
    for spec in specs:
        made, marks = _evaluated(spec, streams, highest, last)
        streams[spec.name], highest[spec.name] = made, marks
    return {spec.name: streams[spec.name] for spec in specs}


def _evaluated(
    spec: Spec, streams: Mapping[str, Buckets], highest: Mapping[str, Mapping[int, int]], last: int
) -> tuple[Buckets, dict[int, int]]:
    seen: list[int | None] = [None for _ in spec.reads]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    made: Buckets = {}
    marks: dict[int, int] = {}
    for bucket in sorted({last, *(bucket for read in spec.reads for bucket in streams[read.stream])}):
        rows = [
            row
            for read in spec.reads
            for row in streams[read.stream].get(bucket, [])
            if read.least is None or row[1] >= read.least
        ]
        before = _watermark(seen, spec.delay_us)
        for number, read in enumerate(spec.reads):
            told = highest[read.stream].get(bucket)
            known = seen[number]
            if told is not None:
                seen[number] = told if known is None else max(known, told)
        after = _watermark(seen, spec.delay_us)
        if spec.keys is None:
            given = rows
        elif spec.window is None:
            given = _running(spec, groups, rows)
        else:
            given = _windowed(spec, groups, rows, before, after, bucket == last)
        if given:
            made[bucket] = given
            marks[bucket] = max(at for _, _, at in given)
            if spec.window is not None and after is not None:
                marks[bucket] = max(marks[bucket], _edge_to_come(spec.window, after))
    return made, marks


def _watermark(seen: Sequence[int | None], delay_us: int) -> int | None:
    known = [each for each in seen if each is not None]
    return min(known) - delay_us if len(known) == len(seen) else None


def _edge_to_come(window: tuple[int, int, str], watermark: int) -> int:
    size, slide, edge = window
    end = (watermark - size) // slide * slide + size
    while end <= watermark:
        end += slide
    return end if edge == "end" else end - size


def _running(spec: Spec, groups: dict[tuple[Any, ...], list[Row]], rows: Sequence[Row]) -> list[Row]:
    changed = set()
    for row in rows:
        groups.setdefault(_key(spec, row), []).append(row)
        changed.add(_key(spec, row))
    return [_folded(spec, key, groups[key], max(at for _, _, at in groups[key])) for key in changed]


def _windowed(
    spec: Spec,
    groups: dict[tuple[Any, ...], list[Row]],
    rows: Sequence[Row],
    before: int | None,
    after: int | None,
    ended: bool,
) -> list[Row]:
    """Put the rows into their windows, and return those that the watermark has passed; at the end, all of them."""
    assert spec.window is not None
    size, slide, edge = spec.window
    for row in rows:
        start = row[2] // slide * slide
        while start + size > row[2]:
            if before is None or start + size > before:
                groups.setdefault((start, *_key(spec, row)), []).append(row)
            start -= slide
    closed = [key for key in groups if ended or (after is not None and key[0] + size <= after)]
    return [_folded(spec, key[1:], groups.pop(key), key[0] if edge == "start" else key[0] + size) for key in closed]


def _key(spec: Spec, row: Row) -> tuple[Any, ...]:
    assert spec.keys is not None
    return tuple(row[0] if key == "item" else row[1] for key in spec.keys)


def _folded(spec: Spec, key: tuple[Any, ...], rows: Sequence[Row], at: int) -> Row:
    assert spec.keys is not None
    named = dict(zip(spec.keys, key, strict=True))
    items = [item for item, _, _ in rows if item is not None]
    return named.get("item", max(items, default=None)), named.get("n", sum(n for _, n, _ in rows)), at
