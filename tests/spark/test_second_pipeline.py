"""A pipeline that reads the streams of another one, where they are, against the very same query as a Spark batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.flow import Flow, same_rows
from tests.spark.test_topologies import WORDS, lines

import holdfast as hf
from holdfast.connect.lease import leases
from holdfast.errors import Misconfigured, UnsupportedQuery
from holdfast.log.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def first_of(flow: Flow) -> dict[str, hf.Stream]:
    from pyspark.sql import functions as F

    words = flow.pipeline.source("words", WORDS)
    timed = words.withWatermark("at", "1 second").groupBy("word", F.window("at", "5 seconds"))
    counts = timed.agg(F.count("*").alias("n"), F.max("line").alias("line")).select("word", "window.end", "n", "line")
    return {"words": words, "counts": counts.named("counts"), "short": words.filter("line < 3").named("short")}


def second_of(first: Flow, folder: Path, shards: int) -> tuple[Flow, dict[str, hf.Stream]]:
    """Read a stage, a stage without state, and a source of the first pipeline, each under another name."""
    from pyspark.sql import functions as F

    flow = Flow(folder, shards)
    counts = flow.pipeline.source("their_counts", hf.stream(first.store, "flow/counts"))
    short = flow.pipeline.source("their_short", hf.stream(first.store, "short"))
    words = flow.pipeline.source("their_words", hf.stream(first.store, "words"))
    tops = counts.withWatermark("end", "0 seconds").groupBy(F.window("end", "10 seconds"))
    return flow, {
        "tops": tops.agg(F.max("n").alias("most"), F.sum("n").alias("all"), F.count("*")).named("tops"),
        "loud": short.select(F.col("word").alias("said"), "line").named("loud"),
        "sums": words.groupBy("line").agg(F.sum("line").alias("sum"), F.count("word")).named("sums"),
    }


def test_what_another_pipeline_has_made_is_read_where_it_is(spark: SparkSession, tmp_path: Path) -> None:
    first = Flow(tmp_path / "first", shards=3)
    first_of(first)
    first.pipeline.create()
    second, streams = second_of(first, tmp_path / "second", shards=2)
    for first_s, last_s, bucket in ((0, 40, 0), (80, 117, 1000)):
        first.send("words", lines(first_s, last_s, seed=first_s), bucket)
        first.run()
        # The last run of the second one began nothing that the first one's end did not complete.
        second.run()
        for name in ("tops", "loud"):
            expected = streams[name].toSpark().toArrow()
            assert expected.num_rows > 0, name
            same_rows(second.rows(name), expected)
        last = {row["line"]: row for row in second.rows("sums").to_pylist()}
        assert sorted(last.values(), key=str) == sorted(streams["sums"].toSpark().toArrow().to_pylist(), key=str)
    assert second.rows("their_counts").equals(first.rows("counts")), "a consumer is led to where the rows are"
    held = {lease.name for lease in leases(open_store(f"{first.store}/flow"), "counts")}
    assert held == {"flow.their_counts"}


def test_results_come_while_both_run(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    first = Flow(tmp_path / "first")
    words = first.pipeline.source("words", WORDS)
    words.groupBy("word").agg(F.count("*").alias("n")).named("counts")
    first.pipeline.create()
    second = Flow(tmp_path / "second", shards=3)
    counts = second.pipeline.source("counts", hf.stream(first.store, "counts"))
    counts.groupBy("n").agg(F.max("word").alias("word")).named("by_count")
    ahead, behind = first.pipeline.start(), second.pipeline.start()
    try:
        with hf.Producer(first.store, "words") as producer, hf.Consumer(second.store, "by_count") as consumer:
            for n in range(1, 4):
                producer.send(pa.table({"word": ["a"], "line": pa.array([1], pa.int32()), "at": pa.array([n], AT)}))
                table = consumer.poll(60.0)
                assert table is not None and table.to_pylist() == [{"n": n, "word": "a"}]
    finally:
        behind.stop()
        ahead.stop()


AT = pa.timestamp("us", tz="UTC")


def test_what_does_not_fit_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    first = Flow(tmp_path / "first")
    first_of(first)
    first.pipeline.create()
    other = hf.Pipeline("other", store=str(tmp_path / "other"), bucket="50 milliseconds")
    with pytest.raises(Misconfigured, match=r"has no stream 'nothing'\..* There are: flow/words"):
        other.source("x", hf.stream(first.store, "nothing"))
    with pytest.raises(UnsupportedQuery, match="tuple_time"):
        other.source("x", hf.stream(first.store, "words"), tuple_time="at")
    other.source("x", hf.stream(first.store, "words")).groupBy("word").count().named("counted")
    with pytest.raises(Misconfigured, match="has buckets of 100 ms, and this pipeline of 50 ms"):
        other.run(available_now=True)
