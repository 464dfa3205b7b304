"""A pipeline on real Spark, watched while it runs: handle, listener, metrics, live line; and what stops it, by line."""

from __future__ import annotations

import importlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.flow import Flow, threads_of_ours

import holdfast as hf
from holdfast.errors import BadRow, Misconfigured, PipelineFailed, UserFunctionFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT_S = 120.0
SALES = "item string, price bigint, at timestamp"
STEP_US = 1_000_000


def sales(number: int) -> pa.Table:
    at = pa.array([number % 1000 * STEP_US] * 2, pa.timestamp("us", "UTC"))
    return pa.table({"item": ["apple", "bread"], "price": [number, number + 1], "at": at})


def scrape(url: str) -> dict[str, float]:
    """Return the samples of a scrape by name, summed over labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


class Watcher(hf.Listener):
    """Writes down what it is told, and says when so many rows have gone in and a watermark is known."""

    def __init__(self, rows: int) -> None:
        self.events: list[Any] = []
        self.seen = threading.Event()
        self._left = rows

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(event)
        self._left -= event.progress["numInputRows"]
        if self._left <= 0 and "watermark" in event.progress["eventTime"]:
            self.seen.set()

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(event)


class PySparksOwn(StreamingQueryListener):
    """A listener that somebody has already."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.told.append(f"started {event.name}")

    def onQueryProgress(self, event: Any) -> None:
        self.told.append("progress")

    def onQueryTerminated(self, event: Any) -> None:
        self.told.append(f"terminated {event.exception}")


def test_handle_listener_and_metrics_of_a_pipeline_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path)
    source = flow.pipeline.source("north", SALES)
    totals = source.withWatermark("at", "1 second").groupBy("item", F.window("at", "5 seconds"))
    totals.agg(F.sum("price").alias("total")).named("totals")
    watcher, own = Watcher(rows=20), PySparksOwn()
    flow.pipeline.addListener(watcher)
    flow.pipeline.addListener(own)
    handle = flow.pipeline.start(metrics_port=0)
    try:
        url = handle.metrics_url
        assert url is not None and url.startswith("http://127.0.0.1:")
        with hf.Producer(flow.store, "north") as producer:
            for number in range(10):
                producer.send(sales(number))
            assert watcher.seen.wait(LIMIT_S), handle.status
            first = scrape(url)
        assert first["holdfast_source_rows_total"] == first["holdfast_stage_rows_in_total"] == 20
        assert first["spark_streaming_eventTime_watermark"] == (9 - 1) * 1000
        # The windows that are open at 8 s, of two items.
        assert first["spark_streaming_states_rowsTotal"] == first["holdfast_stage_state_rows"] == 2
        assert first["spark_streaming_states_usedBytes"] > 0 and first["holdfast_waves_total"] > 0
        progress = handle.lastProgress
        assert progress is not None and progress["id"] == handle.id and progress.runId == uuid.UUID(handle.runId)
        assert progress.stateOperators[0].operatorName == "totals"
        assert progress.eventTime["watermark"] == "1970-01-01T00:00:08.000Z"
        assert handle.isActive and handle.exception() is None and not handle.awaitTermination(0.01)
        assert handle.status["message"] in ("Waiting for data to arrive", "Processing new data")
        second = scrape(url)
        assert all(
            second[name] >= value for name, value in first.items() if name.endswith("_total") and "Rate" not in name
        )
    finally:
        handle.stop()
    assert handle.status == {"message": "Stopped", "isDataAvailable": False, "isTriggerActive": False}
    assert [type(event).__name__ for event in (watcher.events[0], watcher.events[-1])] == [
        "QueryStartedEvent",
        "QueryTerminatedEvent",
    ]
    assert {event.id for event in (watcher.events[0], watcher.events[-1])} == {uuid.UUID(handle.id)}
    assert own.told[0] == "started flow" and own.told[-1] == "terminated None" and "progress" in own.told
    assert handle.awaitTermination() is True
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=30)
    assert threads_of_ours() == []


