"""A consumer sees every complete bucket once, in order, and knows where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connect import consumer as consumer_module
from holdfast.connect.consumer import Consumer
from holdfast.connect.lease import read_lease
from holdfast.connect.producer import Producer
from holdfast.errors import ConsumerExpired, Misconfigured
from holdfast.log.frame import FrameHeader
from holdfast.log.local_store import LocalStore
from holdfast.log.stream_log import StreamLog
from holdfast.model import (
    MANY_SHARDS,
    NO_WATERMARK,
    Advanced,
    Ended,
    FrameKind,
    JournalItem,
    Published,
    Trimmed,
    UnitCommitted,
)

from .conftest import HOUR_US, SALES, SHARDS, HandClock


class StageLog:
    """Writes a stage's output as a node does."""

    def __init__(self, store: LocalStore, names: tuple[str, ...] = ("averages",)) -> None:
        self.log = StreamLog.open(store, names, "node", shards=SHARDS, bucket_width_us=HOUR_US)
        self.writers = {name: self.log.segment_writer(name, 0, 0) for name in names}

    def frame(self, shard: int, rows: dict[int, list[str]], stream: str = "averages") -> Published:
        buckets = sorted(rows)
        items = [item for bucket in buckets for item in rows[bucket]]
        batch = pa.record_batch({"item": items, "price": pa.array([1.0] * len(items), pa.float64())}, schema=SALES)
        ends = [sum(len(rows[each]) for each in buckets if each <= bucket) for bucket in buckets]
        header = FrameHeader(
            FrameKind.DATA,
            stream,
            shard,
            0,
            buckets[0],
            buckets[-1] + 1,
            bucket_table=[(bucket, NO_WATERMARK) for bucket in buckets],
            bucket_row_ends=ends,
        )
        ref = self.writers[stream].append(header, batch)
        self.writers[stream].sync()
        return Published(stream, shard, buckets[0], buckets[-1] + 1, len(items), ref)

    def commit(self, *items: JournalItem) -> None:
        self.log.commit(list(items)).result()

    def units(self, bucket_start: int, bucket_end: int, shards: range = range(SHARDS)) -> list[JournalItem]:
        return [UnitCommitted("averages", shard, 0, bucket_start, bucket_end) for shard in shards]

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()
        self.log.close()


@pytest.fixture
def stage(store: LocalStore) -> Any:
    stage = StageLog(store)
    yield stage
    stage.close()


def items(table: pa.Table | None) -> list[str]:
    return [] if table is None else table.column("item").to_pylist()


def test_a_bucket_is_given_when_all_shards_have_it(url: str, stage: StageLog) -> None:
    with Consumer(url, "averages") as consumer:
        stage.commit(stage.frame(2, {5: ["c"], 6: ["late"]}), *stage.units(0, 7, range(2, 3)))
        stage.commit(stage.frame(0, {4: ["a"], 5: ["b"]}), *stage.units(0, 6, range(0, 2)))
        assert consumer.poll() is None
        stage.commit(*stage.units(0, 6, range(3, 4)))
        assert items(consumer.poll()) == ["a", "b", "c"]
        assert consumer.position == 6
        assert consumer.poll() is None
        stage.commit(*[UnitCommitted("averages", shard, 0, 6, 7) for shard in (0, 1, 3)])
        assert items(consumer.poll()) == ["late"]


def test_waiting_ends_with_the_commit(url: str, stage: StageLog) -> None:
    with Consumer(url, "averages") as consumer:
        frame = stage.frame(0, {0: ["a"]})
        timer = threading.Timer(0.05, lambda: stage.commit(frame, *stage.units(0, 1)))
        timer.start()
        assert items(consumer.poll(30)) == ["a"]
        timer.join()


def test_iteration_ends_with_the_stream_and_a_later_run_goes_on(url: str, stage: StageLog) -> None:
    stage.commit(stage.frame(0, {0: ["a"]}), Ended("averages", 3), *stage.units(0, 3))
    with Consumer(url, "averages") as consumer:
        assert [items(table) for table in consumer] == [["a"]]
        assert consumer.ended and consumer.position == 3
        stage.commit(stage.frame(0, {3: ["b"]}), *stage.units(3, 4))
        assert not consumer.ended
        assert items(consumer.poll()) == ["b"]


