"""What `Producer.send` promises: durable, in order, once, and refused with a reason."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connect import catalog
from holdfast.connect.consumer import Consumer
from holdfast.connect.lease import Lease, write_lease
from holdfast.connect.producer import Producer
from holdfast.connect.trimming import Trimmer
from holdfast.errors import (
    BadRow,
    LogFull,
    Misconfigured,
    SchemaMismatch,
    StoreUnavailable,
    StreamTaken,
)
from holdfast.log.inspect import read_ledger
from holdfast.log.local_store import LocalStore
from holdfast.log.segment import SegmentWriter
from holdfast.log.stream_log import StreamLog
from holdfast.model import FIRST_BUCKET, SnapshotVerified

from .conftest import HOUR_US, SHARDS, HandClock, topology

UTC = datetime.UTC


def rows(*items: str) -> list[dict[str, Any]]:
    return [{"item": item, "price": float(number)} for number, item in enumerate(items)]


def items_of(url: str, stream: str) -> list[str]:
    with Consumer(url, stream) as consumer:
        found: list[str] = []
        while (table := consumer.poll()) is not None:
            found += table.column("item").to_pylist()
        return found


def test_what_was_sent_is_read_after_close(url: str, store: LocalStore) -> None:
    with Producer(url, "north") as producer:
        sent = producer.send(rows("a", "b"))
        assert (sent.epoch, sent.sequence, sent.rows, sent.repeated) == (0, 0, 2, False)
        producer.send(pa.Table.from_pylist(rows("c")))
    assert sorted(items_of(url, "north")) == ["a", "b", "c"]


def test_a_bucket_completes_while_the_producer_is_idle(url: str, make: Callable[..., LocalStore]) -> None:
    make(width_us=20_000)
    with Producer(url, "north") as producer, Consumer(url, "north") as consumer:
        producer.send(rows("a"))
        table = consumer.poll(30)
        assert table is not None and table.column("item").to_pylist() == ["a"]


def test_a_repeat_is_dropped_and_gets_the_first_result(url: str, store: LocalStore, clock: HandClock) -> None:
    with Producer(url, "north", "till", clock=clock) as producer:
        first = producer.send(rows("a"), sequence=7)
        clock.time_us += 10
        assert producer.send(rows("a"), sequence=7) == first
        assert producer.send(rows("b")).sequence == 8
    with Producer(url, "north", "till", epoch=0) as producer:
        again = producer.send(rows("b"), sequence=8)
        assert again.repeated and again.stamp_us is None
        assert producer.send(rows("c")).sequence == 9
    assert sorted(items_of(url, "north")) == ["a", "b", "c"]


def test_each_life_of_a_name_has_the_next_epoch(url: str, store: LocalStore) -> None:
    for epoch in range(3):
        with Producer(url, "north", "till") as producer:
            assert producer.send(rows("a")).epoch == epoch
    with pytest.raises(Misconfigured, match="epoch 1 is over"):
        Producer(url, "north", "till", epoch=1)
    with Producer(url, "north", "other") as producer:
        assert producer.epoch == 0


def test_sequences_ascend(url: str, store: LocalStore) -> None:
    with Producer(url, "north") as producer:
        producer.send(rows("a"), sequence=5)
        assert producer.send(rows("a"), sequence=3).repeated
        with pytest.raises(Misconfigured, match="must be a whole number"):
            producer.send(rows("a"), sequence=-1)
    assert items_of(url, "north") == ["a"]


def test_sends_of_many_threads_are_all_there_once(url: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    real = SegmentWriter.sync
    monkeypatch.setattr(SegmentWriter, "sync", lambda self: (syncs.append(1), real(self))[1])
    with Producer(url, "north") as producer, ThreadPoolExecutor(8) as threads:
        sent = list(threads.map(lambda number: producer.send(rows(f"i{number}")), range(80)))
        stamps = [each.stamp_us for each in sorted(sent, key=lambda each: each.sequence)]
    assert sorted(each.sequence for each in sent) == list(range(80))
    assert stamps == sorted(stamps, key=lambda stamp: stamp or 0)
    assert sorted(items_of(url, "north")) == sorted(f"i{number}" for number in range(80))
    assert len(syncs) <= 80


def test_stamps_never_go_back_when_the_clock_does(url: str, store: LocalStore, clock: HandClock) -> None:
    with Producer(url, "north", clock=clock) as producer:
        first = producer.send(rows("a")).stamp_us
        clock.time_us -= HOUR_US
        assert producer.send(rows("b")).stamp_us == first
    clock.time_us -= HOUR_US
    with Producer(url, "north", clock=clock) as producer:
        later = producer.send(rows("c")).stamp_us
    assert first is not None and later is not None and later >= first
    assert sorted(items_of(url, "north")) == ["a", "b", "c"]


def test_rows_that_do_not_fit_are_refused_whole(url: str, store: LocalStore) -> None:
    with Producer(url, "north") as producer:
        with pytest.raises(SchemaMismatch, match="'price'"):
            producer.send([*rows("a"), {"item": "b", "price": "cheap"}])
        assert producer.send(rows("c")).sequence == 0
    assert items_of(url, "north") == ["c"]


def timed(*seconds: int | None) -> list[dict[str, Any]]:
    moment = [None if each is None else datetime.datetime.fromtimestamp(each, UTC) for each in seconds]
    return [{"item": f"i{number}", "at": each} for number, each in enumerate(moment)]


def test_a_source_that_is_ordered_by_a_column_refuses_rows_behind_its_boundary(url: str, store: LocalStore) -> None:
    with Producer(url, "timed") as producer:
        producer.send(timed(7200, 3600))
        assert read_ledger(store, "timed").boundary_us("timed") == 2 * HOUR_US
        producer.send(timed(7200))
        with pytest.raises(BadRow, match=r"row 1 has 'at' = 1970-01-01T01:59:59") as caught:
            producer.send(timed(7200, 7199, 9000))
        assert caught.value.row == 1
        with pytest.raises(BadRow, match="row 2 has no value in 'at'"):
            producer.send(timed(7200, 7200, None))
        producer.boundary(datetime.datetime.fromtimestamp(10800, UTC))
        with pytest.raises(BadRow, match="row 0"):
            producer.send(timed(10799))
        producer.boundary(0)
    with Consumer(url, "timed", view="changes") as consumer:
        table = consumer.poll()
        assert table is not None
        assert sorted(row["bucket"] for row in table.column("_id").to_pylist()) == [1, 2, 2]
        assert table.column("_time").to_pylist() == table.column("at").to_pylist()
    assert read_ledger(store, "timed").event_time_max_us("timed") == 2 * HOUR_US


def test_a_second_producer_is_refused_by_the_holders_name(url: str, store: LocalStore) -> None:
    with Producer(url, "north", "till"), pytest.raises(StreamTaken, match=rf"producer-till.*{os.getpid()}"):
        Producer(url, "north", "other")
    with Producer(url, "north", "other") as producer:
        producer.send(rows("a"))
    assert items_of(url, "north") == ["a"]


def test_streams_that_no_producer_writes_are_refused(url: str, store: LocalStore) -> None:
    with pytest.raises(Misconfigured, match=r"written by files.*Streams for producers: north, timed"):
        Producer(url, "south")
    with pytest.raises(Misconfigured, match="written by the pipeline itself"):
        Producer(url, "averages")
    with pytest.raises(Misconfigured, match="no stream 'nort'"):
        Producer(url, "nort", wait="1 millisecond")


def test_a_producer_waits_for_its_pipeline(url: str) -> None:
    def start() -> None:
        catalog.create_or_check(LocalStore(Path(url) / "retail"), topology())

    with pytest.raises(Misconfigured, match="no pipeline"):
        Producer(url, "north", wait="1 millisecond")
    timer = threading.Timer(0.05, start)
    timer.start()
    with Producer(url, "north", wait="30 seconds") as producer:
        assert producer.send(rows("a")).rows == 1
    timer.join()


def test_after_a_failed_sync_a_batch_can_be_sent_again(
    url: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, broken = SegmentWriter.sync, [True]

    def sync(self: SegmentWriter) -> None:
        if broken[0]:
            self.close()
            raise StoreUnavailable("the disk is full")
        real(self)

    monkeypatch.setattr(SegmentWriter, "sync", sync)
    with Producer(url, "north") as producer:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="the disk is full"):
                producer.send(rows("a"), sequence=3)
        broken[0] = False
        with pytest.raises(StoreUnavailable, match="batch 3 could not be logged and has to come before batch 4"):
            producer.send(rows("b"), sequence=4)
        assert not producer.send(rows("a"), sequence=3).repeated
        producer.send(rows("b"), sequence=4)
    assert sorted(items_of(url, "north")) == ["a", "b"]


def test_after_a_failed_commit_the_log_goes_on(url: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.log.journal import JournalWriter

    real, broken = JournalWriter.append, [False]

    def append(self: JournalWriter, entries: Any) -> None:
        if broken[0]:
            raise StoreUnavailable("the disk is full")
        real(self, entries)

    monkeypatch.setattr(JournalWriter, "append", append)
    with Producer(url, "north") as producer:
        producer.send(rows("a"))
        broken[0] = True
        with pytest.raises(StoreUnavailable, match="Send it again"):
            producer.send(rows("b"))
        broken[0] = False
        producer.send(rows("b"))
    assert sorted(items_of(url, "north")) == ["a", "b"]


def test_programs_without_spark_do_not_load_it(url: str, store: LocalStore) -> None:
    script = (
        "import sys, holdfast as hf\n"
        "with hf.Producer(sys.argv[1], 'north') as producer: producer.send([{'item': 'a'}])\n"
        "with hf.Consumer(sys.argv[1], 'north') as consumer: assert consumer.poll().num_rows == 1\n"
        "assert not [name for name in sys.modules if name.startswith(('pyspark', 'py4j'))]\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, url], env=environment, check=True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"store": None}, "store None.*expected the pipeline's store"),
        ({"stream": None}, "stream None: expected .*the name of a stream"),
        ({"stream": "nort"}, r"no stream 'nort'\. Did you mean 'north'\? There are: .*north"),
        ({"name": 5}, "the name 5 cannot become a file name"),
        ({"epoch": "x"}, "epoch is 'x' and must be a whole number"),
        ({"timeout": 5}, "timeout: 5 is not an interval"),
    ],
)
def test_wrong_arguments_are_refused_and_the_stream_stays_free(
    url: str, store: LocalStore, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        Producer(**{"store": url, "stream": "north", "wait": "1 millisecond", **options})
    with Producer(url, "north") as producer:
        for sequence in ("a", -1, True):
            with pytest.raises(Misconfigured, match="must be a whole number from 0"):
                producer.send(rows("a"), sequence=sequence)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured, match="must be a datetime"):
            producer.boundary("soon")  # type: ignore[arg-type]


def test_a_closed_producer_says_so(url: str, store: LocalStore) -> None:
    producer = Producer(url, "north")
    producer.close()
    producer.close()
    with pytest.raises(Misconfigured, match="closed"):
        producer.send(rows("a"))


def test_a_full_stream_stops_the_producer_until_it_is_trimmed(url: str, make: Callable[..., LocalStore]) -> None:
    store = make(size_bytes_max=1 << 20)
    clock = HandClock()
    big = pa.table({"item": ["x" * 1000] * 1200, "price": [1.0] * 1200})
    with Producer(url, "north", clock=clock, timeout="10 milliseconds") as producer:
        producer.send(big)
        with pytest.raises(LogFull, match=r"stream 'north' .* is full"):
            producer.send(rows("a"))
        clock.time_us += HOUR_US
        producer.boundary()
        bucket = clock.time_us // HOUR_US
        write_lease(store, Lease("north", "reader", FIRST_BUCKET, 0, 2**62))
        with StreamLog.open(store, ["averages"], "node", shards=SHARDS, bucket_width_us=HOUR_US) as stage:
            snapshots = [
                SnapshotVerified("averages", shard, bucket + number, f"s{number}")
                for shard in range(SHARDS)
                for number in range(2)
            ]
            stage.commit(list(snapshots)).result()
            # The stage no longer needs the rows, but a consumer with a lease does.
            with pytest.raises(LogFull):
                producer.send(rows("a"))
            write_lease(store, Lease("north", "reader", FIRST_BUCKET, 0, 1))
            assert producer.send(rows("a")).sequence == 1
    assert read_ledger(store, "north").trimmed_before("north") == bucket
    assert items_of(url, "north") == ["a"]


def test_what_a_stage_has_done_with_is_kept_for_a_while(url: str, store: LocalStore, clock: HandClock) -> None:
    located = catalog.locate(url, "north")
    first = clock.time_us // HOUR_US
    with Producer(url, "north", clock=clock) as producer:
        for _ in range(4):
            producer.send(rows("a"))
            clock.time_us += HOUR_US
    options = {"shards": SHARDS, "bucket_width_us": HOUR_US}
    with StreamLog.open(store, ["averages"], "node", **options) as stage:  # type: ignore[arg-type]
        done = [SnapshotVerified("averages", shard, first + n, "s") for shard in range(SHARDS) for n in (2, 4)]
        stage.commit(list(done[:-1])).result()
        with StreamLog.open(store, ["north"], "trimmer", **options) as log:  # type: ignore[arg-type]
            trimmer = Trimmer(located, log)
            trimmer.trim(())
            # A unit that lacks its second snapshot may have to read everything again.
            assert log.ledger.trimmed_before("north") is None
            stage.commit([done[-1]]).result()
            trimmer.trim((), retain_us=3 * HOUR_US)
            assert log.ledger.trimmed_before("north") == first + 1
            trimmer.trim(())
            assert log.ledger.trimmed_before("north") == first + 2
            trimmer.close()
    assert items_of(url, "north") == ["a", "a"]


CHILD = """
import sys, time
from holdfast.connect.producer import Producer
from holdfast.connect.trimming import Trimmer
producer = Producer(sys.argv[1], "north", "till")
for number in range(3):
    producer.send([{"item": f"i{number}", "price": 1.0}])
print("sent", flush=True)
time.sleep(60)
"""


def test_after_kill_9_everything_sent_is_there_and_the_next_producer_goes_on(url: str, store: LocalStore) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"sent\n"
        with pytest.raises(StreamTaken, match=str(child.pid)):
            Producer(url, "north")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
    with Producer(url, "north", "till") as producer:
        assert producer.send(rows("next")).epoch == 1
    assert sorted(items_of(url, "north")) == ["i0", "i1", "i2", "next"]