def test_what_stops_a_pipeline_is_raised_with_the_users_line(spark: SparkSession, tmp_path: Path) -> None:
    def picky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 3 in batch.column("price").to_pylist():
                raise ValueError("no such price")
            yield batch

    flow = Flow(tmp_path)
    line = picky.__code__.co_firstlineno + 3
    checked = flow.pipeline.source("north", SALES).mapInArrow(picky, SALES)
    checked.groupBy("item").count().named("counts")
    flow.send("north", [sales(1), sales(3)])
    own = PySparksOwn()
    flow.pipeline.addListener(own)
    handle = flow.pipeline.start(available_now=True)
    with pytest.raises(UserFunctionFailed, match=rf"no such price \(at {__file__}:{line}\)") as raised:
        handle.awaitTermination(LIMIT_S)
    assert handle.exception() is raised.value
    assert handle.status["message"] == f"Terminated with exception: {raised.value}"
    assert own.told[-1] == f"terminated {raised.value}"


def test_a_function_that_workers_cannot_import_ends_the_pipeline_and_is_not_tried_for_ever(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def same(batches):\n    yield from batches\n")
    monkeypatch.syspath_prepend(tmp_path)
    flow = Flow(tmp_path)
    mapped = flow.pipeline.source("north", SALES).mapInArrow(importlib.import_module("only_here").same, SALES)
    mapped.groupBy("item").count().named("counts")
    flow.send("north", [sales(1)])
    with pytest.raises(PipelineFailed, match=r"No module named 'only_here'.*has to be importable by workers"):
        flow.run()


def test_an_expression_and_an_aggregate_that_fail_name_their_lines(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow(tmp_path / "expression")
    north = flow.pipeline.source("north", SALES)
    line = sys._getframe().f_lineno + 1
    divided = north.withColumn("share", F.expr("price / (price - 3)"))
    divided.groupBy("item").count().named("counts")
    flow.send("north", [sales(3)])
    with pytest.raises(BadRow, match=rf"\(at {__file__}:{line}\)$"):
        flow.run()
    flow = Flow(tmp_path / "aggregate")
    grouped = flow.pipeline.source("north", SALES).groupBy("item")
    line = sys._getframe().f_lineno + 1
    grouped.agg(F.sum("price").alias("total")).named("totals")
    flow.send("north", [sales(2**62), sales(2**62)])
    with pytest.raises(BadRow, match=rf"\(at {__file__}:{line}\)$"):
        flow.run()


def test_what_cannot_be_is_refused_before_anything_is_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(tmp_path)
    flow.pipeline.source("north", SALES).groupBy("item").count().named("counts")
    with pytest.raises(Misconfigured, match="metrics_port is 70000"):
        flow.pipeline.start(metrics_port=70_000)
    monkeypatch.setenv("HOLDFAST_LOG", "xml")
    with pytest.raises(Misconfigured, match="HOLDFAST_LOG is 'xml'"):
        flow.pipeline.start()
    assert not (tmp_path / "store").exists()


SCRIPT = """
import logging, sys
import holdfast as hf
pipeline = hf.Pipeline("live", store=sys.argv[1], shards=2)
pipeline.source("north", "item string").groupBy("item").count().named("counts")

class Idle(hf.Listener):
    def onQueryIdle(self, event):
        logging.getLogger("holdfast").warning("password=%s", "hunter2")
        if sys.argv[2] == "stop":
            handle.request_stop()

pipeline.addListener(Idle())
handle = pipeline.start()
handle.awaitTermination()
"""


def started(script: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "holdfast.cli.main", "run", *arguments]
    return subprocess.Popen(command, env=environment | options.pop("environment", {}), **options)


def test_a_run_on_a_terminal_has_a_live_line(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    script = tmp_path / "live.py"
    with started(script, str(script), str(tmp_path / "store"), "go on", stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"live: 0 rows/s in, 0 out" not in shown:
            shown += os.read(ours, 4096)
        process.terminate()
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM, "the script leaves the signal to Python, which ends it"
    os.close(ours)


def test_logs_are_json_when_asked(tmp_path: Path) -> None:
    script = tmp_path / "logs.py"
    said = tmp_path / "said"
    with open(said, "wb") as file:
        arguments = ["--quiet", str(script), str(tmp_path / "store"), "stop"]
        with started(script, *arguments, stderr=file, environment={"HOLDFAST_LOG": "json"}) as process:
            assert process.wait(LIMIT_S) == 0, said.read_text()
    (line,) = [json.loads(line) for line in said.read_text().splitlines()]
    assert (line["pipeline"], line["stage"], line["level"]) == ("live", None, "WARNING")
    assert line["node"].startswith("node-") and "hunter2" not in line["message"]
