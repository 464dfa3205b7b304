"""Reports have PySpark's fields with PySpark's types, and say what happened between two moments."""

from __future__ import annotations

import inspect
import json
import uuid

import msgspec
import pytest
from pyspark.sql.streaming.listener import (
    SinkProgress,
    SourceProgress,
    StateOperatorProgress,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from tests.unit.node.node_statistics import ID, NOW_US, RUN, WIDTH_US, statistics

from holdfast.node import listening
from holdfast.node.query_progress import is_idle, progress_of
from holdfast.node.statistics import NodeStatistics


def earlier() -> NodeStatistics:
    """The same node two seconds before."""
    now = statistics()
    averages, top = now.stages
    before = [
        msgspec.structs.replace(averages, rows_in=400, rows_out=20, rows_late=1, rows_rejected=0),
        msgspec.structs.replace(top, rows_in=20, rows_out=4),
    ]
    return statistics(
        at_us=NOW_US - 2_000_000,
        waves=60,
        seconds={"kernel": 1.0},
        stages=before,
        sources=[msgspec.structs.replace(now.sources[0], rows=407, boundary_us=NOW_US - 2_000_000)],
        sinks=[msgspec.structs.replace(now.sinks[0], rows=4)],
        warnings_count=0,
        warnings=[],
    )


def test_a_report_is_about_the_time_between() -> None:
    report = progress_of(earlier(), statistics())
    assert (report["id"], report["runId"], report["name"]) == (ID, RUN, "retail")
    assert report["timestamp"] == "2025-11-19T20:39:59.352Z"
    assert report["batchId"] == NOW_US // WIDTH_US - 5, "the last bucket that the slower stage has committed"
    assert report["batchDuration"] == 2000
    assert report["durationMs"] == {"kernel": 500, "spark": 500, "triggerExecution": 2000}
    assert report["eventTime"] == {"max": "2025-11-19T20:40:01.352Z", "watermark": "2025-11-19T20:39:59.352Z"}
    assert (report["numInputRows"], report["inputRowsPerSecond"], report["processedRowsPerSecond"]) == (600, 300, 300)
    assert (report["numOutputRows"], report["waves"], report["rowsAhead"]) == (26, 40, 7)
    assert report["warnings"] == ["the journal takes entries again"]
    (state,) = report["stateOperators"]
    assert (state["operatorName"], state["numRowsTotal"], state["numRowsUpdated"]) == ("averages", 64, 598)
    assert (state["memoryUsedBytes"], state["numRowsDroppedByWatermark"]) == (2_000_000, 2)
    (source,) = report["sources"]
    assert (source["description"], source["numInputRows"]) == ("producer north", 600)
    assert int(source["endOffset"]) - int(source["startOffset"]) == 2_000_000 // WIDTH_US
    assert (report["sink"]["numOutputRows"], report["sinks"][0]["description"]) == (5, "top-parquet")
    assert report["stages"]["top"]["lagSeconds"] == 0.8
    assert report["stages"]["averages"]["units"] == {"ready": 1, "running": 1}


def test_it_is_read_like_pysparks() -> None:
    report = progress_of(earlier(), statistics())
    assert (report.id, report.runId) == (uuid.UUID(ID), uuid.UUID(RUN))
    assert report.stateOperators[0].numRowsTotal == report["stateOperators"][0]["numRowsTotal"]
    assert json.loads(report.json) == json.loads(report.prettyJson) == report
    with pytest.raises(AttributeError, match="has no field 'numRows'; it has id"):
        _ = report.numRows


def test_what_pyspark_reads_of_such_a_report_is_the_same() -> None:
    """PySpark's own class takes a report as Spark's JSON, so programs that read the one can read the other."""
    report = progress_of(earlier(), statistics())
    zeros = {"allUpdatesTimeMs": 0, "numRowsRemoved": 0, "allRemovalsTimeMs": 0, "commitTimeMs": 0}
    completed = dict(report, stateOperators=[{**each, **zeros} for each in report["stateOperators"]])
    read = StreamingQueryProgress.fromJson(json.loads(json.dumps(completed)))
    for name in ("id", "runId", "name", "timestamp", "batchId", "batchDuration", "durationMs", "eventTime"):
        assert getattr(read, name) == getattr(report, name), name
    for name in ("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"):
        assert getattr(read, name) == getattr(report, name), name
    for theirs, ours, kind in (
        (read.sources[0], report.sources[0], SourceProgress),
        (read.sink, report.sink, SinkProgress),
        (read.stateOperators[0], report.stateOperators[0], StateOperatorProgress),
    ):
        shared = [name for name in ours if isinstance(getattr(kind, name, None), property)]
        assert {name: getattr(theirs, name) for name in shared} == {name: ours[name] for name in shared}
        assert "numInputRows" in shared or "description" in shared or "numRowsTotal" in shared


def test_events_have_what_pysparks_have() -> None:
    import pyspark.sql.streaming.listener as pysparks

    for name in ("QueryStartedEvent", "QueryProgressEvent", "QueryIdleEvent", "QueryTerminatedEvent"):
        theirs = {each for each, value in vars(getattr(pysparks, name)).items() if isinstance(value, property)}
        assert theirs == set(getattr(listening, name).__dataclass_fields__), name
    methods = {name for name, _ in inspect.getmembers(StreamingQueryListener, inspect.isfunction) if name[:2] == "on"}
    assert methods == set(listening.METHODS)


def test_a_second_in_which_nothing_happened_is_idle() -> None:
    assert is_idle(statistics(at_us=1), statistics(at_us=2))
    assert not is_idle(earlier(), statistics())


def test_before_the_first_bucket_there_is_no_batch() -> None:
    now = statistics()
    stages = [msgspec.structs.replace(now.stages[0], bucket_end=None), now.stages[1]]
    assert progress_of(now, statistics(stages=stages))["batchId"] == -1
