"""Stages that read stages, end to end, against the very same query as one Spark batch."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import START_US, Flow, same_rows

import holdfast as hf
from holdfast.errors import UserFunctionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORDS = "word string, line int, at timestamp"
SECOND_US = 1_000_000


def lines(first_s: int, last_s: int, seed: int) -> Iterator[pa.Table]:
    """Yield the words of each second, with event times that go on from batch to batch."""
    chooser = random.Random(seed)
    for second in range(first_s, last_s):
        count = chooser.randrange(1, 40)
        times = [START_US + second * SECOND_US + chooser.randrange(SECOND_US) for _ in range(count)]
        yield pa.table(
            {
                "word": pa.array([chooser.choice(["a", "bb", "ccc", "dddd", None]) for _ in range(count)]),
                "line": pa.array([chooser.randrange(9) for _ in range(count)], pa.int32()),
                "at": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )


def shouted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say each word with how many rows it has had, loudly."""
    for batch in batches:
        words = [None if word is None else word.upper() for word in batch["word"].to_pylist()]
        yield pa.record_batch({"word": pa.array(words, pa.string()), "n": batch["n"]})


def build(pipeline: hf.Pipeline) -> dict[str, hf.Stream]:
    """Return the named streams: every one but `counts` and `long_lines` reads another one."""
    from pyspark.sql import functions as F

    words = pipeline.source("words", WORDS)
    timed = words.withWatermark("at", "1 second")
    counts = (
        timed.groupBy("word", F.window("at", "5 seconds"))
        .agg(F.count("*").alias("n"))
        .select("word", "window.end", "n")
        .named("counts")
    )
    # Grouped by something else: every unit picks its rows from all shards.
    ended = counts.withWatermark("end", "0 seconds")
    tops = (
        ended.groupBy("n", F.window("end", "10 seconds"))
        .agg(F.count("*").alias("words"), F.min("word").alias("first"))
        .named("tops")
    )
    places = counts.groupBy("end", "n").agg(F.max("word").alias("last")).named("places")
    # Grouped by the same key: a unit reads its own shard.
    sums = (
        ended.groupBy(F.col("word").alias("what"), F.window("end", "20 seconds"))
        .agg(F.sum("n").alias("total"), F.max("n").alias("most"))
        .select("window.end", "what", "total", "most")
        .named("sums")
    )
    longest = (
        sums.withWatermark("end", "0 seconds")
        .groupBy(F.window("end", "40 seconds"))
        .agg(F.max("total").alias("total"), F.count("*").alias("rows"))
        .named("longest")
    )
    # A source and a stage that reads it.
    both = (
        timed.select("word", F.col("at").alias("when"), F.col("line").cast("bigint").alias("n"))
        .union(ended.select("word", "end", "n"))
        .groupBy("word", F.window("when", "10 seconds"))
        .agg(F.sum("n").alias("n"), F.count("*").alias("rows"))
        .named("both")
    )
    # Stages without state, before and behind one that has.
    long_lines = words.filter("line > 3").named("long_lines")
    long_words = (
        long_lines.withWatermark("at", "1 second")
        .groupBy("word", F.window("at", "10 seconds"))
        .agg(F.count("*").alias("n"))
        .named("long_words")
    )
    loud = long_words.select("word", "n").mapInArrow(shouted, "word string, n bigint").named("loud")
    made = [counts, tops, places, sums, longest, both, long_lines, long_words, loud]
    return {str(stream.name): stream for stream in made}


def test_every_topology_gives_sparks_rows_also_when_more_comes(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path, shards=3)
    streams = build(flow.pipeline)
    folders = {name: tmp_path / f"out-{name}" for name in ("counts", "tops", "longest")}
    for name, folder in folders.items():
        streams[name].to(hf.parquet(str(folder)))
    streams["counts"].to(hf.parquet(str(tmp_path / "again")))
    topology, _ = flow.pipeline.topology()
    sharded = {stage.name for stage in topology.stages if stage.sharded}
    assert sharded == {"counts", "sums", "both", "long_lines", "long_words", "loud"}
    # What ended with the first run is not touched by the second: its event times lie behind all windows of the first.
    for first_s, last_s, bucket in ((0, 40, 0), (80, 117, 1000)):
        flow.send("words", lines(first_s, last_s, seed=first_s), bucket)
        flow.run()
        for name, stream in streams.items():
            expected = stream.toSpark()
            assert stream.schema == expected.schema, name
            found = flow.rows(name)
            assert found.num_rows > 0, name
            same_rows(found, expected.toArrow())
        for name, folder in {**folders, "again": tmp_path / "again"}.items():
            stream = "counts" if name == "again" else name
            written = pq.read_table(folder)
            same_rows(written.select(streams[stream].columns), flow.rows(stream))


def test_results_of_results_come_while_the_pipeline_runs_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path, shards=3)
    words = flow.pipeline.source("words", WORDS)
    firsts = words.groupBy("word").agg(F.count("*").alias("n")).named("firsts")
    firsts.filter("n > 1").groupBy("n").agg(F.max("word").alias("word")).named("seconds")
    flow.pipeline.create()
    with hf.Producer(flow.store, "words") as producer, hf.Consumer(flow.store, "seconds") as consumer:
        # The second life goes on from where the first one stopped.
        for counts in (range(1, 4), range(4, 6)):
            handle = flow.pipeline.start()
            try:
                for n in counts:
                    producer.send([{"word": "a", "line": 0, "at": dt.datetime(2025, 1, 1, tzinfo=dt.UTC)}])
                    # One word is in one shard only: that the others are done with the bucket is said all the same.
                    if n > 1:
                        table = consumer.poll(60.0)
                        assert table is not None and table.to_pylist() == [{"n": n, "word": "a"}]
            finally:
                handle.stop()


