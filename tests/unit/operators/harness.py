"""Stages made by hand, and one unit of them run over waves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast import plan
from holdfast.model import NO_WATERMARK
from holdfast.operators.stage import UnitOperator, UnitOutput, layout_of
from holdfast.operators.types import arrow_type, spark_type
from holdfast.operators.union import InputRows
from holdfast.state.layout import Identity
from holdfast.state.unit_state import UnitState

WIDTH_US = 1000
"""Of a bucket."""


def column(name: str, schema: pa.Schema) -> plan.Column:
    return plan.Column(name, spark_type(schema.field(name).type))


def serialized(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize().to_pybytes())


def window_type(window: plan.TimeWindow | plan.CountWindow) -> str:
    number = ",number:bigint" if isinstance(window, plan.CountWindow) else ""
    return f"struct<start:timestamp,end:timestamp{number}>"


def make_stage(
    schema: pa.Schema,
    keys: Sequence[str],
    aggregates: Sequence[plan.Aggregate],
    window: plan.TimeWindow | plan.CountWindow | None = None,
    *,
    inputs: Sequence[str] = ("rows",),
    steps: Sequence[plan.Step] = (),
    after: Sequence[plan.Step] = (),
    after_schema: pa.Schema | None = None,
    union_schema: pa.Schema | None = None,
    event_time: str | None = None,
    delay_us: int = 0,
    late: str = "drop",
    on_error: str = "stop",
    sharded: bool = True,
) -> plan.Stage:
    union_schema = union_schema or schema
    named = [plan.Named(key, column(key, union_schema)) for key in keys]
    fields = [pa.field(key, union_schema.field(key).type) for key in keys]
    outputs = list(named)
    if window is not None:
        fields.append(pa.field("window", arrow_type(window_type(window))))
        outputs.append(plan.Named("window", plan.Column("window", window_type(window))))
    for aggregate in aggregates:
        fields.append(pa.field(aggregate.name, arrow_type(aggregate.type)))
        outputs.append(plan.Named(aggregate.name, plan.Column(aggregate.name, aggregate.type)))
    read = [
        plan.StageInput(name, serialized(schema), list(steps), late, on_error, event_time, delay_us)  # type: ignore[arg-type]
        for name in inputs
    ]
    aggregation = plan.Aggregation(named, list(aggregates), outputs, window)
    result = after_schema or pa.schema(fields)
    return plan.Stage(
        "results", read, serialized(union_schema), aggregation, list(after), serialized(result), sharded=sharded
    )


class Unit:
    """One unit with its state in a file, wave after wave."""

    def __init__(
        self, path: Path, stage: plan.Stage, functions: Sequence[Any] = (), shard: int = 0, shards: int = 1
    ) -> None:
        layout = layout_of(stage)
        self.state = None
        if layout is not None:
            self.state = UnitState.create(str(path / "unit.state"), Identity("p", "results", shard, 1), layout, 0)
        self.operator = UnitOperator(stage, shard, shards, self.state, functions, "UTC", WIDTH_US)
        self.bucket = 0
        self.outputs: list[UnitOutput] = []

    def wave(self, runs: Sequence[Sequence[InputRows]], bucket_to: int, ended: bool = False) -> UnitOutput:
        if self.state is not None:
            self.state.begin(self.bucket)
        try:
            output = self.operator.process(runs, self.bucket, bucket_to, ended)
            if self.state is not None:
                self.state.finish(bucket_to, output.meta)
        finally:
            if self.state is not None:
                self.state.end()
        self.bucket = bucket_to
        self.outputs.append(output)
        return output

    def close(self) -> None:
        if self.state is not None:
            self.state.close()

    def rows(self) -> list[dict[str, Any]]:
        return [row for output in self.outputs for part in output.rows for row in part.batch.to_pylist()]

    def digests(self) -> list[tuple[int, int, int]]:
        return [digest for output in self.outputs for digest in output.digests]


@contextmanager
def unit(path: Path, stage: plan.Stage, functions: Sequence[Any] = (), **options: int) -> Iterator[Unit]:
    opened = Unit(path, stage, functions, **options)
    try:
        yield opened
    finally:
        opened.close()


def stamped(
    batch: pa.RecordBatch, bucket: int, event_time: str | None = None, shard: int = 0, within_us: int = 0
) -> InputRows:
    """Return a frame that arrived in a bucket."""
    highest = NO_WATERMARK
    if event_time is not None:
        seen = [value for value in batch.column(event_time).cast(pa.int64()).to_pylist() if value is not None]
        highest = max(seen, default=NO_WATERMARK)
    return InputRows(batch, bucket * WIDTH_US + within_us, highest, shard=shard)


def aggregate(name: str, function: str, argument: plan.Expression | None, type_: str, **options: Any) -> plan.Aggregate:
    return plan.Aggregate(name, function, argument, type_, **options)
