"""Reports in the words of PySpark's StreamingQueryProgress, made from two `NodeStatistics` of one run.

Where PySpark has a field, the name and the type are its own, and a report can be read as a dict or by attributes. What
is different here: there are no batches, so a report covers a period (`batchDuration`, in milliseconds), and `batchId`
is the last bucket that every stage has committed, which like a batch never goes back, also not in the next run.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import Any

from holdfast.node.statistics import NodeStatistics, SinkStatistics, SourceStatistics, StageStatistics


class Fields(dict[str, Any]):
    """A dict whose keys are attributes too, as PySpark's reports are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}; it has {', '.join(self)}") from None

    @property
    def json(self) -> str:
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        return json.dumps(self, indent=2)


class Progress(Fields):
    """One report. As with PySpark's, `id` and `runId` are text as items and UUIDs as attributes."""

    @property
    def id(self) -> uuid.UUID:
        return uuid.UUID(self["id"])

    @property
    def runId(self) -> uuid.UUID:
        return uuid.UUID(self["runId"])


def progress_of(before: NodeStatistics, after: NodeStatistics) -> Progress:
    """Return the report about the time between two moments of a run."""
    seconds = max(after.at_us - before.at_us, 1) / 1e6
    rows_in = after.rows_in - before.rows_in
    return Progress(
        id=after.pipeline_id,
        runId=after.run_id,
        name=after.name,
        timestamp=time_text(before.at_us),
        batchId=after.bucket_last,
        batchDuration=round(seconds * 1000),
        durationMs=_durations(before, after) | {"triggerExecution": round(seconds * 1000)},
        eventTime=_event_time(after),
        stateOperators=[_state(old, new) for old, new in _pairs(before.stages, after.stages) if new.stateful],
        sources=[_source(old, new, after, seconds) for old, new in _pairs(before.sources, after.sources)],
        sink=_sink_of_all(before, after),
        sinks=[_sink(old, new) for old, new in _pairs(before.sinks, after.sinks)],
        numInputRows=rows_in,
        inputRowsPerSecond=(after.rows_logged - before.rows_logged) / seconds,
        processedRowsPerSecond=rows_in / seconds,
        numOutputRows=after.rows_out - before.rows_out,
        numRowsDroppedByWatermark=after.rows_late - before.rows_late,
        waves=after.waves - before.waves,
        rowsAhead=after.rows_ahead,
        stages={new.name: _stage(old, new) for old, new in _pairs(before.stages, after.stages)},
        warnings=after.warnings[-(after.warnings_count - before.warnings_count) :]
        if after.warnings_count > before.warnings_count
        else [],
    )


def is_idle(before: NodeStatistics, after: NodeStatistics) -> bool:
    """Return whether nothing came, nothing was done and nothing went out between two moments."""
    return (before.waves, before.rows_logged, before.rows_out, before.warnings_count, _sunk(before)) == (
        after.waves,
        after.rows_logged,
        after.rows_out,
        after.warnings_count,
        _sunk(after),
    )


def time_text(time_us: int) -> str:
    """Return a time as Spark writes it in its reports."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _pairs(before: list[Any], after: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(before, after, strict=True))


def _durations(before: NodeStatistics, after: NodeStatistics) -> dict[str, int]:
    """Return milliseconds by phase, summed over slots."""
    return {
        phase: round((seconds - before.seconds.get(phase, 0.0)) * 1000)
        for phase, seconds in after.seconds.items()
        if seconds > before.seconds.get(phase, 0.0)
    }


def _event_time(after: NodeStatistics) -> dict[str, str]:
    newest = [source.event_time_max_us for source in after.sources if source.event_time_max_us is not None]
    found = {"max": time_text(max(newest))} if newest else {}
    return found if after.watermark_us is None else found | {"watermark": time_text(after.watermark_us)}


def _state(before: StageStatistics, after: StageStatistics) -> Fields:
    rows_late = after.rows_late - before.rows_late
    return Fields(
        operatorName=after.name,
        numRowsTotal=after.state_rows,
        numRowsUpdated=after.rows_in - before.rows_in - rows_late,
        memoryUsedBytes=after.state_bytes,
        numRowsDroppedByWatermark=rows_late,
        numShufflePartitions=after.shards,
        numStateStoreInstances=after.shards,
        customMetrics={},
    )


def _source(before: SourceStatistics, after: SourceStatistics, now: NodeStatistics, seconds: float) -> Fields:
    rows = after.rows - before.rows
    taken = sum(stage.rows_in for stage in now.stages if after.name in stage.inputs)
    end = _bucket_text(after.boundary_us, now)
    metrics = {"bytesKept": str(after.bytes), "rowsRejected": str(after.rows_rejected)}
    metrics |= {} if after.lag_s is None else {"lagSeconds": str(after.lag_s)}
    return Fields(
        description=f"{after.kind} {after.name}",
        startOffset=_bucket_text(before.boundary_us, now),
        endOffset=end,
        latestOffset=end,
        numInputRows=rows,
        inputRowsPerSecond=rows / seconds,
        processedRowsPerSecond=rows / seconds if taken else 0.0,
        metrics=metrics,
    )


def _bucket_text(boundary_us: int | None, now: NodeStatistics) -> str | None:
    return None if boundary_us is None else str(boundary_us // now.bucket_width_us)


def _sunk(statistics: NodeStatistics) -> int:
    return sum(sink.rows for sink in statistics.sinks)


def _sink_of_all(before: NodeStatistics, after: NodeStatistics) -> Fields:
    names = ", ".join(sink.name for sink in after.sinks) or "none"
    return Fields(description=names, numOutputRows=_sunk(after) - _sunk(before), metrics={})


def _sink(before: SinkStatistics, after: SinkStatistics) -> Fields:
    metrics = {} if after.bucket_end is None else {"bucketEnd": str(after.bucket_end)}
    return Fields(description=after.name, numOutputRows=after.rows - before.rows, metrics=metrics)


def _stage(before: StageStatistics, after: StageStatistics) -> Fields:
    return Fields(
        bucketEnd=after.bucket_end,
        lagSeconds=after.lag_s,
        units=after.units,
        numInputRows=after.rows_in - before.rows_in,
        numOutputRows=after.rows_out - before.rows_out,
        numRowsRejected=after.rows_rejected - before.rows_rejected,
    )
