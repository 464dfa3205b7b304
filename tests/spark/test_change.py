"""Pipelines that change between runs, against the very same query as one Spark batch over what is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import WIDTH_US, Flow, same_rows
from tests.spark.test_topologies import WORDS, lines, shouted

import holdfast as hf
from holdfast.cli.pipeline_status import status_of
from holdfast.connect import catalog
from holdfast.errors import HoldfastError, StoreUnfit, StreamTaken
from holdfast.log.store import open_store
from holdfast.log.stream_log import StreamLog
from holdfast.model import Trimmed
from holdfast.ports import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MORE = "word string, who string, line int, at timestamp"
Streams = dict[str, hf.Stream]
Build = Callable[[hf.Stream, hf.Stream], list[hf.Stream]]


def totals_of(words: hf.Stream) -> hf.Stream:
    """Return a stage that is there from the beginning; its frames do not carry an event time."""
    from pyspark.sql import functions as F

    timed = words.withWatermark("at", "1 second")
    windows = timed.groupBy("word", F.window("at", "5 seconds")).agg(F.sum("line").alias("lines"))
    return windows.select("word", "window.end", "lines").named("totals")


def small(words: hf.Stream, others: hf.Stream) -> list[hf.Stream]:
    """Return what the script says first: no stage asks for the event time of `others`, or for its keys."""
    return [totals_of(words), others.filter("line > 3").named("long")]


def script(folder: Path, build: Build, schema: str = WORDS) -> tuple[Flow, Streams]:
    """Return a flow whose pipeline is what a script of this moment says."""
    flow = Flow(folder, shards=3)
    made = build(flow.pipeline.source("words", schema), flow.pipeline.source("others", WORDS))
    return flow, {str(stream.name): stream for stream in made}


def send(flow: Flow, first_s: int, last_s: int, bucket: int = 0) -> None:
    for number, source in enumerate(("words", "others")):
        flow.send(source, lines(first_s, last_s, seed=first_s + number), bucket)


def folder_of(flow: Flow) -> Store:
    return open_store(f"{flow.store}/flow")


def check(flow: Flow, streams: Streams) -> None:
    for stream in streams.values():
        found = flow.rows(str(stream.name))
        assert found.num_rows > 0, stream.name
        same_rows(found, stream.toSpark().toArrow())


def large(words: hf.Stream, others: hf.Stream) -> list[hf.Stream]:
    """Return the old stages, and new ones before them in the script, between them and behind them."""
    from pyspark.sql import functions as F

    # The frames of `others` are not sharded for it, and carry no event time.
    timed = others.withWatermark("at", "1 second")
    windows = timed.groupBy("line", F.window("at", "5 seconds")).agg(F.count("*").alias("n")).named("windows")
    old, long = small(words, others)
    ended = old.withWatermark("end", "0 seconds")
    later = ended.groupBy("lines", F.window("end", "10 seconds")).agg(F.count("*").alias("words")).named("later")
    loud = later.select(F.lit("x").alias("word"), F.col("words").alias("n"))
    both = words.select("word", "at").union(long.select("word", "at")).filter("word <> 'a'").named("both")
    return [windows, old, long, later, loud.mapInArrow(shouted, "word string, n bigint").named("loud"), both]


def test_new_stages_and_sinks_catch_up_from_the_log(spark: SparkSession, tmp_path: Path) -> None:
    before, _ = script(tmp_path, small)
    send(before, 0, 40)
    before.run()
    old = before.rows("totals")
    flow, streams = script(tmp_path, large)
    streams["totals"].to(hf.parquet(str(tmp_path / "totals")))
    streams["windows"].to(hf.parquet(str(tmp_path / "windows")))
    flow.run()
    assert flow.rows("totals").equals(old), "what was there stays as it was"
    check(flow, streams)
    for first_s, bucket in ((80, 1000), (120, 2000)):
        send(flow, first_s, first_s + 10, bucket)
        flow.run()
        check(flow, streams)
        for name in ("totals", "windows"):
            same_rows(pq.read_table(tmp_path / name).select(streams[name].columns), flow.rows(name))
    (stage,) = [each for each in status_of(folder_of(flow), 0).streams if each.name == "windows"]
    assert stage.units is not None and stage.units.begun is None, "nothing was missing when it began"


def trim(flow: Flow, stream: str, before_bucket: int) -> None:
    """Let go of a stream's first rows, as their writer does when nobody needs them."""
    topology = catalog.load(folder_of(flow)).topology
    with StreamLog.open(
        folder_of(flow), [stream], "trimmer", shards=topology.shards, bucket_width_us=topology.bucket_width_us
    ) as log:
        log.commit([Trimmed(stream, before_bucket)]).result()


