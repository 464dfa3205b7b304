from __future__ import annotations

import contextlib
import select
import shutil
import threading
from pathlib import Path

import pytest
from tests.unit.log.log_session import NAMES, SCHEMA, SHARDS, WIDTH_US, append_frame, batch_of, items_of, open_log

from holdfast.errors import CommitRefused, SegmentCorrupt, StoreCorrupt, StoreUnavailable, StoreUnfit
from holdfast.log.journal import JournalReader, JournalWriter, journal_numbers
from holdfast.log.ledger import Ledger
from holdfast.log.local_store import LocalStore
from holdfast.log.stream_log import LogOptions, StreamLog, StreamReader
from holdfast.log.terms import take
from holdfast.model import (
    Advanced,
    BatchLogged,
    Ended,
    Entry,
    FileLogged,
    FrameRef,
    JournalItem,
    Moved,
    Published,
    Reported,
    SinkDone,
    SinkIntended,
    SnapshotVerified,
    Trimmed,
    UnitCommitted,
)
from holdfast.testing.faulty_store import FaultyStore, How


def open_local(store: LocalStore, **options: int) -> StreamLog:
    return StreamLog.open(store, NAMES, "node", shards=SHARDS, bucket_width_us=WIDTH_US, options=LogOptions(**options))


def committed(log: StreamLog, *items: JournalItem) -> int:
    future = log.commit(items)
    log.flush()
    return future.result(10)


def refusal(log: StreamLog, *items: JournalItem) -> str:
    future = log.commit(items)
    log.flush()
    error = future.exception(10)
    assert isinstance(error, CommitRefused)
    return str(error)


def test_frames_come_back_in_the_next_life(tmp_path: Path) -> None:
    with open_local(LocalStore(tmp_path)) as log:
        writer = log.segment_writer("north", 0, 1)
        for number in range(5):
            committed(log, *items_of(number, append_frame(writer, number)))
    store = LocalStore(tmp_path)
    with open_local(store) as log:
        assert log.term.numbers == {"north": 1, "averages": 1}
        assert log.ledger.boundary_us("north") == 4 * WIDTH_US
        assert log.ledger.boundary_us("averages") == 5 * WIDTH_US
        assert log.ledger.stream_bucket_end("averages") == 5
        frames = log.ledger.frames("north", 2, 4)
        reader = StreamReader(store, "north")
        assert [reader.read(frame.frame, SCHEMA) for frame in frames] == [batch_of(2), batch_of(3)]
        reader.close()


