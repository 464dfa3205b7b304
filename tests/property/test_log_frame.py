"""Any rows come back from a frame, whole and by shards; any ledger comes back from its head."""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import given, settings

from holdfast.log.frame import FrameHeader
from holdfast.log.ledger import Ledger
from holdfast.log.segment import SegmentWriter, read_batch, read_rows
from holdfast.model import (
    MANY_SHARDS,
    Advanced,
    BatchLogged,
    FrameKind,
    FrameRef,
    JournalItem,
    Published,
    UnitCommitted,
)
from holdfast.testing.faulty_store import FaultyStore

SCHEMA = pa.schema(
    [("text", pa.string()), ("data", pa.binary()), ("value", pa.float64()), ("list", pa.list_(pa.int8()))]
)
ROW = st.tuples(
    st.none() | st.text(max_size=20),
    st.none() | st.binary(max_size=20),
    st.none() | st.floats(allow_nan=False),
    st.none() | st.lists(st.integers(-128, 127), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ROW, max_size=6), min_size=1, max_size=5))
def test_rows_of_shards_come_back(shards: list[list[tuple[object, ...]]]) -> None:
    rows = [row for shard in shards for row in shard]
    columns = [pa.array([row[k] for row in rows], field.type) for k, field in enumerate(SCHEMA)]
    batch = pa.record_batch(columns, schema=SCHEMA)
    ends = [sum(len(shard) for shard in shards[: position + 1]) for position in range(len(shards))]
    store = FaultyStore()
    writer = SegmentWriter(store, "streams/s/n/0-000000")
    header = FrameHeader(FrameKind.DATA, "s", MANY_SHARDS, 0, 0, 1, shard_row_ends=ends)
    ref = writer.append(header, batch)
    assert read_batch(store, ref, SCHEMA).equals(batch)
    for shard in range(len(shards)):
        start = ends[shard - 1] if shard else 0
        assert read_rows(store, ref, SCHEMA, shard, shard + 1).equals(batch.slice(start, ends[shard] - start))


BUCKET = st.integers(0, 50)
ITEM: st.SearchStrategy[JournalItem] = st.one_of(
    st.builds(
        lambda shard, bucket, length, offset: Published(
            "s", shard, bucket, bucket + length, 1, FrameRef("streams/s/n/0-0/000000.seg", offset, 64)
        ),
        st.integers(-1, 3),
        BUCKET,
        st.integers(1, 5),
        st.integers(0, 2**40),
    ),
    st.builds(lambda time: Advanced("s", time), st.integers(0, 10**9)),
    st.builds(lambda writer, n: BatchLogged("s", writer, 0, n), st.sampled_from("ab"), BUCKET),
    st.builds(
        lambda shard, bucket: UnitCommitted("s", shard, 0, bucket, bucket + 1, [(bucket, 1, 2**64 - 1)]),
        st.integers(0, 3),
        BUCKET,
    ),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ITEM, max_size=40), BUCKET, BUCKET)
def test_a_ledger_answers_as_a_plain_list_and_comes_back_from_its_head(
    items: list[JournalItem], bucket_from: int, bucket_to: int
) -> None:
    ledger = Ledger(4, 1000)
    for item in items:
        ledger.apply(item)
    again = Ledger.deserialize(ledger.serialize())
    assert again == ledger
    frames = [item for item in items if isinstance(item, Published)]
    expected = [f for f in frames if f.bucket_start < bucket_to and f.bucket_end > bucket_from]
    found = again.frames("s", bucket_from, bucket_to)
    assert sorted(found, key=repr) == sorted(expected, key=repr) if bucket_from < bucket_to else True
    kept = [f for f in frames if f.bucket_end > bucket_from]
    ledger.drop("s", bucket_from)
    assert sorted(ledger.all_frames("s"), key=repr) == sorted(kept, key=repr)
    assert ledger.size_bytes("s") == 64 * len(kept)
