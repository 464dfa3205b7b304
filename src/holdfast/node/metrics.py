"""A node's statistics as Prometheus metrics, over HTTP.

Guarantees:
    * It listens on this machine alone unless another address is named; it is read, never written to.
    * A counter never goes back within a run. A gauge that is not known is left out.
    * What a scrape sees belongs to one moment; making it takes no lock of the node's.

Where Spark has a gauge of the same meaning, there is one of that name too: Spark's `spark.streaming.<query>.latency` is
`spark_streaming_latency` with the query as a label.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.errors import HoldfastError, Misconfigured
from holdfast.node.statistics import NodeStatistics

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

LOOPBACK: Final = "127.0.0.1"
HOST_VARIABLE: Final = "HOLDFAST_METRICS_HOST"


class MetricsServer:
    """Answers scrapes from the moment it is made; it is closed with the node."""

    def __init__(self, port: int, host: str | None = None) -> None:
        self._host = host or os.environ.get(HOST_VARIABLE) or LOOPBACK
        self._source: Callable[[], NodeStatistics] | None = None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = _serve(port, self._host, registry)
        except (OSError, OverflowError) as error:
            raise Misconfigured(
                f"metrics cannot be given out on port {port} of {self._host}: {error}. Choose another port, or 0 for "
                "any that is free"
            ) from error

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._server.server_port}/metrics"

    def show(self, source: Callable[[], NodeStatistics]) -> None:
        """Answer from here on with what `source` returns."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment; called by the server for each scrape."""
        return [] if self._source is None else families_of(self._source())

    def start(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None:
        """The node runs now. Nothing that happens here is a reason to stop it."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _serve(port: int, host: str, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    server, thread = start_http_server(port, addr=host, registry=registry)
    return server, thread


def families_of(now: NodeStatistics) -> Iterator[Metric]:
    """Yield every metric of a node."""
    yield from _sparks(now)
    yield from _whole(now)
    yield from _stages(now)
    yield from _edges(now)


class _Family:
    """Metrics of one name, each with the pipeline's name as the first label."""

    def __init__(self, now: NodeStatistics) -> None:
        self._name = now.name

    def gauge(self, name: str, text: str, *values: tuple[tuple[str, ...], float | None], by: str = "") -> Metric:
        """Return a gauge; `by` names further labels, for which each value has texts."""
        family = GaugeMetricFamily(name, text, labels=["pipeline", *by.split()])
        return self._filled(family, values)

    def counter(self, name: str, text: str, *values: tuple[tuple[str, ...], float | None], by: str = "") -> Metric:
        family = CounterMetricFamily(name, text, labels=["pipeline", *by.split()])
        return self._filled(family, values)

    def _filled(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        values: Iterable[tuple[tuple[str, ...], float | None]],
    ) -> Metric:
        for labels, value in values:
            if value is not None:
                family.add_metric([self._name, *labels], value)
        return family


def _sparks(now: NodeStatistics) -> Iterator[Metric]:
    """Yield what Spark's MetricsReporter has, under its names."""
    seconds = max(now.at_us - now.before_us, 1) / 1e6
    watermark_ms = None if now.watermark_us is None else now.watermark_us // 1000
    latency_ms = None if now.lag_s is None else now.lag_s * 1000
    known: list[tuple[str, str, float | None]] = [
        ("inputRate_total", "Rows per second that came from all sources.", now.rows_logged_lately / seconds),
        ("processingRate_total", "Rows per second that stages took from sources.", now.rows_in_lately / seconds),
        ("latency", "Milliseconds that the slowest stage is behind the clock.", latency_ms),
        ("eventTime_watermark", "The lowest watermark, in milliseconds since 1970.", watermark_ms),
        ("states_rowsTotal", "Keys in the state of all stages.", sum(stage.state_rows for stage in now.stages)),
        ("states_usedBytes", "Memory that the state of all stages takes.", sum(s.state_bytes for s in now.stages)),
    ]
    for name, text, value in known:
        family = GaugeMetricFamily(f"spark_streaming_{name}", text, labels=["query"])
        if value is not None:
            family.add_metric([now.name], value)
        yield family


def _whole(now: NodeStatistics) -> Iterator[Metric]:
    of = _Family(now)
    yield of.gauge(
        "holdfast_node_info",
        "The node that runs the pipeline.",
        ((now.node, now.run_id), 1),
        by="node run",
    )
    yield of.gauge("holdfast_start_time_seconds", "When the node started, since 1970.", ((), now.started_us / 1e6))
    yield of.gauge("holdfast_statistics_time_seconds", "As of when all this is, since 1970.", ((), now.at_us / 1e6))
    yield of.gauge(
        "holdfast_failing", "1 while some work fails at every try, 0 else.", ((), 0 if now.trouble is None else 1)
    )
    yield of.gauge("holdfast_slots", "Slots there are.", ((), now.slots))
    yield of.gauge("holdfast_slots_busy", "Slots at work.", ((), now.slots_busy))
    yield of.gauge("holdfast_rows_ahead", "Rows that are logged and wait to be processed.", ((), now.rows_ahead))
    yield of.counter("holdfast_waves", "Waves that were answered.", ((), now.waves))
    yield of.counter(
        "holdfast_tries_failed", "Pieces of work that failed and were tried again.", ((), now.tries_failed)
    )
    yield of.counter("holdfast_warnings", "Warnings that were given.", ((), now.warnings_count))
    yield of.counter(
        "holdfast_phase_seconds",
        "Time of all slots, by phase.",
        *(((phase,), seconds) for phase, seconds in sorted(now.seconds.items())),
        by="phase",
    )


def _stages(now: NodeStatistics) -> Iterator[Metric]:
    of = _Family(now)
    each = now.stages
    width_s = now.bucket_width_us / 1e6
    yield of.counter("holdfast_stage_rows_in", "Rows taken.", *(((s.name,), s.rows_in) for s in each), by="stage")
    yield of.counter(
        "holdfast_stage_rows_out", "Rows that came out.", *(((s.name,), s.rows_out) for s in each), by="stage"
    )
    yield of.counter(
        "holdfast_stage_rows_late", "Rows behind the watermark.", *(((s.name,), s.rows_late) for s in each), by="stage"
    )
    yield of.counter(
        "holdfast_stage_rows_rejected",
        "Rows that could not be computed.",
        *(((s.name,), s.rows_rejected) for s in each),
        by="stage",
    )
    yield of.gauge(
        "holdfast_stage_committed_seconds",
        "Up to when all results are committed, since 1970.",
        *(((s.name,), None if s.bucket_end is None else s.bucket_end * width_s) for s in each),
        by="stage",
    )
    yield of.gauge(
        "holdfast_stage_lag_seconds",
        "How far what is committed is behind the clock.",
        *(((s.name,), s.lag_s) for s in each),
        by="stage",
    )
    yield of.gauge(
        "holdfast_stage_watermark_seconds",
        "The watermark, since 1970.",
        *(((s.name,), None if s.watermark_us is None else s.watermark_us / 1e6) for s in each),
        by="stage",
    )
    yield of.gauge(
        "holdfast_stage_state_rows", "Keys in the state.", *(((s.name,), s.state_rows) for s in each), by="stage"
    )
    yield of.gauge(
        "holdfast_stage_state_bytes", "Memory of the state.", *(((s.name,), s.state_bytes) for s in each), by="stage"
    )
    yield of.gauge(
        "holdfast_units",
        "Units in each phase.",
        *(((s.name, phase), count) for s in each for phase, count in sorted(s.units.items())),
        by="stage phase",
    )


def _edges(now: NodeStatistics) -> Iterator[Metric]:
    of = _Family(now)
    each = now.sources
    yield of.counter("holdfast_source_rows", "Rows logged.", *(((s.name,), s.rows) for s in each), by="source")
    yield of.counter(
        "holdfast_source_rows_rejected",
        "Rows that could not be read.",
        *(((s.name,), s.rows_rejected) for s in each),
        by="source",
    )
    yield of.gauge(
        "holdfast_source_lag_seconds",
        "How far the boundary is behind the clock.",
        *(((s.name,), s.lag_s) for s in each),
        by="source",
    )
    yield of.gauge(
        "holdfast_source_bytes", "Bytes kept of the stream.", *(((s.name,), s.bytes) for s in each), by="source"
    )
    yield of.counter("holdfast_sink_rows", "Rows that went out.", *(((s.name,), s.rows) for s in now.sinks), by="sink")
