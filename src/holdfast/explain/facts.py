"""What there is to know of a pipeline from its plan alone: the content of every drawing, and of `--json`.

Invariants:
    * `facts_of` is a pure function of the topology: no store, no session, no clock.
    * A sentence about a guarantee says what holds, under which setting of the user's, and nothing that does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from holdfast import plan
from holdfast.operators.types import quoted, spark_type
from holdfast.operators.words import aggregates_texts, duration_text, expression_text, steps_texts, window_text
from holdfast.origins import behind
from holdfast.state.layout import StateLayout

WORD_BYTES = 8


class Promises(msgspec.Struct, frozen=True):
    """What somebody may count on who reads a stream."""

    delivery: str
    order: str
    late: str


class SourceFacts(msgspec.Struct, frozen=True):
    """A source: where its rows come from and how they are taken."""

    name: str
    kind: str
    schema: str
    tuple_time: str
    sharded_by: list[str] | None
    """None for another pipeline's stream: its rows lie as they lie over there."""
    on_error: str
    promises: Promises


class EdgeFacts(msgspec.Struct, frozen=True):
    """A stream that a stage reads: what is done to its rows, and why rows change their shard or do not."""

    stream: str
    steps: list[str]
    kind: str
    """`one-to-one` or `re-keyed`."""
    reason: str


class StageFacts(msgspec.Struct, frozen=True):
    """A named stream and the stage that makes it."""

    name: str
    inputs: list[EdgeFacts]
    transform: str | None
    keys: list[str]
    partition_by: str | None
    window: str | None
    watermark: str | None
    aggregates: list[str]
    steps: list[str]
    schema: str
    state: str
    state_record_bytes: int | None
    checkpoint: str
    shards: int
    promises: Promises


class SinkFacts(msgspec.Struct, frozen=True):
    """Where a stream goes, and what is promised there."""

    name: str
    stream: str
    kind: str
    guarantee: str
    """`exactly once` or `at least once`."""
    meaning: str


class PipelineFacts(msgspec.Struct, frozen=True):
    """The whole pipeline. Stages stand behind those that they read."""

    name: str
    shards: int
    bucket: str
    time_zone: str
    sources: list[SourceFacts]
    stages: list[StageFacts]
    sinks: list[SinkFacts]


def facts_of(topology: plan.Topology) -> PipelineFacts:
    """Return what there is to know of a pipeline."""
    keyed = _keyed_by(topology)
    return PipelineFacts(
        name=topology.name,
        shards=topology.shards,
        bucket=duration_text(topology.bucket_width_us),
        time_zone=topology.session_time_zone,
        sources=[_source(source, topology) for source in topology.sources],
        stages=[_stage(stage, topology, keyed) for stage in topology.stages],
        sinks=[_sink(sink) for sink in topology.sinks],
    )


# Sources.


def _source(source: plan.Source, topology: plan.Topology) -> SourceFacts:
    when = "when a row was logged there" if source.is_foreign else "when a row is logged"
    return SourceFacts(
        name=source.name,
        kind=_kind_of(source.origin),
        schema=schema_text(source.schema),
        tuple_time=when if source.tuple_time is None else f"the column {quoted(source.tuple_time)}",
        sharded_by=None if source.is_foreign else list(source.shard_by),
        on_error=_on_error(source),
        promises=Promises(_logged_once(source.origin), _order_of_source(source), _late(source, topology)),
    )


Origin = plan.FilesSource | plan.ProducerSource | plan.QuerySource | plan.StreamSource


def _kind_of(origin: Origin) -> str:
    if isinstance(origin, plan.FilesSource):
        options = "".join(f", {name}={value}" for name, value in sorted(origin.options.items()))
        return f"{origin.format} files of {origin.path}{options}"
    if isinstance(origin, plan.QuerySource):
        return "a streaming DataFrame, fed by a Structured Streaming query"
    if isinstance(origin, plan.StreamSource):
        return (
            f"the {'source' if origin.kind == 'source' else 'stream'} {origin.stream} of another pipeline, {origin.url}"
        )
    return "rows of an hf.Producer"


def _late(source: plan.Source, topology: plan.Topology) -> str:
    readers = [read for stage in topology.stages for read in stage.inputs if read.stream == source.name]
    if not any(read.event_time for read in readers):
        return "no stage has a watermark on it, so no row is late"
    if source.late == "side":
        return f"counted, left out of windows that have closed, and kept in {source.name}.late"
    return "counted, and left out of windows that have closed"


def _on_error(source: plan.Source) -> str:
    if source.is_foreign:
        return "its rows were taken by the other pipeline"
    if source.on_error == "reject":
        return (
            f"a row that cannot be taken goes to {source.name}.rejects with the reason; more than "
            f"{source.rejects_max:,} in a run stop the pipeline"
        )
    return "a row that cannot be taken stops the pipeline and is named; nothing is lost"