def test_what_was_gone_when_a_stage_began_is_said(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, streams = script(tmp_path, small)
    streams["totals"].to(hf.parquet(str(tmp_path / "totals")))
    send(before, 0, 40)
    before.run()
    first = catalog.load(folder_of(before)).topology
    middle = (1_760_000_000_000_000 // WIDTH_US) + 20
    assert first.bucket_width_us == WIDTH_US
    for stream in ("others", "totals"):
        trim(before, stream, middle)
    flow, streams = script(tmp_path, large)
    streams["totals"].to(hf.parquet(str(tmp_path / "totals")))
    streams["totals"].to(hf.parquet(str(tmp_path / "again")))
    with caplog.at_level(logging.WARNING, "holdfast"):
        flow.run()
    check(flow, {"windows": streams["windows"]})
    with hf.Consumer(flow.store, "later") as consumer:
        assert sum(table.num_rows for table in consumer) > 0
    again = pq.read_table(tmp_path / "again")
    same_rows(again.select(streams["totals"].columns), flow.rows("totals"))
    assert again.num_rows < pq.read_table(tmp_path / "totals").num_rows
    said = "\n".join(caplog.messages)
    assert "the stage 'windows' is new and catches up with 'others' from 2025-10-09 08:53:22.000000 UTC on" in said
    assert "the sink 'totals-parquet-2' has the rows of 'totals' from 2025-10-09" in said
    status = status_of(folder_of(flow), 0)
    begun = {each.name: each.units.begun for each in status.streams if each.units is not None}
    assert begun["windows"] == begun["later"] == middle and begun["totals"] is None
    assert {sink.name: sink.begun for sink in status.sinks} == {"totals-parquet": None, "totals-parquet-2": middle}


def test_a_sink_that_starts_at_the_latest_gets_what_comes(spark: SparkSession, tmp_path: Path) -> None:
    before, _ = script(tmp_path, small)
    send(before, 0, 10)
    before.run()
    old = before.rows("totals").num_rows
    flow, streams = script(tmp_path, small)
    streams["totals"].to(hf.parquet(str(tmp_path / "new")), start="latest")
    flow.run()
    send(flow, 40, 50, 1000)
    flow.run()
    rows = flow.rows("totals")
    same_rows(pq.read_table(tmp_path / "new").select(rows.column_names), rows.slice(old))


def test_sinks_may_go_come_back_move_and_change_places(spark: SparkSession, tmp_path: Path) -> None:
    def run(turn: int, *folders: str) -> None:
        flow, streams = script(tmp_path, small)
        for folder in folders:
            streams["totals"].to(hf.parquet(str(tmp_path / folder)))
        send(flow, 100 * turn, 100 * turn + 5, 1000 * turn)
        flow.run()

    run(0, "one")
    run(1, "two", "one")
    run(2, "two")
    run(3, "one", "two")
    flow, _ = script(tmp_path, small)
    rows = flow.rows("totals")
    for folder in ("one", "two"):
        same_rows(pq.read_table(tmp_path / folder).select(rows.column_names), rows)
    run(4, "one", "moved")
    rows = flow.rows("totals")
    parts = [pq.read_table(tmp_path / folder).select(rows.column_names) for folder in ("two", "moved")]
    assert all(part.num_rows for part in parts)
    same_rows(pa.concat_tables(parts), rows)


def test_stages_may_go_and_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    flow, streams = script(tmp_path, large)
    send(flow, 0, 10)
    flow.run()
    smaller, _ = script(tmp_path, small)
    send(smaller, 80, 90, 1000)
    smaller.run()
    with pytest.raises(HoldfastError, match="no stream 'windows'"):
        smaller.rows("windows")
    with pytest.raises(StoreUnfit, match="stage 'windows': it had a groupBy, now it has none"):
        script(tmp_path, lambda words, others: [*small(words, others), words.select("line").named("windows")])[0].run()
    flow, streams = script(tmp_path, large)
    send(flow, 120, 130, 2000)
    flow.run()
    check(flow, streams)


def whispered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for another function."""
    yield from batches


def refused(F: Any) -> dict[str, Callable[[hf.Stream], Any]]:
    """Return scripts that would make something else of what is there, by what is said of them."""

    def base(words: hf.Stream, **other: Callable[[], Any]) -> None:
        if "averages" in other:
            other["averages"]()
        else:
            averages(words)
        if "loud" in other:
            other["loud"]()
        else:
            words.select("word", F.lit(1).cast("bigint").alias("n")).mapInArrow(shouted, "word string, n bigint").named(
                "loud"
            )

    def averages(
        words: hf.Stream,
        keys: tuple[str, ...] = ("word",),
        window: str = "5 seconds",
        value: Any = None,
        by: Any = None,
    ) -> None:
        timed = (by or words).withWatermark("at", "1 second").groupBy(*keys, F.window("at", window))
        timed.agg((F.avg("line") if value is None else value).alias("a")).named("averages")

    def steps(words: hf.Stream) -> None:
        words.select("word", F.lit(2).cast("bigint").alias("n")).mapInArrow(shouted, "word string, n bigint").named(
            "loud"
        )

    return {
        "": base,
        "groupBy was on word, now on word, line": lambda w: base(w, averages=lambda: averages(w, ("word", "line"))),
        "its window was 5 s every 5 s of at, now 6 s": lambda w: base(
            w, averages=lambda: averages(w, window="6 seconds")
        ),
        r"its aggregates were avg\(.*line.*\) double, now sum\(line\) bigint": lambda w: base(
            w, averages=lambda: averages(w, value=F.sum("line"))
        ),
        r"a step on 'words' was nothing, now filter\(": lambda w: base(
            w, averages=lambda: averages(w, by=w.filter("line > 1"))
        ),
        r"a step on 'words' was select\(word, 1 AS n\), now select\(word, 2 AS n\)": lambda w: base(
            w, loud=lambda: steps(w)
        ),
        r"was mapInArrow\(shouted\) .*, now mapInArrow\(whispered\)": lambda w: base(
            w,
            loud=lambda: (
                w.select("word", F.lit(1).cast("bigint").alias("n"))
                .mapInArrow(whispered, "word string, n bigint")
                .named("loud")
            ),
        ),
    }


def test_what_would_become_something_else_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    for told, write in refused(F).items():
        flow = Flow(tmp_path, shards=3)
        write(flow.pipeline.source("words", WORDS))
        if not told:
            flow.pipeline.create()
            continue
        with pytest.raises(StoreUnfit, match=told) as caught:
            flow.pipeline.create()
        assert "new name" in str(caught.value)
    for told, schema in {
        "source 'words': the column 'line' is gone": "word string, at timestamp",
        "source 'words': the column 'line' was int32, now int64": "word string, line bigint, at timestamp",
        "'who' is new and may not be null": f"{WORDS}, who string not null",
    }.items():
        flow = Flow(tmp_path, shards=3)
        flow.pipeline.source("words", schema)
        with pytest.raises(StoreUnfit, match=told):
            flow.pipeline.create()


def with_names(words: hf.Stream, others: hf.Stream) -> list[hf.Stream]:
    from pyspark.sql import functions as F

    timed = words.withWatermark("at", "1 second")
    by_who = timed.groupBy("who", F.window("at", "5 seconds")).agg(F.count("*").alias("n")).named("by_who")
    return [*windows_of(words, others), by_who, words.select("who", "word").filter("who is null").named("nobody")]


def windows_of(words: hf.Stream, others: hf.Stream) -> list[hf.Stream]:
    from pyspark.sql import functions as F

    timed = words.withWatermark("at", "1 second").withColumn("longer", F.length("word"))
    found = timed.groupBy("word", "longer", F.window("at", "5 seconds")).agg(F.sum("line").alias("n"))
    return [
        found.named("windows"),
        words.select("line", "word").filter("line > 3").named("long"),
        others.filter("line < 3").named("few"),
    ]


def test_a_column_is_added_and_old_rows_have_null_in_it(spark: SparkSession, tmp_path: Path) -> None:
    before, _ = script(tmp_path, windows_of)
    send(before, 0, 20)
    before.run()
    old = before.rows("windows")
    before.pipeline.create()
    # This one began with the old columns, and goes on with them.
    reader = hf.Consumer(before.store, "words")
    assert (first := reader.poll()) is not None and first.column_names == ["word", "line", "at"]
    flow, streams = script(tmp_path, with_names, MORE)
    flow.run()
    assert flow.rows("windows").equals(old), "what does not look at the new column is what it was"
    check(flow, streams)
    # A program that knows nothing of the new column, and one that does.
    send(flow, 60, 70, 1000)
    named = [batch.append_column("who", pa.array(["me"] * batch.num_rows)) for batch in lines(100, 110, seed=3)]
    flow.send("words", named, 2000)
    flow.run()
    check(flow, streams)
    assert "me" in flow.rows("by_who")["who"].to_pylist()
    seen = []
    while (table := reader.poll()) is not None:
        seen.append(table)
    assert pa.concat_tables(seen).column_names == ["word", "line", "at"]
    everything = spark.read.format("holdfast").load(f"{flow.store}/words")
    assert everything.columns == ["word", "who", "line", "at"]
    assert sum(table.num_rows for table in (first, *seen)) == everything.count()
    assert everything.filter("who = 'me'").count() == sum(batch.num_rows for batch in named)
    reader.close()
    with pytest.raises(StoreUnfit, match="'who' is gone"):
        script(tmp_path, windows_of)[0].run()
    with pytest.raises(StoreUnfit, match="stage 'all': the columns of 'words', which all go through it, got who"):
        script(tmp_path / "other", lambda words, others: [words.filter("line > 3").named("all")])[0].pipeline.create()
        script(tmp_path / "other", lambda words, others: [words.filter("line > 3").named("all")], MORE)[
            0
        ].pipeline.create()


def test_nothing_changes_while_a_node_runs(spark: SparkSession, tmp_path: Path) -> None:
    flow, _ = script(tmp_path, small)
    handle = flow.pipeline.start()
    try:
        same, _ = script(tmp_path, small)
        same.pipeline.create()
        before = catalog.load(folder_of(flow))
        with pytest.raises(StreamTaken, match="runs, and what it is cannot change meanwhile"):
            script(tmp_path, large)[0].pipeline.create()
        assert catalog.load(folder_of(flow)) == before
    finally:
        handle.stop()
    script(tmp_path, large)[0].pipeline.create()


def test_a_new_stage_catches_up_while_the_old_ones_go_on(spark: SparkSession, tmp_path: Path) -> None:
    before, _ = script(tmp_path, small)
    old = pa.concat_tables(lines(0, 2000, seed=1), promote_options="default")
    for source in ("words", "others"):
        before.send(source, [old])
    flow, streams = script(tmp_path, large)
    with hf.Consumer(flow.store, "long") as consumer, hf.Producer(flow.store, "others") as producer:
        handle = before.pipeline.start()
        try:
            wait_for(consumer, old)
        finally:
            handle.stop()
        handle = flow.pipeline.start()
        try:
            for batch in lines(3000, 3005, seed=2):
                producer.send(batch)
                wait_for(consumer, batch)
        finally:
            handle.stop()
    flow.run()
    check(flow, streams)


def wait_for(consumer: hf.Consumer, sent: pa.Table) -> None:
    """Return when what `long` takes of the rows has come out."""
    waiting = sum(line > 3 for line in sent["line"].to_pylist())
    while waiting > 0:
        table = consumer.poll(60.0)
        assert table is not None
        waiting -= table.num_rows


def test_a_query_brings_a_new_column(spark: SparkSession, tmp_path: Path) -> None:
    """Its spark_checkpoint goes on; files that lack the column give null, as Spark reads them."""
    from pyspark.sql import functions as F

    def run(number: int, schema: str) -> hf.Stream:
        pipeline = hf.Pipeline("flow", store=str(tmp_path / "store"), shards=2, bucket="100 milliseconds")
        table = pa.table({"k": [1, 2], "v": [number, number], **({"w": ["x", "y"]} if "w" in schema else {})})
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet")
        rows = pipeline.source("rows", spark.readStream.schema(schema).parquet(str(tmp_path / "in")))
        rows.filter("v >= 0").select("k", "v").named("kept")
        if "w" in schema:
            rows.groupBy("w").agg(F.count("*").alias("n")).named("by_w")
        pipeline.run(available_now=True)
        return rows

    run(0, "k bigint, v bigint")
    rows = run(1, "k bigint, w string, v bigint")
    same_rows(
        rows.toSpark().toArrow(),
        pa.table({"k": [1, 2, 1, 2], "w": [None, None, "x", "y"], "v": [0, 0, 1, 1]}),
    )
    with hf.Consumer(str(tmp_path / "store"), "by_w") as consumer:
        found = [row for table in consumer for row in table.to_pylist()]
    assert {row["w"]: row["n"] for row in found} == {None: 2, "x": 1, "y": 1}


def test_a_pipeline_goes_on_when_another_one_s_stream_gets_a_column(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def second_of(first: Flow) -> tuple[Flow, Streams]:
        flow = Flow(tmp_path / "second")
        words = flow.pipeline.source("their_words", hf.stream(first.store, "words"))
        timed = words.withWatermark("at", "1 second").groupBy("line", F.window("at", "5 seconds"))
        made = {"sums": timed.agg(F.count("word").alias("n")).named("sums")}
        if "who" in words.columns:
            # It wants an event time too, and frames that have the column and frames that have not.
            timed = words.withWatermark("at", "1 second").groupBy("who", F.window("at", "5 seconds"))
            made["by_who"] = timed.agg(F.count("*").alias("n")).named("by_who")
        return flow, made

    first, _ = script(tmp_path / "first", windows_of)
    send(first, 0, 10)
    first.run()
    second, streams = second_of(first)
    second.run()
    check(second, streams)
    first, _ = script(tmp_path / "first", with_names, MORE)
    named = [batch.append_column("who", pa.array(["me"] * batch.num_rows)) for batch in lines(60, 70, seed=3)]
    first.send("words", named, 1000)
    first.run()
    second, streams = second_of(first)
    assert set(streams) == {"sums", "by_who"}
    second.run()
    check(second, streams)
    with pytest.raises(StoreUnfit, match="its rows were those of another pipeline's 'words', now its own"):
        flow = Flow(tmp_path / "second")
        flow.pipeline.source("their_words", MORE)
        flow.pipeline.create()
