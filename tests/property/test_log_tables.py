"""The tables of a ledger against plain lists, and their bytes against any other bytes."""

from __future__ import annotations

import contextlib
import threading

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from holdfast.errors import JournalCorrupt, StoreUnfit
from holdfast.log.columns import Columns, pack, unpack
from holdfast.log.digest_table import DigestTable
from holdfast.log.frame_table import FrameTable
from holdfast.log.ledger import Ledger
from holdfast.model import FrameRef, Published

WORD = st.integers(-(2**63), 2**63 - 1)
BUCKET = st.integers(-5, 40)
FRAME = st.builds(
    lambda start, length, segment, offset, stamp, crc: Published(
        "s", 3, start, start + length, length, FrameRef(f"streams/s/n/{segment}", offset, 64 * length, crc), stamp
    ),
    BUCKET,
    st.integers(1, 5),
    st.sampled_from("abc"),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**50),
    st.integers(0, 2**32 - 1),
)


def table_of(frames: list[Published]) -> FrameTable:
    table = FrameTable("s", 3)
    for frame in frames:
        table.append(frame)
    return table


@given(st.lists(st.tuples(WORD, st.integers(0, 2**32 - 1), st.integers(-3, 3)), max_size=40))
def test_columns_come_back_from_their_bytes(rows: list[tuple[int, int, int]]) -> None:
    columns = Columns(3)
    for row in rows:
        columns.append(row)
    assert columns.view().T.tolist() == [list(row) for row in rows]
    assert unpack(pack(columns.view()), 3).T.tolist() == [list(row) for row in rows]


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_bytes_that_are_no_columns_are_refused_or_numbers(packed: list[bytes]) -> None:
    with contextlib.suppress(ValueError):
        assert unpack(packed, 3).shape[0] == 3


@given(st.lists(FRAME, max_size=30), BUCKET, BUCKET)
def test_a_frame_table_answers_as_a_list(frames: list[Published], bucket_from: int, bucket_to: int) -> None:
    table = FrameTable.restored(table_of(frames).stored()) if bucket_from % 2 else table_of(frames)
    assert table.all() == frames and table.last() == (frames[-1] if frames else None)
    wanted = [frame for frame in frames if frame.bucket_end > bucket_from and frame.bucket_start < bucket_to]
    assert table.between(bucket_from, bucket_to) == wanted
    kept = [frame for frame in frames if frame.bucket_end > bucket_from]
    rest = table.without(bucket_from)
    assert rest.all() == kept and table.all() == frames
    assert rest.size_bytes() == sum(frame.frame.length for frame in kept)
    uses = table.uses(bucket_from)
    assert uses == rest.uses()
    for path, use in uses.items():
        mine = [frame for frame in kept if frame.frame.segment == path]
        assert (use.frames, use.live_bytes) == (len(mine), sum(frame.frame.length for frame in mine))
        assert use.end == max(frame.frame.offset + frame.frame.length for frame in mine)
        assert use.bucket_end == max(frame.bucket_end for frame in mine)
    assert set(uses) == {frame.frame.segment for frame in kept}


@given(st.lists(FRAME, max_size=30), st.data())
def test_moved_frames_are_where_they_were_moved_to(frames: list[Published], data: st.DataObject) -> None:
    moving = data.draw(st.lists(st.sampled_from(frames), unique=True)) if frames else []
    refs = {frame.frame: FrameRef("streams/s/rewritten/d", n, frame.frame.length, 7) for n, frame in enumerate(moving)}
    refs[FrameRef("streams/s/n/a", -1, 64)] = FrameRef("streams/s/n/nobody", 0, 64)
    expected = [msgspec.structs.replace(frame, frame=refs.get(frame.frame, frame.frame)) for frame in frames]
    moved = table_of(frames).moved(refs)
    assert moved.all() == expected
    moved.append(frames[0]) if frames else None
    assert moved.all() == expected + frames[:1]


@given(st.lists(st.tuples(BUCKET, st.integers(0, 9), st.integers(0, 2**64 - 1)), max_size=30), BUCKET)
def test_a_digest_table_answers_as_a_dict(puts: list[tuple[int, int, int]], bucket: int) -> None:
    table = DigestTable()
    plain: dict[int, tuple[int, int]] = {}
    for at, rows, digest in puts:
        table.put(at, rows, digest)
        plain[at] = (rows, digest)
    table = DigestTable.restored(table.stored())
    assert table.items() == sorted(plain.items())
    rows, digest, rest = table.split(bucket)
    old = [value for at, value in plain.items() if at < bucket]
    assert (rows, digest) == (sum(r for r, _ in old), sum(d for _, d in old) % 2**64)
    assert rest.items() == [item for item in sorted(plain.items()) if item[0] >= bucket]


@settings(deadline=None)
@given(st.data())
def test_a_head_with_other_bytes_is_refused_by_name(data: st.DataObject) -> None:
    ledger = Ledger(4, 1000)
    for number in range(5):
        ledger.apply(Published("s", number % 2, number, number + 1, 1, FrameRef(f"streams/s/n/{number}", 0, 64)))
    head = bytearray(ledger.serialize())
    for _ in range(data.draw(st.integers(1, 4))):
        head[data.draw(st.integers(0, len(head) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(head)))
    for damaged in (bytes(head), bytes(head[:cut]), data.draw(st.binary(max_size=60))):
        try:
            found = Ledger.deserialize(damaged, "journal/node-000001/000003.log")
        except JournalCorrupt as error:
            assert "journal/node-000001/000003.log" in str(error)
        except StoreUnfit as error:
            assert "format version" in str(error)
        else:
            found.all_frames("s")


def test_a_query_while_another_thread_appends_and_trims_sees_whole_frames() -> None:
    ledger = Ledger(1, 1000)
    over = threading.Event()
    wrong: list[Published] = []
    buckets: list[int] = []

    def ask() -> None:
        while not over.is_set():
            found = ledger.frames("s", 0, 10**6)
            wrong.extend(frame for frame in found if frame.rows != frame.bucket_start + 1)
            steps = np.diff([frame.bucket_start for frame in found])
            buckets.extend(step for step in steps.tolist() if step != 1)

    thread = threading.Thread(target=ask)
    thread.start()
    for number in range(20_000):
        ref = FrameRef(f"streams/s/n/{number // 100}", number, 64)
        ledger.apply(Published("s", 0, number, number + 1, number + 1, ref))
        if number % 500 == 499:
            ledger.drop("s", number - 200)
    over.set()
    thread.join()
    assert wrong == [] and buckets == []
    assert ledger.last_frame("s", 0) == ledger.all_frames("s")[-1]
    with pytest.raises(AssertionError, match="shards and buckets"):
        Ledger(0, 1)
