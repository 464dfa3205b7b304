"""What a slot does with units: attach, process, roll back, publish, reject; and its answers when things go wrong."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs
from tests.unit.node.slot_session import SlotSession, topology_of
from tests.unit.node.stages import SCHEMA, rows_of, some_rows, stage_of
from tests.unit.operators.harness import WIDTH_US, serialized

from holdfast import plan
from holdfast.model import FIRST_BUCKET, UnitCommitted
from holdfast.node.messages import Attached, Failed, ForgetWork, Forgotten, Processed, Skipped, StateAbsent
from holdfast.testing.faulty_store import FaultyStore, How


def session_of(folder: Path, kind: str = "count", **options: object) -> SlotSession:
    session = SlotSession(folder, topology_of(stage_of(kind, **options)))
    for bucket in range(100, 110):
        session.feed("north", some_rows(1, bucket, 30), bucket)
    session.promise(110)
    return session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SlotSession]:
    opened = session_of(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def expected(tmp_path: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """What comes out when nothing goes wrong."""
    undisturbed = session_of(tmp_path / "undisturbed")
    undisturbed.attach_all()
    undisturbed.process(110)
    undisturbed.close()
    return undisturbed.digests()


def test_waves_of_any_size_give_the_same_rows(session: SlotSession, expected: object) -> None:
    session.attach_all()
    for bucket_to in (101, 104, 109, 110):
        session.process(bucket_to)
    assert session.digests() == expected
    assert sum(rows for rows, _ in session.digests().values()) == len(session.rows()) > 50


def test_a_lost_receipt_costs_a_rollback_in_memory(session: SlotSession, expected: object) -> None:
    session.attach_all()
    session.process(103)
    session.process(107, commit=False)
    session.restart()
    assert [(each.origin, each.bucket_memory) for each in session.attach_all()] == [("memory", 103)] * 2
    session.process(105)
    session.process(110)
    assert session.digests() == expected


def test_a_lost_task_is_done_again_without_attaching(session: SlotSession, expected: object) -> None:
    session.attach_all()
    session.process(103)
    session.process(107, commit=False)
    session.process(108)
    session.process(110)
    assert session.digests() == expected


def test_memory_serves_when_the_journal_went_on_without_rows(tmp_path: Path) -> None:
    session = SlotSession(tmp_path, topology_of(stage_of("count")))
    session.feed("north", some_rows(1, 100, 30), 100)
    session.promise(120)
    session.attach_all()
    session.process(101)
    session.idle(120)
    session.feed("north", some_rows(1, 120, 30), 120)
    session.promise(121)
    session.bucket_memory = dict.fromkeys(session.bucket_memory, 101)
    session.process(121, commit=False)
    session.restart()
    attached = session.attach_all()
    assert [(each.origin, each.bucket_memory) for each in attached] == [("memory", 101)] * 2
    done = session.process(121)
    assert sum(rows for unit in done.units for _, rows, _ in unit.digests) == len(session.rows()) - _rows_before(
        session, 101
    )
    session.close()


def _rows_before(session: SlotSession, bucket: int) -> int:
    return sum(rows for (_, at), (rows, _) in session.digests().items() if at < bucket)


def test_memory_that_is_behind_is_replayed_and_publishes_only_what_is_new(
    session: SlotSession, expected: object
) -> None:
    session.attach_all()
    session.process(103)
    elsewhere = SlotSession(session.folder / "elsewhere", session.topology, store=session.store, log=session.log)
    elsewhere.generation = session.generation + 100
    elsewhere.attach_all()
    elsewhere.process(103)
    elsewhere.process(107)
    elsewhere.slot.close()
    before = len(session.rows())
    session.generation = elsewhere.generation + 100
    assert [(each.origin, each.bucket_memory) for each in session.attach_all()] == [("memory", 103)] * 2
    # One wave over buckets that are out already, and over some that are not.
    session.process(110)
    assert session.digests() == expected
    new = sum(rows for (_, bucket), (rows, _) in session.digests().items() if bucket >= 107)
    assert len(session.rows()) == before + new


def test_without_memory_and_snapshots_everything_is_replayed(session: SlotSession, expected: object) -> None:
    session.attach_all()
    session.process(106)
    session.restart(memory=False)
    assert [(each.origin, each.bucket_memory) for each in session.attach_all()] == [("empty", FIRST_BUCKET)] * 2
    session.process(110)
    assert session.digests() == expected


def test_a_unit_whose_input_is_gone_is_refused_by_name(session: SlotSession) -> None:
    session.attach_all()
    session.process(110)
    session.trim(105)
    session.restart(memory=False)
    (result,) = session.perform(session.attach_work(1))
    assert isinstance(result, Failed) and not result.retry and result.error == "StoreUnfit"
    assert "unit 1 of stage 'results'" in result.message and "from bucket 105 on" in result.message


def test_memory_from_before_what_is_kept_is_not_used(session: SlotSession) -> None:
    session.attach_all()
    session.process(103)
    session.trim(105)
    session.restart()
    (result,) = session.perform(session.attach_work(0))
    assert isinstance(result, Failed) and result.error == "StoreUnfit"


def test_a_unit_that_another_process_works_on_is_waited_for(session: SlotSession, expected: object) -> None:
    session.attach_all()
    session.process(103)
    held = session.slot.units._held["results", 0]
    assert held.state is not None
    held.state.begin(103)
    other = session.new_slot()
    (result,) = session.perform(session.attach_work(0), slot=other)
    assert isinstance(result, Failed) and result.retry and result.error == "StateBusy"
    held.state.end()
    assert session.attach(0, other).origin == "memory"
    other.close()
    session.attach_all()
    session.process(110)
    assert session.digests() == expected


def test_an_older_life_is_refused_and_says_which_unit(session: SlotSession) -> None:
    session.attach_all()
    old = session.work(103)
    other = session.new_slot()
    session.attach(1, other)
    (result,) = session.perform(old)
    assert isinstance(result, StateAbsent) and (result.stage, result.shard) == ("results", 1)
    other.close()


def test_state_that_was_removed_is_absent(session: SlotSession, expected: object) -> None:
    session.attach_all()
    session.process(103)
    for path in (session.folder / "state").rglob("results-1.state"):
        path.unlink()
    (result,) = session.perform(session.work(105))
    assert isinstance(result, StateAbsent) and result.shard == 1
    assert session.attach(1).origin == "empty"
    session.process(103, [1])
    # Unit 0 has done the wave that is not committed: it goes back first.
    session.process(110)
    assert session.digests() == expected


def test_a_frame_of_several_buckets_is_published_from_the_middle(session: SlotSession) -> None:
    session.attach_all()
    work = session.work(110)
    units = [type(unit)(unit.shard, unit.generation, unit.bucket_memory, 105, False) for unit in work.units]
    (result,) = session.perform(type(work)(work.stage, units, work.bucket_from, 110, work.frames))
    assert isinstance(result, Processed)
    for unit in result.units:
        (frame,) = unit.published
        header, batch = session.read(frame, pa.ipc.read_schema(pa.py_buffer(session.stage.schema)))
        counts = {bucket: rows for bucket, rows, _ in unit.digests if bucket >= 105}
        assert [bucket for bucket, _ in header.bucket_table] == sorted(counts)
        assert frame.bucket_start == min(counts) >= 105 and frame.bucket_end == max(counts) + 1
        assert batch.num_rows == sum(counts.values()) == header.bucket_row_ends[-1]


@pytest.mark.parametrize("sharded", [True, False])
def test_late_rows_go_to_the_side_once(tmp_path: Path, sharded: bool) -> None:
    stage = stage_of("tumbling", late="side", sharded=sharded)
    session = SlotSession(tmp_path, topology_of(stage))
    session.feed("north", rows_of(["apple", "bread"], [1, 2], [100_000, 120_000]), 100)
    session.feed("north", rows_of(["apple", "bread", "cheese"], [3, 4, 5], [100_100, 120_100, 100_200]), 101)
    session.promise(102)
    session.attach_all()
    done = session.process(102)
    assert sum(unit.rows_late for unit in done.units) == 2
    assert {(row["item"], row["price"]) for row in session.rows("north.late")} == {("apple", 3), ("cheese", 5)}
    assert all(frame.bucket_start == 101 for frame in session.log.ledger.all_frames("north.late"))
    session.close()


def test_late_rows_of_buckets_that_others_have_completed_are_not_kept(tmp_path: Path) -> None:
    session = SlotSession(tmp_path, topology_of(stage_of("tumbling", late="side")))
    for bucket in (100, 101, 102):
        session.feed("north", rows_of(["apple", "apple"], [1, bucket], [200_000, 100_000]), bucket)
    session.promise(103)
    session.attach_all()
    work = session.work(103)
    units = [structs.replace(unit, sides_from=102) for unit in work.units]
    work = structs.replace(work, units=units)
    (result,) = session.perform(work)
    assert isinstance(result, Processed)
    session.take(work, result)
    assert sum(unit.rows_late for unit in result.units) == 2
    assert [row["price"] for row in session.rows("north.late")] == [102]
    session.close()


@pytest.mark.parametrize("tuple_time", [None, "at"])
def test_frames_that_carry_no_event_time_are_asked_for_it(tmp_path: Path, tuple_time: str | None) -> None:
    """A stage with a watermark came later: it gives what it would have given from the beginning."""
    found = []
    for number, logged in enumerate(("at", None)):
        topology = topology_of(stage_of("tumbling"), tuple_time=tuple_time)
        sources = [structs.replace(source, event_time=logged) for source in topology.sources]
        session = SlotSession(tmp_path / f"{number}", structs.replace(topology, sources=sources))
        for bucket in range(100, 110):
            rows = some_rows(1, bucket, 30, late_us=0 if tuple_time else WIDTH_US)
            session.feed("north", rows, None if tuple_time else bucket)
        session.promise(110)
        session.attach_all()
        for bucket_to in (103, 110):
            session.process(bucket_to)
        found.append(session.digests())
        session.close()
    assert found[0] == found[1] and found[0]


def test_a_unit_of_a_stage_that_came_later_begins_empty_where_it_is_told(tmp_path: Path, session: SlotSession) -> None:
    session.trim(105)
    works = [
        structs.replace(session.attach_work(shard), bucket_committed=105, empty_allowed=True, bucket_empty=105)
        for shard in range(2)
    ]
    found = session.perform(*works)
    places = [(each.bucket_memory, each.origin) for each in found if isinstance(each, Attached)]
    assert places == [(105, "empty")] * 2
    session.bucket_memory = {0: 105, 1: 105}
    session.commit(*(UnitCommitted("results", shard, 0, 100, 105) for shard in range(2)))
    session.process(110)
    assert {bucket for _, bucket in session.digests()} <= set(range(105, 110))


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A user's function that does not take cheese."""
    for batch in batches:
        if "cheese" in batch.column("item").to_pylist():
            raise ValueError("no cheese today")
        yield batch


