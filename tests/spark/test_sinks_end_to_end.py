"""Out of a running pipeline: Parquet that nobody sees half of, a console, and consumers with a place of their own."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import Flow, same_rows, threads_of_ours

import holdfast as hf
from holdfast.errors import HoldfastError, SessionUnfit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 60.0


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": f"row {n}"} for n in range(first, first + count)]


class Watcher(threading.Thread):
    """Reads a folder again and again as any reader of Parquet does, and keeps what it saw."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="watcher")
        self.folder = folder
        self.counts: list[int] = []
        self.error: Exception | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            while not self.done.is_set():
                if any(not name.startswith((".", "_")) for name in os.listdir(self.folder)):
                    self.counts.append(pq.read_table(self.folder).num_rows)
        except Exception as error:
            self.error = error


def test_a_reader_never_sees_half_of_a_file_while_the_sink_writes(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    result = flow.pipeline.source("rows", "id bigint, text string").select("*").named("result")
    result.to(hf.parquet(str(out), every="100 milliseconds")).to(hf.console(rows=2))
    flow.pipeline.create()
    watcher = Watcher(out)
    handle = flow.pipeline.start()
    watcher.start()
    with hf.Producer(flow.store, "rows") as producer:
        for number in range(20):
            producer.send(rows(number * 1000, 1000))
    with hf.Consumer(flow.store, "result") as consumer:
        seen = 0
        while seen < 20_000:
            found = consumer.poll(PATIENCE_S)
            assert found is not None
            seen += found.num_rows
    handle.stop()
    flow.run()
    watcher.done.set()
    watcher.join()
    assert watcher.error is None
    # Files only appear whole, so counts are of whole sends, and never go back.
    assert watcher.counts == sorted(watcher.counts) and all(count % 1000 == 0 for count in watcher.counts)
    assert all(name.endswith(".parquet") and not name.startswith((".", "_")) for name in os.listdir(out))
    for read in (pq.read_table(out), spark.read.parquet(str(out)).toArrow(), result.toSpark().toArrow()):
        same_rows(read.select(["id", "text"]), flow.rows("result"))
    assert sorted(pq.read_table(out)["id"].to_pylist()) == list(range(20_000))
    assert not threads_of_ours()


def test_the_console_shows_rows_and_counts_the_rest(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = Flow(tmp_path)
    flow.pipeline.source("rows", "id bigint, text string").select("*").named("result").to(hf.console(rows=2))
    flow.send("rows", [rows(0, 5)])
    flow.run()
    shown = capsys.readouterr().out
    assert "result" in shown and "row 0" in shown and "row 1" in shown and "3 more rows" in shown


def test_a_named_consumer_goes_on_where_it_committed_while_the_pipeline_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow(tmp_path)
    flow.pipeline.source("rows", "id bigint, text string").select("id").named("result")
    flow.send("rows", [rows(0, 3)])
    flow.run()
    with hf.Consumer(flow.store, "result", name="reader") as consumer:
        first = consumer.poll(PATIENCE_S)
        assert first is not None and first["id"].to_pylist() == [0, 1, 2]
        consumer.commit()
    flow.send("rows", [rows(3, 2)], bucket=50)
    flow.run()
    for _ in range(2):
        # What is not committed comes again.
        with hf.Consumer(flow.store, "result", name="reader") as consumer:
            assert pa.concat_tables(list(consumer))["id"].to_pylist() == [3, 4]


def test_count_windows_slide_over_waves_and_runs(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    def declared() -> Flow:
        flow = Flow(tmp_path)
        source = flow.pipeline.source("rows", "key string, value bigint")
        grouped = source.groupBy("key", hf.count_window(4, 2)).agg(
            F.sum("value").alias("total"), F.count("*").alias("n")
        )
        grouped.named("result")
        return flow

    def sent(*values: int) -> list[dict[str, Any]]:
        return [{"key": key, "value": value} for value in values for key in ("a", "b")]

    flow = declared()
    flow.send("rows", [sent(1), sent(2, 3), sent(4, 5, 6), sent(7)])
    handle = flow.pipeline.start()
    with hf.Consumer(flow.store, "result") as consumer:
        windows: list[dict[str, Any]] = []
        while len(windows) < 4:
            found = consumer.poll(PATIENCE_S)
            assert found is not None
            windows += found.to_pylist()
    handle.stop()
    assert sorted((row["key"], row["window"]["number"], row["total"], row["n"]) for row in windows) == [
        (key, *window) for key in "ab" for window in [(0, 10, 4), (1, 18, 4)]
    ]
    # The end of the input closes what is open: windows 2 and 3 have three tuples and one.
    declared().run()
    ended = flow.rows("result").to_pylist()[4:]
    assert sorted((row["key"], row["window"]["number"], row["total"], row["n"]) for row in ended) == [
        (key, *window) for key in "ab" for window in [(2, 18, 3), (3, 7, 1)]
    ]


def test_a_running_aggregate_has_one_row_per_bucket_and_ends_at_sparks(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    flow = Flow(tmp_path)
    source = flow.pipeline.source("rows", "key string, value bigint")
    result = source.groupBy("key").agg(F.avg("value").alias("mean"), F.count("*").alias("n")).named("result")
    batch = [{"key": key, "value": n} for n, key in enumerate("abcab")]
    flow.send("rows", [batch, batch[:1], batch[:2] * 3])
    flow.run()
    found = flow.rows("result").to_pylist()
    assert [row["n"] for row in found if row["key"] == "a"] == [2, 3, 6]
    last = {row["key"]: row for row in found}
    assert last == {row["key"]: row for row in result.toSpark().toArrow().to_pylist()}


def test_a_session_that_cannot_run_waves_is_told_what_it_lacks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.spark import session

    flow = Flow(tmp_path)
    flow.pipeline.source("rows", "id bigint").select("id").named("result")
    lacking = {**session.REQUIRED, "spark.task.cpus": ("7", "a test")}
    monkeypatch.setattr(session, "REQUIRED", lacking)
    with pytest.raises(SessionUnfit, match=r"spark\.task\.cpus is not set and must be '7'.*Use hf\.session"):
        flow.pipeline.start()
    assert not (tmp_path / "store").exists()


def test_a_spark_connect_session_is_refused_when_the_first_source_is_declared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import SparkSession as Session

    # What a Connect session is to us: one without a JVM. The package it needs is not among our dependencies.
    monkeypatch.setattr(Session, "getActiveSession", lambda: object())
    with pytest.raises(SessionUnfit, match=r"Spark Connect session.*Unset SPARK_REMOTE.*\(at .*\.py:\d+\)"):
        Flow(tmp_path).pipeline.source("rows", "id bigint")


def test_two_nodes_of_one_pipeline_do_not_run_together(spark: SparkSession, tmp_path: Path) -> None:
    def declared() -> hf.Pipeline:
        flow = Flow(tmp_path)
        flow.pipeline.source("rows", "id bigint").select("id").named("result")
        return flow.pipeline

    handle = declared().start()
    try:
        with pytest.raises(HoldfastError, match=r"result.*node-"):
            declared().start()
        with hf.Producer(f"{tmp_path}/store", "rows") as producer:
            producer.send([{"id": 1}])
            with pytest.raises(HoldfastError, match=r"rows.*producer-producer"):
                hf.Producer(f"{tmp_path}/store", "rows")
    finally:
        handle.stop()
