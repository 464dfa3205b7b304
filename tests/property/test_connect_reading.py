"""However rows were grouped into frames, and buckets into ranges, a reader sees the same rows with the same numbers."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connect.reading import read_range
from holdfast.log.frame import FrameHeader
from holdfast.model import MANY_SHARDS, NO_BUCKET, NO_WATERMARK, FrameKind, FrameRef, Published

SCHEMA = pa.schema([("n", pa.int64())])
SHARDS = 3
WIDTH_US = 10

Drawn = tuple[str, int, list[int]]
FRAMES = st.lists(
    st.one_of(
        # A unit's frame: one shard, several buckets.
        st.tuples(st.just("unit"), st.integers(0, SHARDS - 1), st.lists(st.integers(0, 5), min_size=1, max_size=6)),
        # An arrival-stamped frame: one bucket, many shards.
        st.tuples(st.just("stamped"), st.integers(0, 5), st.lists(st.integers(0, SHARDS - 1), min_size=1, max_size=6)),
    ),
    max_size=8,
)


def build(frames: list[Drawn]) -> tuple[list[Published], dict[int, tuple[FrameHeader, pa.RecordBatch]]]:
    """Return frames as a log has them; the rows are numbered in the order of their commits."""
    published: list[Published] = []
    content: dict[int, tuple[FrameHeader, pa.RecordBatch]] = {}
    number = 0
    for place, (kind, one, many) in enumerate(frames):
        many = sorted(many)
        ref = FrameRef("segment", place, 1)
        batch = pa.record_batch([pa.array(range(number, number + len(many)), pa.int64())], schema=SCHEMA)
        number += len(many)
        if kind == "unit":
            names = sorted(set(many))
            ends = [sum(each <= name for each in many) for name in names]
            table = [(name, NO_WATERMARK) for name in names]
            header = FrameHeader(
                FrameKind.DATA, "s", one, 0, names[0], names[-1] + 1, bucket_table=table, bucket_row_ends=ends
            )
            published.append(Published("s", one, names[0], names[-1] + 1, len(many), ref))
        else:
            ends = [sum(each <= shard for each in many) for shard in range(SHARDS)]
            header = FrameHeader(FrameKind.DATA, "s", MANY_SHARDS, 0, NO_BUCKET, NO_BUCKET, shard_row_ends=ends)
            published.append(Published("s", MANY_SHARDS, one, one + 1, len(many), ref, one * WIDTH_US + 3))
        content[place] = (header, batch)
    return published, content


def expected(frames: list[Drawn]) -> list[tuple[int, int, int, int]]:
    """Return (bucket, shard, position, row) by a plain sort."""
    rows: list[tuple[int, int, int]] = []
    for kind, one, many in frames:
        for each in sorted(many):
            bucket, shard = (each, one) if kind == "unit" else (one, each)
            rows.append((bucket, shard, len(rows)))
    result: list[tuple[int, int, int, int]] = []
    counts: dict[tuple[int, int], int] = {}
    for bucket, shard, row in sorted(rows):
        position = counts.get((bucket, shard), 0)
        counts[bucket, shard] = position + 1
        result.append((bucket, shard, position, row))
    return result


@given(frames=FRAMES, cuts=st.sets(st.integers(1, 5)))
def test_ranges_of_buckets_put_together_are_the_stream(frames: list[Drawn], cuts: set[int]) -> None:
    published, content = build(frames)
    found: list[tuple[int, int, int, int]] = []
    edges = [0, *sorted(cuts), 6]
    for bucket_from, bucket_to in itertools.pairwise(edges):
        part = read_range(
            published, lambda frame: content[frame.frame.offset], SCHEMA, bucket_from, bucket_to, WIDTH_US
        )
        columns = (part.buckets, part.shards, part.positions(), part.table.column("n").to_numpy())
        found += list(zip(*(column.tolist() for column in columns), strict=True))
    assert found == expected(frames)