def test_tables_are_cut_between_buckets_and_numbers_stay(
    url: str, stage: StageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [stage.frame(shard, {b: [f"{shard}{b}x", f"{shard}{b}y"] for b in range(4)}) for shard in range(2)]
    stage.commit(*frames, stage.frame(0, {4: ["last"]}), *stage.units(0, 5))
    with Consumer(url, "averages", view="changes") as consumer:
        whole = list(iter(consumer.poll, None))
    monkeypatch.setattr(consumer_module, "ROWS_PER_TABLE", 1)
    with Consumer(url, "averages", view="changes") as consumer:
        cut = list(iter(consumer.poll, None))
    assert len(whole) == 1 and len(cut) > 1
    assert pa.concat_tables(cut).to_pylist() == whole[0].to_pylist()
    ids = whole[0].column("_id").to_pylist()
    assert ids[:4] == [{"bucket": 0, "shard": s, "position": p} for s in (0, 1) for p in (0, 1)]
    assert set(whole[0].column("_type").to_pylist()) == {"STABLE"}


def test_views(url: str, stage: StageLog) -> None:
    stage.commit(stage.frame(0, {0: ["a"]}), *stage.units(0, 1))
    for view, extra in (("stable", []), ("latest", ["_tentative"]), ("changes", ["_type", "_time", "_id"])):
        with Consumer(url, "averages", view=view) as consumer:  # type: ignore[arg-type]
            table = consumer.poll()
            assert table is not None and table.column_names == ["item", "price", *extra]
            assert table.schema.equals(consumer.schema)
    with pytest.raises(Misconfigured, match="'final'"):
        Consumer(url, "averages", view="final")  # type: ignore[arg-type]


def test_a_name_goes_on_from_its_last_commit(url: str, store: LocalStore, stage: StageLog) -> None:
    stage.commit(stage.frame(0, {0: ["a"]}), *stage.units(0, 1))
    with Consumer(url, "averages", name="report") as consumer:
        assert items(consumer.poll()) == ["a"]
        consumer.commit()
        stage.commit(stage.frame(0, {1: ["b"]}), *stage.units(1, 2))
        assert items(consumer.poll()) == ["b"]
    for _ in range(2):
        with Consumer(url, "averages", name="report", start="latest") as consumer:
            assert items(consumer.poll()) == ["b"]
    with Consumer(url, "averages", name="other") as consumer:
        assert items(consumer.poll()) == ["a", "b"]
    lease = read_lease(store, "averages", "report")
    assert lease is not None and lease.bucket == 1 and lease.holds(lease.committed_at_us)


def test_where_a_new_consumer_begins(url: str, stage: StageLog) -> None:
    stage.commit(stage.frame(0, {0: ["a"], 1: ["b"]}), *stage.units(0, 2))
    with Consumer(url, "averages", start="latest") as latest, Consumer(url, "averages", start=1) as second:
        stage.commit(stage.frame(0, {2: ["c"]}), *stage.units(2, 3))
        assert items(latest.poll()) == ["c"]
        assert items(second.poll()) == ["b", "c"]
    with pytest.raises(Misconfigured, match="'now'"):
        Consumer(url, "averages", start="now")  # type: ignore[arg-type]


def test_a_consumer_whose_bucket_is_gone_is_told_the_first_one(url: str, stage: StageLog) -> None:
    stage.commit(stage.frame(0, {0: ["a"]}), *stage.units(0, 1))
    with Consumer(url, "averages", name="slow") as consumer:
        assert items(consumer.poll()) == ["a"]
        consumer.commit()
        stage.commit(stage.frame(0, {4: ["b"]}), *stage.units(1, 5))
        stage.commit(Trimmed("averages", 4))
        with pytest.raises(ConsumerExpired, match=r"'slow'.* at bucket 1, and the first bucket kept is 4"):
            consumer.poll()
    with Consumer(url, "averages") as consumer:
        assert items(consumer.poll()) == ["b"]


def test_only_a_name_can_be_committed(url: str, stage: StageLog) -> None:
    with Consumer(url, "averages") as consumer, pytest.raises(Misconfigured, match="name="):
        consumer.commit()


def test_a_source_is_read_in_order_of_shards_and_commits(url: str, store: LocalStore, clock: HandClock) -> None:
    with Producer(url, "north", clock=clock) as producer:
        for number in range(5):
            producer.send([{"item": f"i{item}", "price": float(number)} for item in range(20)])
    with Consumer(url, "north", view="changes") as consumer:
        table = consumer.poll()
    assert table is not None and table.num_rows == 100
    shards = [row["shard"] for row in table.column("_id").to_pylist()]
    assert shards == sorted(shards) and len(set(shards)) > 1
    by_item: dict[str, list[float]] = {}
    for row in table.to_pylist():
        by_item.setdefault(row["item"], []).append(row["price"])
    assert all(prices == [0.0, 1.0, 2.0, 3.0, 4.0] for prices in by_item.values())


def test_side_streams_are_complete_when_what_fills_them_is(url: str, store: LocalStore) -> None:
    stage = StageLog(store, ("averages", "north.late"))
    try:
        late = stage.frame(1, {2: ["late"]}, "north.late")
        with Consumer(url, "north.late") as consumer:
            stage.commit(late)
            assert consumer.poll() is None
            stage.commit(*stage.units(0, 3))
            assert items(consumer.poll(30)) == ["late"]
    finally:
        stage.close()


def test_a_source_of_files_is_followed_by_its_boundary(url: str, make: Callable[..., LocalStore]) -> None:
    store = make()
    log = StreamLog.open(store, ["south"], "node", shards=SHARDS, bucket_width_us=HOUR_US)
    writer = log.segment_writer("south", 0, 0)
    batch = pa.record_batch({"item": ["a", "b"], "price": [1.0, 2.0]}, schema=SALES)
    header = FrameHeader(FrameKind.DATA, "south", MANY_SHARDS, 0, 0, 1, shard_row_ends=[1, 1, 2, 2])
    ref = writer.append(header, batch)
    writer.sync()
    with Consumer(url, "south", view="changes") as consumer:
        stamp_us = 7 * HOUR_US + 3
        log.commit([Published("south", MANY_SHARDS, 7, 8, 2, ref, stamp_us), Advanced("south", stamp_us)]).result()
        assert consumer.poll() is None
        log.commit([Advanced("south", 8 * HOUR_US)]).result()
        table = consumer.poll(30)
        assert table is not None
        assert [(row["bucket"], row["shard"]) for row in table.column("_id").to_pylist()] == [(7, 0), (7, 2)]
        assert table.column("_time").cast(pa.int64()).to_pylist() == [stamp_us, stamp_us]
    writer.close()
    log.close()