def mapped(on_error: str, **options: object) -> plan.Stage:
    step = plan.MapInArrow(0, "doubled", serialized(SCHEMA), on_error)  # type: ignore[arg-type]
    return stage_of("running", steps=[step], on_error=on_error, **options)


@pytest.mark.parametrize("sharded", [True, False])
def test_rows_that_a_function_refuses_go_to_the_rejects_once(tmp_path: Path, sharded: bool) -> None:
    session = SlotSession(tmp_path, topology_of(mapped("reject", sharded=sharded)), [doubled])
    session.feed("north", rows_of(["apple", "cheese", "bread"], [1, 2, 3], [0, 0, 0]), 100)
    session.promise(101)
    session.attach_all()
    done = session.process(101)
    (rejected,) = session.rows("north.rejects")
    assert sum(unit.rows_rejected for unit in done.units) == 1
    assert rejected["reason"] == "ValueError: no cheese today" and '"cheese"' in rejected["row"]
    assert {row["item"] for row in session.rows()} == {"apple", "bread"}
    session.close()


def test_a_function_that_raises_stops_with_the_row_named_and_nothing_lost(tmp_path: Path) -> None:
    session = SlotSession(tmp_path, topology_of(mapped("stop")), [doubled])
    session.feed("north", rows_of(["apple", "bread"], [1, 3], [0, 0]), 100)
    session.feed("north", rows_of(["apple", "cheese"], [1, 2], [0, 0]), 101)
    session.promise(102)
    session.attach_all()
    session.process(101)
    before = session.rows()
    result, skipped = session.perform(session.work(102), session.attach_work(0))
    assert isinstance(result, Failed) and not result.retry and result.error == "UserFunctionFailed"
    assert "bucket 101, position" in result.message and '"cheese"' in result.message
    assert isinstance(skipped, Skipped)
    assert session.rows() == before
    # The function was mended: the same buckets again, from the state before them.
    session.restart()
    session.slot.context.setup = session.setup = type(session.setup)(
        session.setup.pipeline_id, "", session.setup.topology, session.setup.state_folder, (lambda batches: batches,)
    )
    assert [each.origin for each in session.attach_all()] == ["memory", "memory"]
    session.process(102)
    assert {row["item"]: row["total"] for row in session.rows()} == {"apple": 2, "bread": 3, "cheese": 2}
    session.close()


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("operation", ["append", "sync"])
def test_a_write_that_fails_is_tried_again_and_nothing_is_lost(
    session: SlotSession, expected: object, operation: str, how: How
) -> None:
    store = session.store
    assert isinstance(store, FaultyStore)
    session.attach_all()
    session.process(103)
    first = len(store.operations)
    number = first if operation == "append" else first + session.shards
    store.fail_at(number, how)
    (result,) = session.perform(session.work(107))
    assert operation in store.operations[number] and "results" in store.operations[number]
    assert isinstance(result, Failed) and result.retry and result.error == "StoreUnavailable"
    session.process(107)
    session.process(110)
    assert session.digests() == expected
    assert len(session.rows()) == sum(rows for rows, _ in session.digests().values())


