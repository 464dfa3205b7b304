"""Retention, rewriting, verifying and repairing."""

from __future__ import annotations

import pytest
from tests.unit.log.log_session import (
    NAMES,
    SCHEMA,
    SHARDS,
    WIDTH_US,
    append_frame,
    batch_of,
    items_of,
    open_log,
)

from holdfast.errors import SegmentCorrupt, StreamTaken
from holdfast.log import inspect
from holdfast.log.reconcile import segment_paths
from holdfast.log.repair import repair, verify
from holdfast.log.retention import Need, decide
from holdfast.log.rewrite import rewrite
from holdfast.log.segment import read_batch
from holdfast.log.stream_log import LogOptions, StreamLog, StreamReader
from holdfast.model import Advanced, JournalItem, Moved, Published, Reported, Trimmed
from holdfast.testing.faulty_store import FaultyStore

FRAMES = 12


def filled(store: FaultyStore) -> StreamLog:
    """Return a log with a frame for each bucket, two or three to a segment."""
    log = open_log(store)
    writer = log.segment_writer("north", 0, 1)
    for number in range(FRAMES):
        committed(log, *items_of(number, append_frame(writer, number)))
    committed(log, Advanced("north", FRAMES * WIDTH_US))
    return log


def committed(log: StreamLog, *items: JournalItem) -> None:
    future = log.commit(items)
    log.flush()
    future.result()


def sizes_of(store: FaultyStore) -> dict[str, dict[str, int]]:
    return {"north": {path: store.size(path) for path in segment_paths(store, "north")}}


def segment_of(log: StreamLog, number: int) -> str:
    return log.ledger.all_frames("north")[number].frame.segment


def test_only_what_nobody_needs_is_dropped() -> None:
    store = FaultyStore()
    log = filled(store)
    needs = {"north": [Need("consumer 'report'", 7), Need("snapshot of averages", 9)]}
    (decision,) = decide(log.ledger, needs, sizes_of(store))
    assert decision.trimmed == Trimmed("north", 7) and decision.kept_for == "consumer 'report'"
    committed(log, decision.trimmed)
    assert [frame.bucket_start for frame in log.ledger.all_frames("north")] == list(range(7, FRAMES))
    assert decision.delete and segment_of(log, 0) not in decision.delete
    for path in decision.delete:
        store.delete(path)
    assert verify(store, log.ledger, ["north"]).damaged == []
    assert log.ledger.trimmed_before("north") == 7
    # The same again changes nothing.
    (decision,) = decide(log.ledger, needs, sizes_of(store))
    assert decision.trimmed is None and decision.delete == []


def test_the_segment_that_is_written_to_stays_unless_its_folder_is_closed() -> None:
    store = FaultyStore()
    log = filled(store)
    newest = segment_of(log, -1)
    needs = {"north": [Need("nobody but the clock", FRAMES)]}
    (decision,) = decide(log.ledger, needs, sizes_of(store))
    assert newest not in decision.delete and len(decision.delete) == len(sizes_of(store)["north"]) - 1
    (decision,) = decide(log.ledger, needs, sizes_of(store), open_folders=[])
    assert newest in decision.delete


def test_a_stream_without_known_needs_keeps_all_and_incomplete_buckets_stay() -> None:
    store = FaultyStore()
    log = filled(store)
    (decision,) = decide(log.ledger, {"north": []}, sizes_of(store))
    assert (decision.trimmed, decision.delete, decision.rewrite) == (None, [], [])
    (decision,) = decide(log.ledger, {"north": [Need("a reader of the future", 10**6)]}, sizes_of(store))
    assert decision.trimmed == Trimmed("north", FRAMES)


def test_trimming_folds_digests() -> None:
    log = filled(FaultyStore())
    before = log.ledger.digests("averages")
    committed(log, Trimmed("averages", 5))
    assert log.ledger.digests_folded("averages") == {0: (15, sum(range(5)))}
    assert log.ledger.digests("averages") == {key: value for key, value in before.items() if key[1] >= 5}


