"""Statistics of a node that is at work, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.node.statistics import NodeStatistics, SinkStatistics, SourceStatistics, StageStatistics

NOW_US = 1_763_584_801_352_000
WIDTH_US = 200_000
ID, RUN = "0000619a-8ca7-4225-a1e7-44729ff2552a", "021b06e8-31f8-40f3-a1af-5cbb12ce50b9"


def statistics(**changes: Any) -> NodeStatistics:
    """Return statistics of a pipeline of two stages, one behind the other, with `changes`."""
    averages = StageStatistics(
        name="averages",
        inputs=["north"],
        reads_source=True,
        stateful=True,
        shards=2,
        bucket_end=NOW_US // WIDTH_US - 2,
        lag_s=0.4,
        units={"ready": 1, "running": 1},
        rows_in=1000,
        rows_out=40,
        rows_late=3,
        rows_rejected=1,
        state_rows=64,
        state_bytes=2_000_000,
        watermark_us=NOW_US - 2_000_000,
    )
    behind = StageStatistics(
        name="top",
        inputs=["averages"],
        reads_source=False,
        stateful=False,
        shards=2,
        bucket_end=NOW_US // WIDTH_US - 4,
        lag_s=0.8,
        units={"ready": 2},
        rows_in=40,
        rows_out=10,
        rows_late=0,
        rows_rejected=0,
        state_rows=0,
        state_bytes=0,
        watermark_us=None,
    )
    found = NodeStatistics(
        pipeline_id=ID,
        run_id=RUN,
        name="retail",
        node="node-here-1-2",
        bucket_width_us=WIDTH_US,
        started_us=NOW_US - 60_000_000,
        at_us=NOW_US,
        waves=100,
        tries_failed=2,
        rows_ahead=7,
        seconds={"kernel": 1.5, "spark": 0.5},
        stages=[averages, behind],
        sources=[SourceStatistics("north", "producer", 1007, 2, NOW_US, 0.2, NOW_US, 4096)],
        sinks=[SinkStatistics("top-parquet", "top", "parquet", 9, NOW_US // WIDTH_US - 5)],
        slots=2,
        slots_busy=1,
        warnings_count=1,
        warnings=["the journal takes entries again"],
        before_us=NOW_US - 2_000_000,
        rows_in_lately=500,
        rows_logged_lately=600,
    )
    return msgspec.structs.replace(found, **changes)
