"""Metrics for Prometheus: what a scrape gets, and from where."""

from __future__ import annotations

import math
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.node.node_statistics import NOW_US, statistics

from holdfast.errors import Misconfigured
from holdfast.node.metrics import MetricsServer
from holdfast.node.metrics_port import PORT_VARIABLE, chosen_port
from holdfast.node.statistics import Trouble


class Node:
    """What a server shows, to be changed by a test."""

    def __init__(self) -> None:
        self.now = statistics()
        self.server = MetricsServer(0)
        self.server.show(lambda: self.now)

    def scrape(self, **headers: str) -> tuple[str, str]:
        """Return the content type and the text."""
        request = urllib.request.Request(self.server.url, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def values(self) -> dict[tuple[str, ...], float]:
        """Return every sample by name and labels, without the pipeline's."""
        found = {}
        for family in text_string_to_metric_families(self.scrape()[1]):
            for sample in family.samples:
                found[(sample.name, *sorted(value for name, value in sample.labels.items() if name != "pipeline"))] = (
                    sample.value
                )
        return found


@pytest.fixture
def node() -> Iterator[Node]:
    found = Node()
    yield found
    found.server.close()


def test_a_scrape_has_what_spark_calls_by_the_same_names(node: Node) -> None:
    found = node.values()
    query = "retail"
    assert found["spark_streaming_inputRate_total", query] == 300
    assert found["spark_streaming_processingRate_total", query] == 250
    assert found["spark_streaming_latency", query] == 800
    assert found["spark_streaming_eventTime_watermark", query] == (NOW_US - 2_000_000) // 1000
    assert found["spark_streaming_states_rowsTotal", query] == 64
    assert found["spark_streaming_states_usedBytes", query] == 2_000_000


def test_a_scrape_has_stages_sources_sinks_and_phases(node: Node) -> None:
    found = node.values()
    assert found["holdfast_stage_rows_in_total", "averages"] == 1000
    assert found["holdfast_stage_rows_late_total", "averages"] == 3
    assert found["holdfast_stage_lag_seconds", "top"] == 0.8
    assert found["holdfast_units", "averages", "running"] == 1
    assert found["holdfast_source_rows_rejected_total", "north"] == 2
    assert found["holdfast_sink_rows_total", "top-parquet"] == 9
    assert found["holdfast_phase_seconds_total", "kernel"] == 1.5
    assert (found[("holdfast_waves_total",)], found[("holdfast_failing",)]) == (100, 0)
    node.now = statistics(trouble=Trouble("sink top-parquet", "no room", 12, NOW_US))
    assert node.values()[("holdfast_failing",)] == 1


def test_what_is_not_known_is_left_out_rather_than_made_up(node: Node) -> None:
    stages = [msgspec.structs.replace(stage, lag_s=None, watermark_us=None) for stage in node.now.stages]
    node.now = statistics(stages=stages)
    found = node.values()
    assert not any(math.isnan(value) for value in found.values())
    for name in ("spark_streaming_latency", "spark_streaming_eventTime_watermark"):
        assert (name, "retail") not in found
    assert ("holdfast_stage_lag_seconds", "top") not in found


def test_every_metric_is_explained_and_typed_and_both_formats_are_sound(node: Node) -> None:
    kind, text = node.scrape()
    assert kind.startswith("text/plain; version=") and "charset=utf-8" in kind
    lines = text.splitlines()
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    for what in ("HELP", "TYPE"):
        assert names == {line.split(" ")[2] for line in lines if line.startswith(f"# {what} ")} & names
        assert all(any(line.startswith(f"# {what} {name} ") for line in lines) for name in names)
    counters = {line.split(" ")[2] for line in lines if line.startswith("# TYPE") and line.endswith(" counter")}
    assert "holdfast_waves_total" in counters and all(name.endswith("_total") for name in counters)
    kind, text = node.scrape(Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert {family.name for family in openmetrics_families(text)} >= {"holdfast_waves", "spark_streaming_latency"}


def test_labels_are_escaped(node: Node) -> None:
    strange = 'a"b\\c\nd'
    node.now = statistics(name=strange)
    samples = [s for family in text_string_to_metric_families(node.scrape()[1]) for s in family.samples]
    assert {s.labels.get("pipeline", s.labels.get("query")) for s in samples} == {strange}


def test_it_is_read_only_and_for_this_machine_alone(node: Node) -> None:
    assert node.server.url.startswith("http://127.0.0.1:")
    for method in ("POST", "PUT", "DELETE"):
        request = urllib.request.Request(node.server.url, data=b"x", method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 405
        refused.value.close()


def test_a_port_that_is_taken_is_said_before_anything_starts(node: Node) -> None:
    taken = int(node.server.url.rsplit(":", 1)[1].split("/")[0])
    with pytest.raises(Misconfigured, match=rf"port {taken} of 127\.0\.0\.1"):
        MetricsServer(taken)


@pytest.mark.parametrize("wrong", [-1, 65536, "http", True])
def test_what_is_no_port_is_refused(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match="and must be a port"):
        chosen_port(wrong)
    monkeypatch.setenv(PORT_VARIABLE, str(wrong))
    with pytest.raises(Misconfigured, match=f"{PORT_VARIABLE} is"):
        chosen_port(None)


def test_nobody_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT_VARIABLE, raising=False)
    assert chosen_port(None) is None
    monkeypatch.setenv(PORT_VARIABLE, "9090")
    assert (chosen_port(None), chosen_port(0)) == (9090, 0)


def test_before_the_node_runs_there_is_nothing_to_see() -> None:
    server = MetricsServer(0)
    try:
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            assert answer.read() == b""
    finally:
        server.close()
