"""Count what passes by on the node's thread, and make `NodeStatistics` of it once a second.

Invariants:
    * What is counted is what is committed: a wave that is lost or answered twice adds no rows.
    * Nothing here is asked by another thread: what it makes never changes.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from holdfast.model import END_OF_TIME, FIRST_BUCKET, NO_WATERMARK, JournalItem, Published, SinkDone, UnitCommitted
from holdfast.node.messages import Attached, Processed, Receipt, UnitProcessed
from holdfast.node.situation import Situation
from holdfast.node.statistics import NodeStatistics, SinkStatistics, SourceKind, SourceStatistics, StageStatistics
from holdfast.plan import REJECTS, FilesSource, ParquetSink, ProducerSource, Source, Stage, StreamSource

REPORT_EVERY_US: Final = 1_000_000
WARNINGS_KEPT: Final = 10


class ProgressMeter:
    """Counts of one run."""

    def __init__(self, situation: Situation, pipeline_id: str, node: str) -> None:
        self._situation = situation
        self._pipeline_id = pipeline_id
        self._run_id = str(uuid.uuid4())
        self._node = node
        self._started_us = situation.now_us
        self._made_us = situation.now_us
        self._counted = (0, 0)
        """Rows in and logged, as of the last statistics."""
        self._waves = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._rows_in: Counter[str] = Counter()
        self._rows_late: Counter[str] = Counter()
        self._rows_published: Counter[str] = Counter()
        self._rows_sunk: Counter[str] = Counter()
        self._states: dict[tuple[str, int], tuple[int, int]] = {}
        self._watermarks: dict[str, int] = {}
        self._warnings_count = 0
        self._warnings: list[str] = []

    @property
    def run_id(self) -> str:
        return self._run_id

    def receipt(self, receipt: Receipt, waited_s: float | None) -> None:
        """Count a receipt that came so long after its order; what the task itself did not take is Spark's.

        One whose wave is not waited for any more (`waited_s` None) does not count.
        """
        if waited_s is None:
            return
        self._waves += 1
        self._seconds["spark"] += max(0.0, waited_s - receipt.seconds)
        for result in receipt.results:
            for phase, seconds in getattr(result, "seconds", {}).items():
                self._seconds[phase if isinstance(result, Processed) else f"ingest.{phase}"] += seconds
            if isinstance(result, Processed):
                for unit in result.units:
                    self._unit(result.stage, unit)
            elif isinstance(result, Attached):
                self._states[result.stage, result.shard] = (result.state_rows, result.state_bytes)

    def _unit(self, stage: str, unit: UnitProcessed) -> None:
        if unit.state_rows is not None and unit.state_bytes is not None:
            self._states[stage, unit.shard] = (unit.state_rows, unit.state_bytes)
        if unit.watermark_us is not None:
            self._watermarks[stage] = max(unit.watermark_us, self._watermarks.get(stage, unit.watermark_us))

    def committed(self, items: Sequence[JournalItem]) -> None:
        """Count what is true now, whoever committed it."""
        for item in items:
            if isinstance(item, Published):
                self._rows_published[item.stream] += item.rows
            elif isinstance(item, UnitCommitted):
                self._rows_in[item.stage] += item.rows_in
                self._rows_late[item.stage] += item.rows_late
            elif isinstance(item, SinkDone):
                self._rows_sunk[item.sink] += item.rows

    def warned(self, message: str) -> None:
        self._warnings_count += 1
        self._warnings = [*self._warnings, message][-WARNINGS_KEPT:]

    def due(self, now_us: int) -> bool:
        """Return whether it is time for new statistics."""
        return now_us - self._made_us >= REPORT_EVERY_US

    def statistics(self, now_us: int) -> NodeStatistics:
        """Return what is known now."""
        here = self._situation
        before_us, self._made_us = self._made_us, now_us
        slots = list(here.slots.values())
        found = NodeStatistics(
            pipeline_id=self._pipeline_id,
            run_id=self._run_id,
            name=here.topology.name,
            node=self._node,
            bucket_width_us=here.topology.bucket_width_us,
            started_us=self._started_us,
            at_us=now_us,
            waves=self._waves,
            tries_failed=here.troubles.tries_failed,
            rows_ahead=here.rows_ahead(),
            seconds=dict(self._seconds),
            stages=[self._stage(stage) for stage in here.topology.stages],
            sources=[self._source(source) for source in here.topology.sources],
            sinks=self._sinks(),
            slots=len(slots),
            slots_busy=sum(slot.order is not None for slot in slots),
            warnings_count=self._warnings_count,
            warnings=self._warnings,
            trouble=here.troubles.worst(),
            before_us=before_us,
        )
        before, self._counted = self._counted, (found.rows_in, found.rows_logged)
        return msgspec.structs.replace(
            found, rows_in_lately=found.rows_in - before[0], rows_logged_lately=found.rows_logged - before[1]
        )

    def _stage(self, stage: Stage) -> StageStatistics:
        here = self._situation
        end = here.output_end(stage.name)
        states = [self._states.get((stage.name, shard), (0, 0)) for shard in range(here.topology.shards)]
        sources = {source.name for source in here.topology.sources}
        return StageStatistics(
            name=stage.name,
            inputs=[read.stream for read in stage.inputs],
            reads_source=any(read.stream in sources for read in stage.inputs),
            stateful=stage.aggregation is not None,
            shards=here.topology.shards,
            bucket_end=None if end == FIRST_BUCKET else end,
            lag_s=self._lag_s(None if end == FIRST_BUCKET else end * here.topology.bucket_width_us),
            units=dict(Counter(unit.phase.value for unit in here.units_of(stage.name))),
            rows_in=self._rows_in[stage.name],
            rows_out=self._rows_published[stage.name],
            rows_late=self._rows_late[stage.name],
            rows_rejected=self._rows_published[stage.name + REJECTS],
            state_rows=sum(rows for rows, _ in states),
            state_bytes=sum(size for _, size in states),
            watermark_us=self._watermarks.get(stage.name),
        )

    def _source(self, source: Source) -> SourceStatistics:
        here = self._situation
        kind: SourceKind = "query"
        match source.origin:
            case FilesSource():
                kind = "files"
            case ProducerSource():
                kind = "producer"
            case StreamSource():
                kind = "stream"
        boundary_us = here.ledger.boundary_us(source.name)
        known_us = boundary_us if -END_OF_TIME < boundary_us < END_OF_TIME else None
        newest_us = here.ledger.event_time_max_us(source.name)
        return SourceStatistics(
            name=source.name,
            kind=kind,
            rows=self._rows_published[source.name],
            rows_rejected=self._rows_published[source.name + REJECTS],
            boundary_us=known_us,
            lag_s=self._lag_s(known_us),
            event_time_max_us=newest_us if NO_WATERMARK < newest_us < END_OF_TIME else None,
            bytes=here.ledger.size_bytes(source.name),
        )

    def _sinks(self) -> list[SinkStatistics]:
        found = []
        for name, delivery in self._situation.deliveries.items():
            sink = delivery.sink
            end = None if delivery.bucket_done == FIRST_BUCKET else delivery.bucket_done
            kind: Literal["parquet", "console"] = "parquet" if isinstance(sink.target, ParquetSink) else "console"
            found.append(SinkStatistics(name, sink.stream, kind, self._rows_sunk[name], end))
        return found

    def _lag_s(self, time_us: int | None) -> float | None:
        return None if time_us is None else round(max(0, self._made_us - time_us) / 1e6, 3)
