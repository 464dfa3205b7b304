"""The writer of a query's batches: whatever dies or fails between two steps, a batch is there once and readable."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.unit.connect.conftest import HOUR_US, SALES, SHARDS, TIMED, HandClock, packed

from holdfast.connect import catalog
from holdfast.connect.batch_writer import BatchWriter, WriterOptions
from holdfast.connect.task_folders import TaskFolders
from holdfast.errors import BadRow, LogFull, StoreUnavailable, StoreUnfit
from holdfast.log.inspect import read_ledger
from holdfast.log.local_store import LocalAppendFile, LocalStore
from holdfast.log.reconcile import segment_paths
from holdfast.log.segment import read_batch
from holdfast.log.stream_log import StreamLog
from holdfast.model import Published, SnapshotVerified
from holdfast.node.slot_context import SlotContext, SlotSetup
from holdfast.node.slot_edges import append_rows
from holdfast.operators.phases import Phases
from holdfast.plan import Aggregate, Aggregation, Column, Named, QuerySource, Source, Stage, StageInput, Topology

OFTEN = WriterOptions(trim_every_us=0, retain_us=0)
TIME = pa.timestamp("us", "UTC")


def topology(size_bytes_max: int = 4 << 30) -> Topology:
    item = Named("item", Column("item", "string"))
    count = Aggregation([item], [Aggregate("sales", "count_all", None, "bigint")], [item])
    inputs = [StageInput("north", packed(SALES), [])]
    stage = Stage("averages", inputs, packed(SALES), count, [], packed(SALES))
    sources = [
        Source("north", packed(SALES), QuerySource(size_bytes_max), ["item"]),
        Source("timed", packed(TIMED), QuerySource(), ["item"], tuple_time="at", event_time="at"),
        Source("seen", packed(TIMED), QuerySource(), ["item"], event_time="at"),
    ]
    return Topology("retail", SHARDS, HOUR_US, sources, [stage], [])


class Query:
    """What Spark does, without Spark: tasks in processes of their own, batches that come again."""

    def __init__(self, folder: Path, stream: str = "north", options: WriterOptions = OFTEN, full: int = 4 << 30):
        self.store = LocalStore(folder / "store" / "retail")
        self.clock = HandClock()
        catalog.create_or_check(self.store, topology(full))
        self.stream = stream
        self.options = options
        self._url = str(folder / "store")
        self._lives = 0
        self.tasks: dict[int, SlotContext] = {}
        self.start()

    def start(self) -> None:
        """A node begins: tasks of the one before may still be there."""
        self._lives += 1
        self.located = catalog.locate(self._url, self.stream)
        self.writer = BatchWriter(self.located, f"query-{self._lives}", self.clock, self.options)
        self.restart()

    def restart(self) -> None:
        """The query has died, and begins again."""
        self.writer.take_over("query-q", adopt=False)
        self.begin()

    def begin(self) -> None:
        """A batch begins."""
        self.owner = self.writer.begin().writer

    def write(self, task: int, rows: pa.Table) -> tuple[Published, tuple[int | None, int | None]]:
        """Write rows as a task of the batch that is under way, and sync them."""
        context = self.tasks.get(task)
        if context is None or context.node != self.owner:
            setup = SlotSetup("id", self.store.url, msgspec.json.encode(self.located.topology), "")
            context = self.tasks[task] = SlotContext(setup, self.owner, self.store)
        (batch,) = rows.combine_chunks().to_batches()
        found = append_rows(context, context.sources[self.stream], batch, Phases())
        context.sync()
        return found

    def look(self) -> None:
        """Look, and trim when the boundary of the look is in the journal."""
        self.writer.looked()
        self.writer.report("looked")
        self.writer.looked()

    def end(self) -> None:
        for context in self.tasks.values():
            context.forget_writers()
        self.writer.close(complete=True)

    def items(self) -> list[str]:
        """Return the first column of every row that is in the log."""
        found: list[str] = []
        for frame in read_ledger(self.store, self.stream).all_frames(self.stream):
            schema = pa.ipc.read_schema(pa.py_buffer(self.located.topology.sources[0].schema))
            found += read_batch(self.store, frame.frame, schema).column(0).to_pylist()
        return found


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    found = Query(tmp_path)
    yield found
    found.end()


def rows(*items: str) -> pa.Table:
    return pa.table({"item": list(items), "price": [1.0] * len(items)}, schema=SALES)


def timed(*hours: int) -> pa.Table:
    return pa.table({"item": ["a"] * len(hours), "at": pa.array([h * HOUR_US for h in hours], TIME)}, schema=TIMED)


def snapshots(bucket: int) -> list[SnapshotVerified]:
    """What lets the rows before `bucket` go: two snapshots of every unit."""
    return [SnapshotVerified("averages", shard, bucket + n, "s") for shard in range(SHARDS) for n in (0, 1)]


def test_what_a_task_has_written_stays_while_the_stream_is_trimmed_and_its_batch_can_still_be_logged(
    query: Query,
) -> None:
    options = {"shards": SHARDS, "bucket_width_us": HOUR_US}
    with StreamLog.open(query.store, ["averages"], "node", **options) as stage:  # type: ignore[arg-type]
        query.writer.log("query-q", 0, [query.write(0, rows("a"))[0]])
        # Everything in the task's segment is done with, and the task has written more, in it and in a new one.
        query.clock.time_us += 3 * HOUR_US
        stage.commit(snapshots(query.clock.time_us // HOUR_US)).result()
        held = query.write(0, rows("b"))[0]
        query.tasks[0].forget_writers()
        more = query.write(0, rows("c"))[0]
        assert held.frame.segment != more.frame.segment
        query.look()
        assert read_ledger(query.store, "north").trimmed_before("north") is not None
        query.writer.log("query-q", 1, [held, more])
    assert query.items() == ["b", "c"]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_whenever_the_stream_is_trimmed_every_batch_is_there_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    query = Query(tmp_path, options=WriterOptions(0, 0, segment_life_us=2 * HOUR_US))
    options = {"shards": SHARDS, "bucket_width_us": HOUR_US}
    logged = trimmed = 0
    with StreamLog.open(query.store, ["averages"], "node", **options) as stage:  # type: ignore[arg-type]

        def something_else_happens() -> None:
            query.clock.time_us += chance.randrange(HOUR_US)
            if chance.random() < 0.3:
                bucket = query.clock.time_us // HOUR_US - chance.randrange(3)
                stage.commit(snapshots(bucket)).result()
            if chance.random() < 0.5:
                query.writer.looked()

        for batch in range(20):
            while not query.writer.is_logged("query-q", batch):
                something_else_happens()
                query.begin()
                frames = []
                for task in chance.sample(range(3), chance.randrange(1, 4)):
                    if chance.random() < 0.2:
                        query.tasks.pop(task, None)
                    frames.append(query.write(task, rows(f"{batch}"))[0])
                    something_else_happens()
                died = chance.random()
                if died < 0.1:
                    query.restart()
                elif died < 0.2:
                    query.writer.close(complete=False)
                    query.start()
                else:
                    query.writer.log("query-q", batch, frames)
                    logged += len(frames)
            # Spark may not have heard of it.
            query.writer.log("query-q", batch, [])
            kept = query.items()
            trimmed = max(trimmed, logged - len(kept))
            assert kept == sorted(kept, key=int) and len(kept) <= logged
        assert trimmed > 10, "nothing was trimmed meanwhile"
        # What the dead have left goes: at the end nobody needs anything, and one life's segments may stay.
        query.clock.time_us += 5 * HOUR_US
        query.writer.looked()
        stage.commit(snapshots(query.clock.time_us // HOUR_US)).result()
        query.begin()
        query.look()
        assert not query.items() and list(segment_paths(query.store, "north")) == []
    query.end()


def test_a_batch_whose_entry_failed_comes_again_with_the_same_event_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, "seen")
    first = query.write(0, timed(5))[0]
    query.writer.log("query-q", 0, [first])
    later = query.write(0, timed(9))[0]
    with monkeypatch.context() as full:
        full.setattr(LocalAppendFile, "sync", _no_room)
        with pytest.raises(StoreUnavailable):
            query.writer.log("query-q", 1, [later])
    query.clock.time_us += HOUR_US
    query.look()
    query.end()
    # The watermark may not pass rows that are still to come.
    assert read_ledger(query.store, "seen").event_time_max_us("seen") == 5 * HOUR_US


def test_a_batch_in_order_whose_entry_failed_is_in_order_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, "timed")
    frame, times = query.write(0, timed(5, 9))
    with monkeypatch.context() as full:
        full.setattr(LocalAppendFile, "sync", _no_room)
        with pytest.raises(StoreUnavailable):
            query.writer.log("query-q", 0, [frame], times)
    query.writer.log("query-q", 0, [frame], times)
    assert read_ledger(query.store, "timed").boundary_us("timed") == 9 * HOUR_US
    frame, times = query.write(0, timed(4))
    with pytest.raises(BadRow, match="has to be ordered"):
        query.writer.log("query-q", 1, [frame], times)
    query.end()


def _no_room(file: LocalAppendFile) -> None:
    raise StoreUnavailable("no space left")


def test_what_was_written_for_a_query_that_was_started_again_is_not_taken(query: Query) -> None:
    late = query.write(0, rows("a"))[0]
    query.writer.take_over("query-q", adopt=False)
    with pytest.raises(StoreUnavailable, match="comes again"):
        query.writer.log("query-q", 0, [late])
    assert query.items() == []


def test_a_batch_that_waits_for_room_gives_up_when_the_node_stops(tmp_path: Path) -> None:
    query = Query(tmp_path, full=1)
    query.writer.log("query-q", 0, [query.write(0, rows("a"))[0]])
    raised: list[Exception] = []

    def wait() -> None:
        try:
            query.writer.wait_for_room()
        except LogFull as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    query.writer.stop_waiting()
    waiting.join(30)
    assert not waiting.is_alive() and "the batch comes again" in str(raised[0])
    query.end()


def test_another_querys_stream_is_refused_and_taken_over_only_when_asked(query: Query) -> None:
    query.writer.log("query-q", 0, [query.write(0, rows("a"))[0]])
    with pytest.raises(StoreUnfit, match="adopt=True"):
        query.writer.take_over("query-new", adopt=False)
    query.writer.take_over("query-new", adopt=True)
    (report,) = read_ledger(query.store, "north").reports
    assert "query-new has taken the stream over from query-q" in report.message


def test_folders_are_open_by_name_and_closed_with_their_life() -> None:
    folders = TaskFolders("query-host-5", 2)
    now, later, before = (f"streams/s/query-host-5-{life:06d}/host-9-000001" for life in (2, 3, 1))
    assert folders.writer == "query-host-5-000002"
    assert now in folders and later in folders and before not in folders
    assert folders.has_closed(before) and not folders.has_closed(now)
    for other in ("streams/s/query-host-55-000001/x-000001", "streams/s/till/7-000001", "streams/s", "x"):
        assert other not in folders and not folders.has_closed(other)