def test_a_full_disk_is_retried_until_there_is_room(session: SlotSession, expected: object) -> None:
    store = session.store
    assert isinstance(store, FaultyStore)
    session.attach_all()
    session.process(103)
    store.fill()
    for _ in range(3):
        (result,) = session.perform(session.work(110))
        assert isinstance(result, Failed) and result.retry and "full" in result.message
    store.fill(False)
    session.process(110)
    assert session.digests() == expected
    assert len(session.rows()) == sum(rows for rows, _ in session.digests().values())


def test_a_failed_piece_leaves_what_was_done_before_it_durable(session: SlotSession) -> None:
    """Two works in one order: the second cannot have its unit, the first one's frames are synced all the same."""
    store = session.store
    assert isinstance(store, FaultyStore)
    session.attach_all()
    other = session.new_slot()
    held = session.slot.units._held["results", 1]
    assert held.state is not None
    work, blocked = session.work(105, [0]), session.work(105, [1])
    held.state.begin(FIRST_BUCKET)
    done, failed = session.perform(work, blocked, slot=other)
    held.state.end()
    assert isinstance(done, Processed) and isinstance(failed, Failed) and failed.retry
    session.take(work, done)
    other.close()
    store.crash()
    session.store = FaultyStore(owner="survivor", disk=store.disk)
    session.log = session.open_log()
    assert len(session.rows()) == sum(rows for rows, _ in session.digests().values()) > 0


