"""Topologies by chance, end to end, against the very same queries as Spark batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.property.topologies import SOURCES, Spec, batch_of, by_first, some_rows, some_specs
from tests.spark.flow import START_US, Flow, same_rows

import holdfast as hf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "item string, n bigint, at timestamp"
SECOND_US = 1_000_000
BATCHES = 12


def interval(us: int) -> str:
    return f"{us} microseconds"


def build(pipeline: hf.Pipeline, specs: list[Spec]) -> dict[str, hf.Stream]:
    """Say the topology as a user would."""
    from pyspark.sql import functions as F

    streams = {name: pipeline.source(name, SCHEMA) for name in SOURCES}
    for spec in specs:
        below: Any = None
        for read in spec.reads:
            rows = streams[read.stream]
            if spec.window is not None:
                rows = rows.withWatermark("at", interval(spec.delay_us))
            rows = rows.select("*") if read.least is None else rows.filter(F.col("n") >= read.least)
            below = rows if below is None else below.union(rows)
        if spec.keys is not None:
            assert spec.window is not None
            size, slide, edge = spec.window
            window = F.window("at", interval(size), interval(slide))
            most = F.max("item").alias("most")
            grouped = below.groupBy(*spec.keys, window).agg(most, F.sum("n").alias("total"))
            item, n = ("item" if "item" in spec.keys else "most"), ("n" if "n" in spec.keys else "total")
            below = grouped.select(F.col(item).alias("item"), F.col(n).alias("n"), F.col(f"window.{edge}").alias("at"))
        streams[spec.name] = below.named(spec.name, partition_by=by_first if spec.partitioned else None)
    return {spec.name: streams[spec.name] for spec in specs}


@pytest.mark.parametrize("seed", [7, 9, 13])
def test_a_topology_by_chance_gives_sparks_rows(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chooser = random.Random(seed)
    flow = Flow(tmp_path, shards=3)
    streams = build(flow.pipeline, some_specs(chooser, SECOND_US, windows_only=True))
    for name in SOURCES:
        # In the order of their event times, so that nothing is late.
        times = [START_US + number * SECOND_US for number in range(BATCHES + 1)]
        flow.send(name, [rows_between(chooser, *times[number : number + 2]) for number in range(BATCHES)])
    flow.run()
    for name, stream in streams.items():
        same_rows(flow.rows(name), stream.toSpark().toArrow())
    assert sum(flow.rows(name).num_rows for name in streams) > 0


def rows_between(chooser: random.Random, least_us: int, most_us: int) -> pa.Table:
    return pa.Table.from_batches([batch_of(some_rows(chooser, least_us, most_us, chooser.randint(1, 30)))])