def _logged_once(origin: Origin) -> str:
    if isinstance(origin, plan.FilesSource):
        return "exactly once: each row of a file is logged once"
    if isinstance(origin, plan.QuerySource):
        return "exactly once: a batch that comes again after a crash is logged once"
    if isinstance(origin, plan.StreamSource):
        return "exactly once: what the other pipeline has committed, read where it is and kept there for this one"
    return "what send has returned from is safe; a batch sent again under its number is logged once"


def _order_of_source(source: plan.Source) -> str:
    if source.is_foreign:
        return "as in the other pipeline, bucket by bucket"
    if source.tuple_time is not None:
        return f"that of {quoted(source.tuple_time)}; rows behind what was promised are refused"
    return "as the rows were logged"


# Stages.


def _keyed_by(topology: plan.Topology) -> dict[str, list[str] | None]:
    """Return the columns whose hash gives a row's shard of each stream; None where rows may be in any."""
    found: dict[str, list[str] | None] = {
        source.name: None if source.is_foreign else list(source.shard_by) for source in topology.sources
    }
    for stage in topology.stages:
        if stage.aggregation is not None:
            keys: list[str] | None = [key.name for key in stage.aggregation.keys]
            steps = [plan.Project(stage.aggregation.outputs), *stage.steps]
            found[stage.name] = None if stage.partition_by is not None else _still_there(keys, keys, steps)
        elif stage.transform is not None:
            found[stage.name] = None
        else:
            below = [_still_there(found.get(read.stream), _names(read.schema), read.steps) for read in stage.inputs]
            found[stage.name] = below[0] if all(keys == below[0] for keys in below) else None
    return found


def _still_there(
    keys: Sequence[str] | None, names: Sequence[str] | None, steps: Sequence[plan.Step]
) -> list[str] | None:
    """Return the columns behind the steps that hold the keys; None where one of them is gone."""
    origin = behind({name: name for name in names or ()}, steps)
    columns = [next((column for column, before in origin.items() if before == key), None) for key in keys or ()]
    there = [column for column in columns if column is not None]
    return there if keys is not None and len(there) == len(columns) else None


def _stage(stage: plan.Stage, topology: plan.Topology, keyed: dict[str, list[str] | None]) -> StageFacts:
    aggregation = stage.aggregation
    window = None if aggregation is None or aggregation.window is None else window_text(aggregation.window)
    names = [column.name for column in aggregation.outputs] if aggregation else _names(stage.union_schema)
    layout = None if aggregation is None else _layout(stage)
    return StageFacts(
        name=stage.name,
        inputs=[_edge(stage, read, keyed.get(read.stream)) for read in stage.inputs],
        transform=None if stage.transform is None else _transform(stage.transform),
        keys=[] if aggregation is None else [_key(key) for key in aggregation.keys],
        partition_by=None if stage.partition_by is None else f"{stage.partition_by.name} says the shard of a key",
        window=window,
        watermark=_watermark(stage),
        aggregates=[] if aggregation is None else aggregates_texts(aggregation),
        steps=steps_texts(stage.steps, names),
        schema=schema_text(stage.schema),
        state=_state(stage, layout),
        state_record_bytes=None if layout is None else _record_bytes(layout),
        checkpoint=_checkpoint(stage),
        shards=topology.shards,
        promises=_promises(stage),
    )


def _transform(transform: plan.Transform) -> str:
    order = f", in the order of {', '.join(map(quoted, transform.order_by))} in a bucket" if transform.order_by else ""
    return f"{transform.name}, run by Spark over ranges of committed buckets{order}"


def _key(key: plan.Named) -> str:
    text = expression_text(key.expression)
    return text if text == quoted(key.name) else f"{text} AS {quoted(key.name)}"


def _edge(stage: plan.Stage, read: plan.StageInput, kept_by: list[str] | None) -> EdgeFacts:
    steps = steps_texts(read.steps, _names(read.schema))
    if read.event_time is not None:
        steps.insert(0, f"withWatermark({quoted(read.event_time)}, {duration_text(read.delay_us)})")
    kind = "one-to-one" if stage.sharded else "re-keyed"
    return EdgeFacts(read.stream, steps, kind, _reason(stage, read, kept_by))


def _reason(stage: plan.Stage, read: plan.StageInput, kept_by: list[str] | None) -> str:
    """Say why a shard reads its own shard of a stream, or all of them."""
    aggregation = stage.aggregation
    if aggregation is None:
        return "no groupBy, so rows stay in their shards"
    names = ", ".join(quoted(key.name) for key in aggregation.keys)
    if stage.sharded:
        split = ", ".join(map(quoted, kept_by)) if kept_by else names
        return f"{read.stream} is split by {split} already" if names else "no keys, so all rows are in one shard"
    if not aggregation.keys:
        return f"no keys, so one shard takes the rows of all shards of {read.stream}"
    traced = _traced_keys(aggregation, read)
    if None in traced:
        computed = aggregation.keys[traced.index(None)]
        return f"{quoted(computed.name)} is computed on the way, so rows are picked by its hash"
    if stage.partition_by is not None:
        return f"{stage.partition_by.name} says the shard of {names}, so rows are picked by that"
    if kept_by is None:
        return f"rows of {read.stream} may be in any shard, so they are picked by the hash of {names}"
    if kept_by == traced:
        return f"another input is not split by {names}, so all are picked by its hash"
    split = f"split by {', '.join(map(quoted, kept_by))}" if kept_by else "not split"
    return f"{read.stream} is {split}, so rows are picked by the hash of {names}"