def test_a_sparse_segment_is_rewritten_and_readers_follow() -> None:
    store = FaultyStore()
    log = filled(store)
    reader = StreamReader(store.process("reader"), "north")
    reader.poll()
    sparse = segment_of(log, 0)
    moved = rewrite(store, log.ledger, "north", [sparse])
    committed(log, *moved.moved)
    store.delete(sparse)
    assert reader.poll() == moved.moved
    assert reader.ledger.all_frames("north") == log.ledger.all_frames("north")
    for number, frame in enumerate(reader.ledger.all_frames("north")):
        assert reader.read(frame.frame, SCHEMA).equals(batch_of(number))


def log_of_long_segments(store: FaultyStore, frames: int) -> StreamLog:
    """Return a log with a frame for each bucket, a dozen or so to a segment."""
    options = LogOptions(segment_bytes=5_000, commit_thread=False)
    log = StreamLog.open(store, NAMES, "node", shards=SHARDS, bucket_width_us=WIDTH_US, options=options)
    writer = log.segment_writer("north", 0, 1)
    for number in range(frames):
        committed(log, *items_of(number, append_frame(writer, number)))
    committed(log, Advanced("north", frames * WIDTH_US))
    return log


def frames_of_first_segment() -> int:
    log = log_of_long_segments(FaultyStore(), 40)
    return sum(frame.frame.segment == segment_of(log, 0) for frame in log.ledger.all_frames("north"))


def test_retention_asks_to_rewrite_what_is_mostly_dead_and_stays_for_long() -> None:
    store, first = FaultyStore(), frames_of_first_segment()
    log = log_of_long_segments(store, first + 1)
    (decision,) = decide(log.ledger, {"north": [Need("replay", first - 2)]}, sizes_of(store))
    assert decision.rewrite == [segment_of(log, 0)] and decision.delete == []


def test_what_will_soon_be_deleted_is_not_copied_before() -> None:
    """Else each byte of a fast stream would be written twice, and moved in the journal, just before it goes."""
    store, first = FaultyStore(), frames_of_first_segment()
    log = log_of_long_segments(store, 40)
    (decision,) = decide(log.ledger, {"north": [Need("replay", first - 2)]}, sizes_of(store))
    assert (decision.rewrite, decision.delete) == ([], [])
    (decision,) = decide(log.ledger, {"north": [Need("replay", first)]}, sizes_of(store))
    assert (decision.rewrite, decision.delete) == ([], [segment_of(log, 0)])


def test_copies_and_folders_whose_writers_are_gone_are_done_with() -> None:
    store = FaultyStore()
    log = filled(store)
    newest = segment_of(log, -1)
    moved = rewrite(store, log.ledger, "north", [newest])
    committed(log, *moved.moved)
    needs = {"north": [Need("nobody but the clock", FRAMES)]}
    copies = {path.rpartition("/")[0] for path in moved.segments}
    (decision,) = decide(log.ledger, needs, sizes_of(store), closed_folders=copies)
    assert set(moved.segments) <= set(decision.delete) and newest not in decision.delete
    (decision,) = decide(log.ledger, needs, sizes_of(store), closed_folders=[newest.rpartition("/")[0]])
    assert newest in decision.delete
    assert not set(moved.segments) & set(decision.delete), "another node may have made them"


def test_the_last_segments_of_an_earlier_life_go_like_any_other() -> None:
    """Their folder gets no later segment: without being told, retention would keep them until the next restart."""
    store = FaultyStore()
    log = filled(store)
    old = segment_of(log, -1)
    log.close()
    log = open_log(store)
    new = append_frame(log.segment_writer("north", 0, 2), FRAMES)
    committed(log, *items_of(FRAMES, new))
    committed(log, Advanced("north", (FRAMES + 1) * WIDTH_US))
    assert old.rpartition("/")[0] in log.folders_closed and new.segment.rpartition("/")[0] not in log.folders_closed
    needs = {"north": [Need("nobody but the clock", FRAMES + 1)]}
    (decision,) = decide(log.ledger, needs, sizes_of(store), closed_folders=log.folders_closed)
    assert old in decision.delete and new.segment not in decision.delete