def test_the_operating_systems_full_disk_is_passing(session: SlotSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    session.attach_all()
    monkeypatch.setattr(session.slot.context, "writer", full)
    (result,) = session.perform(session.work(105))
    assert isinstance(result, Failed) and result.retry and "No space left" in result.message


def test_a_frame_that_was_moved_is_asked_for_again(session: SlotSession) -> None:
    session.attach_all()
    work = session.work(105)
    for path in {frame.frame.segment for frame in work.frames}:
        session.store.delete(path)
    (result,) = session.perform(work)
    assert isinstance(result, Failed) and result.retry and "gone" in result.message


def test_a_stage_without_state_attaches_where_the_journal_is(tmp_path: Path) -> None:
    read = plan.StageInput("north", serialized(SCHEMA), [])
    stage = plan.Stage("results", [read], serialized(SCHEMA), None, [], serialized(SCHEMA), sharded=True)
    session = SlotSession(tmp_path, topology_of(stage))
    session.feed("north", some_rows(1, 100, 20), 100)
    session.promise(101)
    session.attach_all()
    session.process(101)
    session.restart()
    assert [each.bucket_memory for each in session.attach_all()] == [101, 101]
    assert len(session.rows()) == 20
    session.close()


def test_a_unit_that_reads_all_shards_gets_column_timed_rows_in_order(tmp_path: Path) -> None:
    """A frame is sorted by tuple_time within each shard only; a stage with other keys reads all of them."""
    stage = stage_of("running", sharded=False)
    topology = topology_of(stage, tuple_time="at")
    source = type(topology.sources[0])(
        "north", serialized(SCHEMA), plan.ProducerSource(), ["price"], "at", None, "drop", "stop"
    )
    topology = plan.Topology("retail", 2, WIDTH_US, [source], [stage], [])
    session = SlotSession(tmp_path, topology)
    times = list(range(100 * WIDTH_US, 110 * WIDTH_US, 50))
    session.feed("north", rows_of(["apple"] * len(times), list(range(len(times))), times))
    session.promise(110)
    session.attach_all()
    session.process(103)
    session.process(110)
    rows = session.rows()
    assert [row["sales"] for row in rows] == [(number + 1) * 20 for number in range(10)]
    assert rows[-1]["total"] == sum(range(len(times)))
    session.close()


def test_attaching_answers_for_each_unit(session: SlotSession) -> None:
    results = session.perform(*(session.attach_work(shard) for shard in range(2)))
    assert all(isinstance(result, Attached) for result in results)


def states_of(session: SlotSession) -> list[str]:
    return sorted(path.name for path in (session.folder / "state").rglob("*.state"))


def test_what_is_left_of_a_unit_that_went_elsewhere_is_deleted(session: SlotSession) -> None:
    session.attach_all()
    session.process(103)
    both = states_of(session)
    stage = session.stage.name
    kept = session.generation_of(1)
    # Shard 0 was attached elsewhere, in a later life; of shard 1 this is the life there is.
    later = session.generation_of(0) + 10
    assert session.perform(ForgetWork(stage, 0, later), ForgetWork(stage, 1, kept)) == [
        Forgotten(stage, 0),
        Forgotten(stage, 1),
    ]
    assert states_of(session) == [name for name in both if not name.startswith(f"{stage}-0")]
    # When it comes back it is rebuilt.
    session.generation = later
    assert session.attach(0).origin == "empty"
    assert session.generation_of(1) == kept