def _traced_keys(aggregation: plan.Aggregation, read: plan.StageInput) -> list[str | None]:
    """Return the stream's own column for each key; None for a key that is computed."""
    origin = behind({name: name for name in _names(read.schema)}, read.steps)
    return [
        origin.get(key.expression.name) if isinstance(key.expression, plan.Column) else None for key in aggregation.keys
    ]


def _watermark(stage: plan.Stage) -> str | None:
    delays = {read.delay_us for read in stage.inputs if read.event_time is not None}
    if not delays or stage.aggregation is None or not isinstance(stage.aggregation.window, plan.TimeWindow):
        return None
    column = expression_text(stage.aggregation.window.event_time)
    spread = " to ".join(duration_text(delay) for delay in sorted({min(delays), max(delays)}))
    least = ", the least of its inputs" if len(stage.inputs) > 1 else ""
    return f"{spread} behind the newest {column} seen{least}"


def _layout(stage: plan.Stage) -> StateLayout | None:
    from holdfast.operators.stage import layout_of

    return layout_of(stage)


def _record_bytes(layout: StateLayout) -> int:
    return sum(records.width for records in layout.records) * WORD_BYTES


def _state(stage: plan.Stage, layout: StateLayout | None) -> str:
    if layout is None or stage.aggregation is None:
        return "none"
    window = stage.aggregation.window
    what = "key"
    if isinstance(window, plan.TimeWindow):
        what = "key and open window"
    if not stage.aggregation.keys:
        what = "shard" if window is None or isinstance(window, plan.CountWindow) else "open window"
    text = any(records.variable or records.heap_values for records in layout.records)
    return f"{_record_bytes(layout)} bytes for each {what}{', and its texts' if text else ''}, in shared memory"


def _checkpoint(stage: plan.Stage) -> str:
    if stage.aggregation is None:
        return "no state to keep"
    if stage.checkpoint_every_us is None:
        return "none: a restart without the state in memory replays the whole log"
    every = duration_text(stage.checkpoint_every_us)
    return f"snapshot every {every.removeprefix('1 ')}: changed pages, in the background"


def _promises(stage: plan.Stage) -> Promises:
    return Promises(
        delivery=f"exactly once: {_when(stage)}",
        order="bucket, shard, position: the same for every reader and at every replay",
        late=_late_at(stage),
    )


def _when(stage: plan.Stage) -> str:
    """Say when a row of the output comes."""
    if stage.aggregation is None:
        return "each row in the bucket of the row that it is made of"
    window = stage.aggregation.window
    if window is None:
        return "one update in a bucket for each key that changed; the last one of a key is its value"
    if isinstance(window, plan.CountWindow):
        return "each window in the bucket of the row that fills it"
    return "each window when the watermark has passed its end"


def _late_at(stage: plan.Stage) -> str:
    aggregation = stage.aggregation
    if aggregation is None or not isinstance(aggregation.window, plan.TimeWindow):
        return "no row is ever late here"
    sides = [f"{read.stream}.late" for read in stage.inputs if read.late == "side"]
    kept = f", and kept in {', '.join(sides)}" if sides else ""
    return f"a row whose window has closed is counted and left out{kept}"


# Sinks.


def _sink(sink: plan.Sink) -> SinkFacts:
    target = sink.target
    if isinstance(target, plan.ParquetSink):
        every = duration_text(target.every_us).removeprefix("1 ")
        return SinkFacts(
            sink.name,
            sink.stream,
            f"Parquet files in {target.path}, one about every {every}",
            "exactly once",
            "a reader sees all rows of a range of buckets or none",
        )
    if isinstance(target, plan.ConsoleSink):
        return SinkFacts(
            sink.name,
            sink.stream,
            f"the console, up to {target.rows} rows of a range of buckets",
            "at least once",
            "what was printed before a crash may be printed again",
        )
    return SinkFacts(sink.name, sink.stream, type(target).__name__, "not known here", "")


# Schemas.


def schema_text(schema: bytes) -> str:
    """Return a schema in short form: names and Spark's types."""
    fields = pa.ipc.read_schema(pa.py_buffer(schema))
    return ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in fields)


def _names(schema: bytes) -> Sequence[str]:
    return list(pa.ipc.read_schema(pa.py_buffer(schema)).names)