def test_commits_of_many_threads_are_numbered_and_told_in_order(tmp_path: Path) -> None:
    told: list[Entry] = []
    with open_local(LocalStore(tmp_path)) as log:
        log.on_commit(told.append)
        numbers: list[int] = []
        guard = threading.Lock()

        def work(writer: str) -> None:
            for sequence in range(20):
                number = log.commit([BatchLogged("north", writer, 0, sequence)]).result(10)
                with guard:
                    numbers.append(number)

        threads = [threading.Thread(target=work, args=(f"producer{k}",)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers) == list(range(80)) == [entry.number for entry in told]
        assert log.ledger.batch_last("north", "producer3") == (0, 19)


def test_a_reader_waits_for_the_next_entry(tmp_path: Path) -> None:
    reader = StreamReader(LocalStore(tmp_path), "north")
    assert reader.poll() == [] and not reader.wait(0)
    with open_local(LocalStore(tmp_path)) as log:
        assert reader.wait(10) and reader.poll() == []
        log.commit([Advanced("north", 7)])
        assert reader.wait(10)
        assert reader.poll() == [Advanced("north", 7)]
        threading.Timer(0.01, reader.wake).start()
        assert reader.wait(10)
    reader.close()


def test_journals_that_are_gone_are_named_and_never_begun_anew(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with open_local(store) as log:
        committed(log, Advanced("north", 7))
    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(StoreCorrupt, match=r"journal/.* is gone, and term 0 names it"):
        open_local(LocalStore(tmp_path))
    with (
        contextlib.closing(StreamReader(LocalStore(tmp_path), "north")) as reader,
        pytest.raises(StoreCorrupt, match="is gone"),
    ):
        reader.poll()


def test_a_head_that_comes_after_its_term_ends_the_wait(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    reader = StreamReader(store, "north")
    term = take(store, ["north"], "node", SHARDS, WIDTH_US)
    assert not reader.wait(0.05), "a term without a head is no news"
    writer = JournalWriter(store, term.journal, 0, ["north"], Ledger(SHARDS, WIDTH_US).serialize(), 0)
    # `wait` sleeps on this descriptor: unless it becomes readable, nothing would ever end the wait.
    assert select.select([reader.fileno()], [], [], 10.0)[0]
    assert reader.wait(0) and reader.poll() == [] and reader.started
    writer.close()
    term.release()
    reader.close()


@pytest.mark.parametrize(
    ("before", "item", "expected"),
    [
        (
            UnitCommitted("averages", 0, 1, 3, 5),
            UnitCommitted("averages", 0, 1, 3, 5),
            "buckets from 5 on, found [3, 5)",
        ),
        (
            UnitCommitted("averages", 0, 1, 3, 5),
            UnitCommitted("averages", 0, 1, 6, 7),
            "buckets from 5 on, found [6, 7)",
        ),
        (Advanced("north", 9), Advanced("north", 8), "a boundary at or after 9, found 8"),
        (BatchLogged("north", "p", 1, 4), BatchLogged("north", "p", 1, 4), "after (epoch, sequence) (1, 4)"),
        (
            FileLogged("north", "a.csv", 10, 1, 0, 5, False),
            FileLogged("north", "a.csv", 10, 1, 0, 5, True),
            "rows from 5 on, found rows [0, 5)",
        ),
        (SinkDone("out", "averages", 9, 1), SinkDone("out", "averages", 8, 1), "a bucket end at or after 9"),
        (
            Advanced("north", 9),
            Published("north", 0, 0, 1, 1, FrameRef("streams/north/n/0-1/0.seg", 0, 64), stamp_us=8),
            "a stamp at or after the boundary 9, found 8",
        ),
        (Advanced("north", 9), Advanced("south", 9), "a stream of this log (averages, north), found south"),
    ],
)
def test_what_goes_back_or_happens_twice_is_refused(before: JournalItem, item: JournalItem, expected: str) -> None:
    log = open_log(FaultyStore())
    committed(log, before)
    as_it_was = log.ledger.serialize()
    assert expected in refusal(log, Reported("x", "not without the other item", 1), item)
    assert log.ledger.serialize() == as_it_was
    # The same inside one group, before the first of them is synced.
    log = open_log(FaultyStore())
    first, second = log.commit([before]), log.commit([item])
    log.flush()
    assert first.exception() is None and isinstance(second.exception(), CommitRefused)


def test_a_full_disk_stops_the_log_and_freeing_space_lets_it_go_on() -> None:
    store = FaultyStore()
    log = open_log(store)
    committed(log, Advanced("north", 1))
    store.fill()
    failed = log.commit([Advanced("north", 2)])
    log.flush()
    assert isinstance(failed.exception(), StoreUnavailable)
    assert isinstance(log.commit([Advanced("north", 3)]).exception(), StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        log.reopen()
    store.fill(False)
    log.reopen()
    assert log.failure is None
    committed(log, Advanced("north", 4))
    reader = StreamReader(store.process("reader"), "north")
    reader.poll()
    assert reader.ledger.boundary_us("north") == log.ledger.boundary_us("north") == 4


def test_an_entry_that_could_only_not_be_shown_is_committed() -> None:
    store = FaultyStore()
    log = open_log(store)
    reader = StreamReader(store.process("reader"), "north")
    reader.poll()
    # Operations of a commit: append, sync, mark.
    store.fail_at(len(store.operations) + 2, How.BEFORE)
    committed(log, Advanced("north", 5))
    assert log.failure is None
    assert reader.poll() == [Advanced("north", 5)], "a new file shows it"


def test_the_journal_rolls_over_and_readers_follow(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    near, far = StreamReader(store, "north"), StreamReader(LocalStore(tmp_path), "north")
    with open_local(store, journal_bytes=5000) as log:
        far.poll()
        told: list[JournalItem] = []
        for number in range(200):
            committed(log, Advanced("north", number), BatchLogged("north", "p", 0, number))
            told += near.poll()
        files = journal_numbers(store, log.term.journal)
        assert len(files) == 2 and files[0] > 3, "old files are deleted"
        assert told == [item for n in range(200) for item in (Advanced("north", n), BatchLogged("north", "p", 0, n))]
        # The other was away: it is told where things are now, and what its last files still say.
        assert far.poll()[-1] == BatchLogged("north", "p", 0, 199)
        assert far.ledger == near.ledger == log.ledger.about("north")
    near.close()
    far.close()


def test_a_head_keeps_everything(tmp_path: Path) -> None:
    items: list[JournalItem] = [
        FileLogged("north", "a.csv", 10, 1, 0, 5, False),
        SnapshotVerified("averages", 0, 1, "snapshots/averages/0/1"),
        SnapshotVerified("averages", 0, 2, "snapshots/averages/0/2"),
        SnapshotVerified("averages", 0, 3, "snapshots/averages/0/3"),
        SinkDone("out", "averages", 1, 3),
        SinkIntended("out", "averages", 1, 2, "part-1"),
        Ended("averages", 1),
        Reported("north", "a gap", 5),
    ]
    store = LocalStore(tmp_path)
    log = open_local(store)
    committed(log, *items_of(0, append_frame(log.segment_writer("north", 0, 1), 0)), *items)
    log.close()
    again = open_local(store)
    assert again.ledger == log.ledger
    assert [snapshot.bucket_end for snapshot in again.ledger.snapshots("averages", 0)] == [2, 3]
    assert again.ledger.boundary_us("averages") == WIDTH_US
    assert again.ledger.sinks["out"].intended == SinkIntended("out", "averages", 1, 2, "part-1")
    # A reader that begins now is told the same things, in one go.
    reader = StreamReader(store, "averages")
    told = reader.poll()
    assert Ended("averages", 1) in told and SinkDone("out", "averages", 1, 3) in told
    assert UnitCommitted("averages", 0, 1, 0, 1, [(0, 3, 0)]) in told
    reader.close()
    again.close()


def test_two_streams_with_different_last_journals_come_together(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def open_some(*names: str) -> StreamLog:
        return StreamLog.open(store, names, "node", shards=SHARDS, bucket_width_us=WIDTH_US)

    with open_some("north") as north, open_some("south") as south:
        committed(north, Advanced("north", 5))
        committed(south, Advanced("south", 6), SinkDone("out", "south", 3, 1))
    with open_some("north", "south") as both:
        assert (both.ledger.boundary_us("north"), both.ledger.boundary_us("south")) == (5, 6)
        assert both.ledger.sinks["out"].bucket_end == 3
    with open_some("south") as south:
        assert south.ledger.streams == ["south"]
        with open_some("north") as north:
            assert north.ledger.boundary_us("north") == 5


def test_a_missing_segment_is_named_at_opening(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with open_local(store) as log:
        ref = append_frame(log.segment_writer("north", 0, 1), 0)
        committed(log, *items_of(0, ref))
    store.truncate(ref.segment, ref.length - 1)
    with pytest.raises(SegmentCorrupt, match=r"stream 'north', shard 0: .* offset 0 of segment .* is missing"):
        open_local(store)


def test_orphan_segments_are_deleted_at_opening(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with open_local(store) as log:
        ref = append_frame(log.segment_writer("north", 0, 1), 0)
    with open_local(store) as log:
        assert log.reconciled.orphans == {ref.segment: ref.length}
        assert not store.exists(ref.segment)


def test_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    open_local(LocalStore(tmp_path)).close()
    with pytest.raises(StoreUnfit, match="2 shards"):
        StreamLog.open(LocalStore(tmp_path), NAMES, "node", shards=3, bucket_width_us=WIDTH_US)


def test_nothing_is_said_about_the_streams_of_others() -> None:
    log = open_log(FaultyStore())
    ref = FrameRef("streams/south/node/0-000001/000000.seg", 0, 64)
    items: list[JournalItem] = [
        Trimmed("south", 5),
        Moved("south", ref, ref),
        Ended("south", 5),
        SnapshotVerified("south", 0, 5, "snapshots/south/0/b5-1-1"),
    ]
    for item in items:
        refused = log.commit([item])
        log.flush()
        assert isinstance(refused.exception(), CommitRefused) and "'south'" in str(refused.exception())
    assert log.ledger.streams == []
    log.close()


def test_a_refused_entry_leaves_no_trace_among_those_that_are_queued_with_it() -> None:
    log = open_log(FaultyStore())
    first = log.commit([UnitCommitted("averages", 0, 1, 0, 5), Advanced("north", 500)])
    torn = log.commit([UnitCommitted("averages", 0, 1, 5, 9), Advanced("north", 900), BatchLogged("south", "w", 0, 0)])
    second = log.commit([UnitCommitted("averages", 0, 1, 5, 7), Advanced("north", 600)])
    late = log.commit([UnitCommitted("averages", 0, 1, 5, 7)])
    log.flush()
    assert (first.exception(), second.exception()) == (None, None)
    assert isinstance(torn.exception(), CommitRefused) and isinstance(late.exception(), CommitRefused)
    unit = log.ledger.unit("averages", 0)
    assert unit is not None and unit.bucket_end == 7 and log.ledger.promised("north")[0] == 600
    log.close()


def test_old_files_that_cannot_be_deleted_do_not_stop_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    log = open_log(store)

    def refuse(path: str) -> None:
        raise StoreUnfit(f"deleting {path} failed: not permitted")

    monkeypatch.setattr(store, "delete", refuse)
    for number in range(400):
        committed = log.commit([Advanced("north", number)])
        log.flush()
        assert committed.exception() is None
    assert log.failure is None and len(journal_numbers(store, log.term.journal)) > 3
    log.close()
    with open_log(store, "after") as after:
        assert after.ledger.promised("north")[0] == 399


def test_a_disk_that_stays_full_does_not_fill_with_beginnings() -> None:
    store = FaultyStore()
    log = open_log(store)
    store.fail_at(len(store.operations), How.BEFORE)
    assert isinstance(failed_commit(log), StoreUnavailable)
    files = journal_numbers(store, log.term.journal)
    for _ in range(5):
        first = len(store.operations)
        # Whatever step of beginning a file has no room: to make it, write its head, sync it, note it (after the mark).
        for step in (0, 1, 2, 4):
            store.fail_at(len(store.operations) + step, How.BEFORE)
            with pytest.raises(StoreUnavailable):
                log.reopen()
            store.disk.faults.clear()
        assert len(store.operations) > first
    assert journal_numbers(store, log.term.journal) == files
    log.reopen()
    assert failed_commit(log) is None
    log.close()


def failed_commit(log: StreamLog) -> BaseException | None:
    future = log.commit([Advanced("north", 5)])
    log.flush()
    return future.exception()


def test_a_head_whose_mark_is_written_while_it_is_read_is_not_there_yet(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writer = JournalWriter(store, "journal/x", 0, ["x"], b"head" * 3000, 0)

    class Hurried(JournalReader):
        """Looks at the mark for the first time just before it is written."""

        looks = 0

        def mark(self) -> int:
            self.looks += 1
            return 0 if self.looks == 1 else super().mark()

    assert Hurried(store, "journal/x", 0).head() is None
    assert JournalReader(store, "journal/x", 0).head() == b"head" * 3000
    writer.close()
