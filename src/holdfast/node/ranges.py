"""Rows of a range of buckets, in the order in which a stream has them: bucket, shard, position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from holdfast.log.frame import FrameHeader
from holdfast.log.segment import read_frame
from holdfast.model import Published
from holdfast.ports import Store


def rows_in_order(
    store: Store, frames: Sequence[Published], schema: pa.Schema, bucket_from: int, bucket_to: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the buckets asked for, bucket by bucket and shard by shard."""
    pieces: list[tuple[int, int, int, pa.RecordBatch]] = []
    for number, frame in enumerate(frames):
        header, batch = read_frame(store, frame.frame, schema)
        pieces += [
            (bucket, frame.shard, number, batch.slice(row_from, row_to - row_from))
            for bucket, row_from, row_to in bucket_slices(header)
            if bucket_from <= bucket < bucket_to
        ]
    for *_, batch in sorted(pieces, key=lambda piece: piece[:3]):
        yield batch


def bucket_slices(header: FrameHeader) -> list[tuple[int, int, int]]:
    """Return (bucket, first row, end row) of a frame of one shard."""
    if not header.bucket_row_ends:
        return [(header.bucket_start, 0, header.rows)]
    starts = [0, *header.bucket_row_ends[:-1]]
    buckets = [bucket for bucket, _ in header.bucket_table]
    return list(zip(buckets, starts, header.bucket_row_ends, strict=True))
