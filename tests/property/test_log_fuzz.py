"""Damage to any byte of any file of a store: what is committed is read as written, or an error says what is wrong.

The files of a small store are flipped, cut, filled with zeros and with giant lengths. Then everything that reads them
runs: a reader, a successor, verifying, showing. Each may raise an error of holdfast's own; none may lose a committed
frame, give other rows, or fail in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.log.log_session import NAMES, OPTIONS, SCHEMA, SHARDS, WIDTH_US, append_frame, batch_of, items_of

from holdfast.errors import HoldfastError, JournalCorrupt, Repairable, StoreCorrupt
from holdfast.log import inspect
from holdfast.log.frame import FrameFault, FrameHeader, decode, decode_header, encode
from holdfast.log.journal import BEGUN, BLOCK_BYTES
from holdfast.log.segment import read_batch
from holdfast.log.stream_log import StreamLog, StreamReader
from holdfast.log.terms import TermRecord
from holdfast.model import Entry, FrameKind
from holdfast.testing.faulty_store import FaultyStore

FRAMES = 40


def open_log(store: FaultyStore, owner: str) -> StreamLog:
    return StreamLog.open(store, NAMES, owner, shards=SHARDS, bucket_width_us=WIDTH_US, options=OPTIONS)


def filled() -> FaultyStore:
    """Return a store with two terms, rolled-over journals, and several segments."""
    store = FaultyStore()
    for life, numbers in enumerate([range(FRAMES // 2), range(FRAMES // 2, FRAMES)]):
        with open_log(store, f"node{life}") as log:
            writer = log.segment_writer("north", 0, life)
            for number in numbers:
                future = log.commit(items_of(number, append_frame(writer, number)))
                log.flush()
                future.result()
            writer.close()
    return store


def files_of(store: FaultyStore) -> list[str]:
    return sorted(store.disk.seen)


def damage_file(store: FaultyStore, path: str, change: Callable[[bytearray], bytearray]) -> None:
    content = change(bytearray(store.disk.seen[path].seen))
    store.disk.seen[path].seen[:] = content


def flip(at: int, mask: int) -> Callable[[bytearray], bytearray]:
    def change(content: bytearray) -> bytearray:
        content[at % len(content)] ^= mask
        return content

    return change


def cut(at: int) -> Callable[[bytearray], bytearray]:
    return lambda content: content[: at % (len(content) + 1)]


def overwrite(at: int, data: bytes) -> Callable[[bytearray], bytearray]:
    def change(content: bytearray) -> bytearray:
        start = at % len(content)
        content[start : start + len(data)] = data[: len(content) - start]
        return content

    return change


PLACE = st.integers(0, 2**20)
GIANT = st.sampled_from(
    [b"\xff" * 4, b"\xff" * 8, b"\x00\x00\x00\x7f", (2**40).to_bytes(8, "little"), b"\xdd\xff\xff\xff\xff"]
)
DAMAGE = st.one_of(
    st.builds(flip, PLACE, st.integers(1, 255)),
    st.builds(cut, PLACE),
    st.builds(overwrite, PLACE, st.integers(1, 5000).map(bytes)),
    st.builds(overwrite, PLACE, GIANT),
    st.builds(overwrite, PLACE, st.binary(min_size=1, max_size=200)),
)


def check_rows(store: FaultyStore, reader: StreamReader) -> None:
    for frame in reader.ledger.all_frames("north"):
        try:
            assert read_batch(store, frame.frame, SCHEMA).equals(batch_of(frame.bucket_start))
        except (Repairable, FileNotFoundError) as error:
            assert frame.frame.segment in str(error) or isinstance(error, FileNotFoundError)


def show(store: FaultyStore, term: TermRecord) -> Iterator[tuple[inspect.JournalShown, Iterator[tuple[Entry, bool]]]]:
    return inspect.show_journal(store, term.journal)


def read_everything(store: FaultyStore) -> None:
    reader = StreamReader(store.process("reader"), "north")
    try:
        reader.poll()
        check_rows(store, reader)
    except HoldfastError:
        pass
    for look in (
        lambda: list(inspect.verify(store, ["north"])),
        lambda: inspect.show_streams(store),
        lambda: [list(entries) for term in inspect.show_terms(store, "north") for _, entries in show(store, term)],
        lambda: [list(inspect.show_segment(store, path, True)) for path in files_of(store) if path.endswith(".seg")],
    ):
        try:
            look()
        except HoldfastError:
            continue


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_store_is_named_or_whole(data: st.DataObject) -> None:
    store = filled()
    path = data.draw(st.sampled_from(files_of(store)))
    for change in data.draw(st.lists(DAMAGE, min_size=1, max_size=3)):
        if store.disk.seen[path].seen:
            damage_file(store, path, change)
    read_everything(store)
    try:
        log = open_log(store, "after")
    except Repairable as error:
        assert path in str(error) or path.rpartition("/")[0] in str(error)
        return
    except HoldfastError as error:
        assert "format version" in str(error)
        return
    with log:
        frames = log.ledger.all_frames("north")
        assert [frame.bucket_start for frame in frames] == list(range(FRAMES)), "what is committed is never left out"


@pytest.mark.parametrize("size", [0, 10, BLOCK_BYTES - 1, BLOCK_BYTES + 3])
def test_a_journal_that_was_cut_is_not_taken_for_one_that_never_began(size: int) -> None:
    """Going on from an older one, or from nothing, would delete what the lost entries name."""
    for journal in ("node0-000000", "node1-000001"):
        store = filled()
        files = [path for path in files_of(store) if journal in path and path.endswith(".log")]
        newest = files[-1]
        if journal.startswith("node0"):
            # As if the second life had never been.
            for path in [path for path in files_of(store) if "node1" in path or path.endswith("000001")]:
                store.disk.remove(path)
        damage_file(store, newest, cut(size) if size else lambda _: bytearray())
        segments = [path for path in files_of(store) if path.endswith(".seg")]
        with pytest.raises(JournalCorrupt, match="restore the file"):
            open_log(store, "after")
        assert [path for path in files_of(store) if path.endswith(".seg")] == segments


def test_a_first_block_of_zeros_is_noticed_by_readers_too() -> None:
    store = filled()
    newest = [path for path in files_of(store) if "node1" in path and path.endswith(".log")][-1]
    damage_file(store, newest, overwrite(0, bytes(BLOCK_BYTES)))
    with pytest.raises(JournalCorrupt, match="first block"):
        StreamReader(store.process("reader"), "north").poll()


def test_damaged_notes_and_terms_are_named() -> None:
    for name, expected in ((BEGUN, JournalCorrupt), ("north/000001", StoreCorrupt)):
        store = filled()
        path = next(path for path in files_of(store) if path.endswith(name) and "node0" not in path)
        for at in range(len(store.disk.seen[path].seen)):
            damage_file(store, path, flip(at, 1))
            with pytest.raises(expected, match=path.replace(".", r"\.")):
                open_log(store, "after")
            damage_file(store, path, flip(at, 1))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_fault(data: bytes) -> None:
    with pytest.raises(FrameFault):
        decode(memoryview(data))


@given(st.data())
def test_a_frame_with_other_bytes_is_a_fault_or_the_same(data: st.DataObject) -> None:
    encoded = encode(FrameHeader(FrameKind.DATA, "north", 0, 1, 3, 4), batch_of(3))
    content = bytearray(b"".join(bytes(buffer) for buffer in encoded.buffers))
    for change in data.draw(st.lists(DAMAGE, min_size=1, max_size=3)):
        content = change(content) if content else content
    try:
        view = decode_header(memoryview(bytes(content)))
        view.verify(memoryview(bytes(content)))
        assert view.batch(SCHEMA).equals(batch_of(3))
    except FrameFault:
        pass
