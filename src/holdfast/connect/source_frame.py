"""A frame of a source: the rows of one batch in shard order, and the header that says what is where in it.

Pure: the same rows give the same bytes.

Invariants:
    * A frame of a source that is stamped on arrival says nothing of its bucket; its commit's stamp does.
    * A frame of a source that is ordered by a column is sorted by it within each shard, and says which buckets it has.
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.log.frame import FrameHeader
from holdfast.model import MANY_SHARDS, NO_BUCKET, FrameKind
from holdfast.operators.bucket_table import bucket_table, highest_event_time
from holdfast.operators.sharding import sort_by_shard
from holdfast.plan import Source, Topology


def source_frame(source: Source, topology: Topology, batch: pa.RecordBatch) -> tuple[FrameHeader, pa.RecordBatch]:
    """Return the header and the rows of a frame of `source`."""
    table = bucket_table(batch, source.tuple_time, source.event_time, topology.bucket_width_us)
    sharded, row_ends = sort_by_shard(batch, source.shard_by, topology.shards, source.tuple_time)
    bucket_start, bucket_end = (table[0][0], table[-1][0] + 1) if table else (NO_BUCKET, NO_BUCKET)
    header = FrameHeader(
        FrameKind.DATA,
        source.name,
        MANY_SHARDS,
        0,
        bucket_start,
        bucket_end,
        shard_row_ends=row_ends,
        bucket_table=table,
        event_time_max_us=highest_event_time(batch, source.event_time),
    )
    return header, sharded
