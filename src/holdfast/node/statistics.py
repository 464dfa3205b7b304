"""What a node knows of itself at one moment, as data that never changes: handle, listeners, metrics and the live line
all read the same object.

Invariants:
    * Counts are of this run and never go back; how full, how far and how late is as of `at_us`.
    * Reading one takes no lock and asks nobody: the node's thread puts a new one in the place of the old.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SourceKind = Literal["files", "producer", "query", "stream"]


class StageStatistics(msgspec.Struct, frozen=True):
    """A stage. `bucket_end` is how far all its units have committed, None before the first bucket."""

    name: str
    inputs: list[str]
    reads_source: bool
    stateful: bool
    shards: int
    bucket_end: int | None
    lag_s: float | None
    """How far what is committed is behind the clock."""
    units: dict[str, int]
    """How many units are in each phase."""
    rows_in: int
    rows_out: int
    rows_late: int
    rows_rejected: int
    state_rows: int
    state_bytes: int
    watermark_us: int | None


class SourceStatistics(msgspec.Struct, frozen=True):
    """A source. `rows` were logged since the node started; `boundary_us` is how far it is complete."""

    name: str
    kind: SourceKind
    rows: int
    rows_rejected: int
    boundary_us: int | None
    lag_s: float | None
    event_time_max_us: int | None
    bytes: int


class SinkStatistics(msgspec.Struct, frozen=True):
    """A sink. `rows` went out since the node started; everything before `bucket_end` is out."""

    name: str
    stream: str
    kind: Literal["parquet", "console"]
    rows: int
    bucket_end: int | None


class Trouble(msgspec.Struct, frozen=True):
    """Work that failed at every one of its last `times` tries, since `since_us`; it is tried again."""

    subject: str
    message: str
    times: int
    since_us: int


class NodeStatistics(msgspec.Struct, frozen=True):
    """A running node."""

    pipeline_id: str
    run_id: str
    name: str
    node: str
    bucket_width_us: int
    started_us: int
    at_us: int
    waves: int
    tries_failed: int
    rows_ahead: int
    """Rows that are logged and wait, for the stage that has most of them."""
    seconds: dict[str, float]
    """Where the slots' time went, by phase."""
    stages: list[StageStatistics]
    sources: list[SourceStatistics]
    sinks: list[SinkStatistics]
    slots: int
    slots_busy: int
    warnings_count: int
    warnings: list[str]
    """The newest of them."""
    trouble: Trouble | None = None
    before_us: int = 0
    """When the statistics before these were made; what came between is `lately`."""
    rows_in_lately: int = 0
    rows_logged_lately: int = 0

    @property
    def rows_in(self) -> int:
        """Rows of sources that stages have taken; one that two stages read counts twice, as in Spark."""
        return sum(stage.rows_in for stage in self.stages if stage.reads_source)

    @property
    def rows_out(self) -> int:
        return sum(stage.rows_out for stage in self.stages)

    @property
    def rows_late(self) -> int:
        return sum(stage.rows_late for stage in self.stages)

    @property
    def rows_logged(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def watermark_us(self) -> int | None:
        """The lowest watermark of the stages that have one."""
        return min((stage.watermark_us for stage in self.stages if stage.watermark_us is not None), default=None)

    @property
    def lag_s(self) -> float | None:
        """How far the slowest stage is behind the clock."""
        return max((stage.lag_s for stage in self.stages if stage.lag_s is not None), default=None)

    @property
    def bucket_last(self) -> int:
        """The last bucket that every stage has committed, -1 before the first."""
        ends = [stage.bucket_end for stage in self.stages]
        known = [end for end in ends if end is not None]
        return min(known) - 1 if len(known) == len(ends) and known else -1
