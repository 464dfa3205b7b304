"""Measure a node as it runs: one report a second, in the words of StreamingQueryProgress where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.model import FIRST_BUCKET, JournalItem, Published, UnitCommitted
from holdfast.node.handle import Progress
from holdfast.node.messages import Processed, Receipt
from holdfast.node.situation import Situation

REPORT_EVERY_US = 1_000_000


class ProgressMeter:
    """Counts what passes by on the node's thread."""

    def __init__(self, situation: Situation, pipeline_id: str) -> None:
        self._situation = situation
        self._pipeline_id = pipeline_id
        self._reported_us = situation.now_us
        self._number = 0
        self._rows_in = 0
        self._rows_out = 0
        self._rows_late = 0
        self._waves = 0
        self._seconds: dict[str, float] = {}
        self._warnings: list[str] = []

    def receipt(self, receipt: Receipt, waited_s: float | None) -> None:
        """Count a receipt that came so long after its order; what the task itself did not take is Spark's."""
        self._waves += 1
        if waited_s is not None:
            self._seconds["spark"] = self._seconds.get("spark", 0.0) + max(0.0, waited_s - receipt.seconds)
        for result in receipt.results:
            for phase, seconds in getattr(result, "seconds", {}).items():
                name = phase if isinstance(result, Processed) else f"ingest.{phase}"
                self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def committed(self, items: Sequence[JournalItem]) -> None:
        for item in items:
            if isinstance(item, UnitCommitted):
                self._rows_in += item.rows_in
                self._rows_late += item.rows_late
            elif isinstance(item, Published) and item.stream in self._situation.stages:
                self._rows_out += item.rows

    def warned(self, message: str) -> None:
        self._warnings = [*self._warnings, message][-10:]

    def report(self, now_us: int, last: bool = False) -> Progress | None:
        """Return a report if it is time for one; the last one comes in any case."""
        elapsed_us = now_us - self._reported_us
        if elapsed_us < REPORT_EVERY_US and not last:
            return None
        seconds = max(elapsed_us, 1) / 1e6
        progress: Progress = {
            "id": self._pipeline_id,
            "name": self._situation.topology.name,
            "timestamp": datetime.fromtimestamp(now_us / 1e6, UTC).isoformat(),
            "batchId": self._number,
            "waves": self._waves,
            "numInputRows": self._rows_in,
            "numOutputRows": self._rows_out,
            "numRowsDroppedByWatermark": self._rows_late,
            "processedRowsPerSecond": self._rows_in / seconds,
            "rowsAhead": self._situation.rows_ahead(),
            "durationMs": {phase: round(value * 1000, 3) for phase, value in self._seconds.items()},
            "stages": {name: self._bucket(name) for name in self._situation.stages},
            "warnings": self._warnings,
        }
        self._reported_us, self._number = now_us, self._number + 1
        self._rows_in = self._rows_out = self._rows_late = self._waves = 0
        self._seconds, self._warnings = {}, []
        return progress

    def _bucket(self, stage: str) -> int | None:
        bucket = self._situation.output_end(stage)
        return None if bucket == FIRST_BUCKET else bucket