def test_a_union_of_a_stage_and_a_source_ends_whichever_of_them_gets_more(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path, shards=2)
    words, others = flow.pipeline.source("words", WORDS), flow.pipeline.source("others", WORDS)
    timed = words.withWatermark("at", "1 second").groupBy("word", F.window("at", "10 seconds"))
    lasts = timed.agg(F.max("at").alias("at"), F.sum("line").cast("int").alias("line")).named("lasts")
    both = lasts.select("word", "line", "at").union(others).withWatermark("at", "30 seconds")
    result = both.groupBy("word", F.window("at", "20 seconds")).agg(F.sum("line"), F.count("*")).named("result")
    sent = [
        ("words others", 0, 0),
        ("others", 100, 1000),
        ("", 0, 0),
        ("words", 200, 3000),
        ("others words", 300, 4000),
    ]
    for number, (sources, first_s, bucket) in enumerate(sent):
        for source in sources.split():
            flow.send(source, lines(first_s, first_s + 20, seed=number), bucket)
        flow.run()
        same_rows(flow.rows("lasts"), lasts.toSpark().toArrow())
        same_rows(flow.rows("result"), result.toSpark().toArrow())
    assert flow.rows("result").num_rows == 5 * 4, "each word in the window of each of the four times"


def by_length(keys: pa.RecordBatch) -> pa.Array:
    """Keep words of a length together; those without one come last."""
    return pc.fill_null(pc.utf8_length(keys["word"]), -1)


def moody(keys: pa.RecordBatch) -> pa.Array:
    return pa.array(range(keys.num_rows))


def test_a_function_of_the_keys_decides_the_shard(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path, shards=3)
    timed = flow.pipeline.source("words", WORDS).withWatermark("at", "1 second")
    window = F.window("at", "5 seconds")
    counts = timed.groupBy("word", window).agg(F.count("*").alias("n")).select("word", "window.start", "n")
    counts = counts.named("counts", partition_by=by_length)
    ended = counts.withWatermark("start", "0 seconds").groupBy("word", F.window("start", "10 seconds"))
    sums = ended.agg(F.sum("n").alias("n")).named("sums", partition_by=by_length)
    counts.groupBy("word").agg(F.max("start")).named("hashed")
    topology, _ = flow.pipeline.topology()
    # The same function for the same keys is one-to-one; another one, or none, is not.
    assert [stage.sharded for stage in topology.stages] == [False, True, False]
    flow.send("words", lines(0, 40, seed=7))
    flow.run()
    for stream in (counts, sums):
        same_rows(flow.rows(str(stream.name)), stream.toSpark().toArrow())
    assert flow.rows("hashed").num_rows > 4
    for stream in ("counts", "sums"):
        table = spark.read.format("holdfast").load(f"{flow.store}/{stream}").withColumn("shard", F.spark_partition_id())
        found = {(row.word, row.shard) for row in table.select("word", "shard").collect()}
        assert found == {("a", 1), ("bb", 2), ("ccc", 0), ("dddd", 1), (None, 2)}


def test_a_partition_function_that_does_not_keep_equal_keys_together_stops_with_its_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(tmp_path, shards=2)
    words = flow.pipeline.source("words", WORDS)
    words.groupBy("word").count().named("counts", partition_by=moody)
    flow.send("words", lines(0, 4, seed=1))
    with pytest.raises(UserFunctionFailed, match=r"'moody' gave . and . .* for the same key .*test_topologies.py:\d+"):
        flow.run()


def refused(pipeline: hf.Pipeline, F: Any) -> dict[str, Any]:
    words = pipeline.source("words", WORDS)
    counts = words.groupBy("word").agg(F.count("*").alias("n"), F.max("at").alias("at")).named("counts")
    timed = counts.withWatermark("at", "1 second")
    timed.groupBy(F.window("at", "1 second")).count().named("timed")
    return {
        "has a stream 'counts' already": lambda: words.select("word").named("counts"),
        "the stream 'counts' has a name already": lambda: counts.named("other"),
        "NUM_COLUMNS_MISMATCH": lambda: counts.union(words.select("word")),
        "UNRESOLVED_COLUMN": lambda: counts.unionByName(words),
        "the stream 'counts' has no watermark": lambda: counts.groupBy(F.window("at", "1 second")).count().named("x"),
        "not a column of the stream 'counts'": lambda: (
            counts.withColumn("later", F.when(F.col("n") > 1, F.col("at")))
            .withWatermark("later", "1 second")
            .groupBy(F.window("later", "1 second"))
            .count()
            .named("x")
        ),
        "the stream 'counts' is in the stage 'x' twice": lambda: counts.union(counts.filter("n > 1")).named("x"),
        "partition_by needs a function": lambda: words.groupBy("word").count().named("x", partition_by="word"),
        "partition_by=by_length decides where the keys of groupBy go": lambda: words.select("word").named(
            "x", partition_by=by_length
        ),
        "the stage 'x' has none": lambda: words.groupBy().count().named("x", partition_by=by_length),
        r"give the result a name, with .named\('...'\)": lambda: counts.groupBy("n").count().groupBy("count"),
    }


def test_wrong_topologies_are_refused_at_the_users_line(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    for told, call in refused(hf.Pipeline("wrong", store=str(tmp_path)), F).items():
        with pytest.raises(Exception, match=told) as caught:
            call()
        assert "test_topologies.py:" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])]), told
