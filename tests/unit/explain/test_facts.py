"""What is said of stages that a golden pipeline has none of."""

from __future__ import annotations

import pyarrow as pa

from holdfast.explain.facts import facts_of
from holdfast.explain.text import text_of
from holdfast.operators.words import stage_text
from holdfast.plan import (
    Aggregate,
    Aggregation,
    Column,
    Named,
    Partitioning,
    ProducerSource,
    Source,
    Stage,
    StageInput,
    StreamSource,
    Topology,
    Transform,
)

ROWS = pa.schema([("a", pa.int32())]).serialize().to_pybytes()
A = Named("a", Column("a", "int"))
COUNT = Aggregation(
    [A], [Aggregate("_aggregate_0", "count_all", None, "bigint")], [A, Named("count", Column("_aggregate_0", "bigint"))]
)


def test_a_transform_and_a_partitioning_of_the_users_own() -> None:
    costs = Stage(
        "costs",
        [StageInput("rows", ROWS, [])],
        ROWS,
        None,
        [],
        ROWS,
        sharded=True,
        transform=Transform("with_prices", ["a"]),
    )
    sums = Stage(
        "sums", [StageInput("costs", ROWS, [])], ROWS, COUNT, [], ROWS, partition_by=Partitioning(0, "by_region")
    )
    topology = Topology("p", 2, 200_000, [Source("rows", ROWS, ProducerSource())], [costs, sums], [])
    shown = text_of(facts_of(topology), 120)
    assert "transform   with_prices, run by Spark over ranges of committed buckets, in the order of a" in shown
    assert "re-keyed    by_region says the shard of a" in shown
    assert stage_text(costs) == "rows.transform(with_prices)"


def test_a_stream_of_another_pipeline() -> None:
    source = Source("more", ROWS, StreamSource("file:///there/first", "more", "stage"))
    counts = Stage("counts", [StageInput("more", ROWS, [])], ROWS, COUNT, [], ROWS)
    shown = text_of(facts_of(Topology("second", 2, 200_000, [source], [counts], [])), 120)
    assert "more  source: the stream more of another pipeline, file:///there/first" in shown
    assert "shards      as the other pipeline has split it" in shown
    assert "rows of more may be in any shard" in shown