def test_damage_is_mended_from_a_copy_with_the_committed_checksum() -> None:
    store = FaultyStore()
    log = filled(store)
    damaged = log.ledger.all_frames("north")[3].frame
    # A rewrite that was not committed left a copy behind.
    rewrite(store, log.ledger, "north", [damaged.segment])
    store.flip(damaged.segment, damaged.offset + 200)
    found = verify(store, log.ledger, ["north"])
    assert [damage.frame.frame for damage in found.damaged] == [damaged]
    result = repair(store, log, now_us=1)
    assert (result.mended, result.lost) == (1, [])
    assert read_batch(store, log.ledger.all_frames("north")[3].frame, SCHEMA).equals(batch_of(3))
    assert verify(store, log.ledger, ["north"]).damaged == []


def test_what_has_no_copy_is_reported_and_not_guessed() -> None:
    store = FaultyStore()
    log = filled(store)
    damaged = log.ledger.all_frames("north")[3].frame
    store.flip(damaged.segment, damaged.offset + 200)
    result = repair(store, log, now_us=1)
    assert result.mended == 0 and [damage.frame.bucket_start for damage in result.lost] == [3]
    (report,) = log.ledger.reports
    assert isinstance(report, Reported) and report.message.startswith("3 rows of shard 0, buckets [3, 4), are lost")
    with pytest.raises(SegmentCorrupt):
        read_batch(store, log.ledger.all_frames("north")[3].frame, SCHEMA)


def test_the_command_line_sees_the_same() -> None:
    store = FaultyStore()
    log = filled(store)
    other = store.process("command")
    shown = {line.stream: line for line in inspect.show_streams(other)}
    assert set(shown) == set(NAMES)
    assert (shown["north"].frames, shown["north"].rows, shown["north"].owner) == (FRAMES, 3 * FRAMES, "node")
    assert (shown["averages"].units, shown["averages"].boundary_us) == (SHARDS, FRAMES * WIDTH_US)
    assert {frame.kind for frame in inspect.show_segment(other, segment_of(log, 0), verify=True)} == {"DATA"}
    files = inspect.show_journal(other, log.term.journal)
    entries = [entry for _, shown in files for entry, visible in shown if visible]
    assert entries[-1].items == [Advanced("north", FRAMES * WIDTH_US)]
    assert [record.number for record in inspect.show_terms(other, "north")] == [0]
    with pytest.raises(StreamTaken):
        list(inspect.repair(other, ["north"], 1))
    # A torn tail behind the committed end.
    torn = append_frame(log.segment_writer("north", 1, 1), FRAMES)
    committed(log, Published("north", 0, FRAMES, FRAMES + 1, 3, torn))
    log.close()
    (verified,) = inspect.verify(other, ["north"])
    assert verified.frames == FRAMES + 1 and verified.damaged == []
    (repaired,) = inspect.repair(other, ["north"], 1)
    assert repaired.lost == [] and repaired.cut_bytes == 0


def test_torn_tails_are_cut() -> None:
    store = FaultyStore()
    log = open_log(store)
    writer = log.segment_writer("north", 0, 1)
    ref = append_frame(writer, 0)
    committed(log, *items_of(0, ref))
    append_frame(writer, 1)
    log.close()
    (repaired,) = inspect.repair(store, ["north"], 1)
    assert repaired.cut_bytes > 0 and store.size(ref.segment) == ref.length
    assert next(inspect.show_frames(store, "north")).frame == ref


def test_a_moved_frame_is_told_as_moved_to_a_reader_that_was_away() -> None:
    store = FaultyStore()
    log = filled(store)
    reader = StreamReader(store.process("reader"), "north")
    reader.poll()
    moved = rewrite(store, log.ledger, "north", [segment_of(log, 0)])
    committed(log, *moved.moved)
    for number in range(300):
        committed(log, Advanced("north", FRAMES * WIDTH_US + number))
    told = reader.poll()
    assert [item for item in told if isinstance(item, Moved)] == moved.moved
    assert not [item for item in told if isinstance(item, Published)]
    assert reader.ledger == log.ledger.about("north")
