from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatch, SegmentCorrupt, StoreUnavailable
from holdfast.log.frame import ALIGNMENT, FrameHeader
from holdfast.log.local_store import LocalStore
from holdfast.log.segment import SegmentWriter, read_batch, read_frame, read_header, read_rows, walk, walk_backwards
from holdfast.model import MANY_SHARDS, FrameKind, FrameRef
from holdfast.testing.faulty_store import FaultyStore, How

SCHEMA = pa.schema([("key", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.int32()))])
FOLDER = "streams/north/node/0-000001"


def header(kind: FrameKind = FrameKind.DATA, shard: int = 3, **fields: object) -> FrameHeader:
    return FrameHeader(kind, "north", shard, 1, 10, 11, **fields)  # type: ignore[arg-type]


def batch(rows: int) -> pa.RecordBatch:
    columns = [[f"k{row}" for row in range(rows)], np.arange(rows) / 2, [[row, None] for row in range(rows)]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def test_a_frame_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, FOLDER)
    previous = FrameRef("streams/north/node/0-000000/000000.seg", 64, 128, 9)
    written = header(
        open_windows={"0": 90_000}, previous=previous, bucket_table=[(10, 5)], bucket_row_ends=[7], event_time_max_us=5
    )
    ref = writer.append(written, batch(7))
    empty = writer.append(header(FrameKind.CLOSE), None)
    writer.sync()
    found, rows = read_frame(store, ref, SCHEMA)
    assert rows.equals(batch(7))
    assert (found.rows, found.open_windows, found.previous, found.bucket_table) == (
        7,
        {"0": 90_000},
        previous,
        [(10, 5)],
    )
    assert ref.offset % ALIGNMENT == empty.offset % ALIGNMENT == 0
    assert read_header(store, empty).kind == FrameKind.CLOSE and read_header(store, empty).rows == 0
    mapped = store.read(ref.segment)
    start = np.frombuffer(mapped, np.uint8).ctypes.data
    assert start <= rows.column(1).buffers()[1].address < start + mapped.nbytes, "columns are views of the map"
    writer.close()


def test_shards_of_a_frame_are_slices(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, FOLDER)
    many = writer.append(header(shard=MANY_SHARDS, shard_row_ends=[2, 2, 5, 7]), batch(7))
    one = writer.append(header(shard=3), batch(4))
    ranges = {(0, 1): (0, 2), (1, 2): (2, 0), (1, 3): (2, 3), (0, 4): (0, 7), (3, 9): (5, 2)}
    for (shard_from, shard_to), (offset, rows) in ranges.items():
        assert read_rows(store, many, SCHEMA, shard_from, shard_to).equals(batch(7).slice(offset, rows))
    assert read_rows(store, one, SCHEMA, 3, 4).num_rows == 4
    assert read_rows(store, one, SCHEMA, 0, 3).num_rows == 0
    writer.close()


def test_a_segment_is_walked_both_ways_by_kind(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, FOLDER)
    kinds = [FrameKind.DATA, FrameKind.OPEN, FrameKind.DATA, FrameKind.CLOSE]
    refs = writer.append_many([(header(kind), batch(number)) for number, kind in enumerate(kinds)])
    path, end = refs[0].segment, refs[-1].offset + refs[-1].length
    assert [found.ref for found in walk(store, path, verify=True)] == refs
    assert [found.ref for found in walk_backwards(store, path, end, verify=True)] == refs[::-1]
    assert [found.ref for found in walk(store, path, {FrameKind.DATA})] == [refs[0], refs[2]]
    assert [found.header.kind for found in walk_backwards(store, path, end, {FrameKind.CLOSE})] == [FrameKind.CLOSE]
    writer.close()


def test_segments_roll_over_by_size_and_never_take_an_existing_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, FOLDER, segment_bytes=500)
    refs = [writer.append(header(), batch(20)) for _ in range(3)]
    assert [ref.segment[-10:] for ref in refs] == ["000000.seg", "000001.seg", "000002.seg"]
    other = SegmentWriter(store, FOLDER)
    store.create(f"{FOLDER}/000003.seg").close()
    assert other.append(header(), batch(1)).segment == f"{FOLDER}/000004.seg"
    writer.close()
    other.close()


def test_every_damaged_byte_is_noticed_and_named() -> None:
    store = FaultyStore()
    writer = SegmentWriter(store, FOLDER)
    first = writer.append(header(), batch(2))
    ref = writer.append(header(), batch(2))
    padding = 0
    for offset in range(ref.offset, ref.offset + ref.length):
        store.flip(ref.segment, offset)
        try:
            read_batch(store, ref, SCHEMA)
            padding += 1
        except SegmentCorrupt as error:
            place = f"the frame at offset {ref.offset} of segment {ref.segment} is damaged: expected"
            assert "stream 'north', shard " in str(error) and place in str(error)
        store.flip(ref.segment, offset)
    assert padding < 2 * ALIGNMENT, "only padding carries nothing"
    assert read_batch(store, first, SCHEMA).equals(batch(2))
    with pytest.raises(SegmentCorrupt, match="as committed"):
        read_batch(store, FrameRef(ref.segment, ref.offset, ref.length, ref.crc ^ 1), SCHEMA)
    with pytest.raises(SegmentCorrupt, match="to the end of the file"):
        read_batch(store, FrameRef(ref.segment, ref.offset, ref.length + 64), SCHEMA)


def test_another_schema_and_dictionaries_are_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = SegmentWriter(store, FOLDER)
    ref = writer.append(header(), batch(1))
    with pytest.raises(SchemaMismatch, match="'north'"):
        read_batch(store, ref, pa.schema([("key", pa.string())]))
    coded = pa.record_batch([pa.array(["a"]).dictionary_encode()], names=["word"])
    with pytest.raises(SchemaMismatch, match=r"'word' .* cast it to string"):
        writer.append(header(), coded)
    writer.close()


def test_frames_that_a_failed_write_left_unsynced_do_not_count() -> None:
    store = FaultyStore()
    writer = SegmentWriter(store, FOLDER)
    kept = writer.append(header(), batch(1))
    # The next append fails half-way and is cut off; what was appended before it is still synced.
    store.fail_at(len(store.operations), How.TORN)
    with pytest.raises(StoreUnavailable):
        writer.append(header(), batch(2))
    writer.sync()
    store.fail_at(len(store.operations) + 1, How.BEFORE)
    writer.append(header(), batch(3))
    with pytest.raises(StoreUnavailable):
        writer.sync()
    fresh = writer.append(header(), batch(4))
    writer.sync()
    assert fresh.segment != kept.segment, "a file whose sync failed takes nothing more"
    after = store.process("after")
    store.crash()
    after = FaultyStore(disk=after.disk)
    assert read_batch(after, kept, SCHEMA).equals(batch(1))
    assert read_batch(after, fresh, SCHEMA).equals(batch(4))


def test_a_header_from_before_a_field_was_added_is_read_with_its_default() -> None:
    header = FrameHeader(
        FrameKind.DATA, "counts", 3, 7, 10, 12, 5, bucket_table=[(10, 1), (11, 2)], bucket_row_ends=[2, 5]
    )
    fields = msgspec.to_builtins(header)
    for added_since in (2, 3):
        older = msgspec.msgpack.decode(msgspec.msgpack.encode(fields[:-added_since]), type=FrameHeader)
        assert (older.destination_by, older.destination_ends) == ([], b"")
        assert older.bucket_table == header.bucket_table
