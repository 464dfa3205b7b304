"""The node's loop, with slots on threads instead of in Spark: what becomes of waves, threads, listeners; its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.node.slot_session import topology_of
from tests.unit.node.stages import rows_of, stage_of

from holdfast.connect.catalog import create_or_check
from holdfast.connect.consumer import Consumer
from holdfast.connect.producer import Producer
from holdfast.errors import JournalCorrupt, PipelineFailed
from holdfast.log.journal import MARK_OFFSET
from holdfast.log.store import open_store
from holdfast.log.stream_log import StreamLog
from holdfast.node.events import SlotsChanged
from holdfast.node.handle import PipelineHandle
from holdfast.node.listening import Listener, QueryIdleEvent, QueryProgressEvent, QueryTerminatedEvent
from holdfast.node.messages import Order, Receipt, encode_receipt
from holdfast.node.options import NodeOptions
from holdfast.node.runner import NodeRunner, Waves
from holdfast.node.slot import Slot, SlotSetup

LIMIT_S = 60.0
SLOTS = 2
ITEMS = ["apple", "bread", "cheese"]


class ThreadWaves:
    """Slots on threads. Some waves are lost: before they began, or with their receipt; some receipts come twice."""

    def __init__(self, setup: SlotSetup, put: Callable[[bytes], None], seed: int | None = None) -> None:
        self._setup = setup
        self._put = put
        self._rng = None if seed is None else random.Random(seed)
        self._lock = threading.Lock()
        self._pools = [ThreadPoolExecutor(1) for _ in range(SLOTS)]
        self._performers: dict[int, Slot] = {}
        self._ended: list[tuple[int, int, str]] = []
        self.closed = False

    look_every_s = None

    def slots_changed(self) -> SlotsChanged | None:
        return SlotsChanged(list(range(SLOTS)))

    def send(self, order: Order) -> None:
        fate = "" if self._rng is None else self._rng.choice(["", "", "", "not begun", "no receipt", "twice"])
        self._pools[order.slot].submit(self._perform, order, fate)

    def _perform(self, order: Order, fate: str) -> None:
        if order.slot not in self._performers:
            self._performers[order.slot] = Slot(self._setup, order.node)
        if fate != "not begun":
            results = self._performers[order.slot].perform(order)
            receipt = encode_receipt(Receipt(order.wave, order.slot, order.node, "here", 1, results))
            for _ in range({"": 1, "twice": 2}.get(fate, 0)):
                self._put(receipt)
        if fate in ("not begun", "no receipt"):
            with self._lock:
                self._ended.append((order.wave, order.slot, fate))

    def received(self, wave: int, slot: int) -> None: ...

    def lost(self) -> list[tuple[int, int, str]]:
        with self._lock:
            ended, self._ended = self._ended, []
        return ended

    def abandon(self, wave: int, slot: int) -> None: ...

    def close(self) -> None:
        self.closed = True
        for pool in self._pools:
            pool.shutdown(wait=True)
        for performer in self._performers.values():
            performer.close()


class Node:
    """A pipeline of one running sum by item, and nodes that run it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "store")
        self.states = folder / "states"
        self.store = open_store(f"{self.url}/retail")
        topology = topology_of(stage_of("running"))
        self.topology = msgspec.structs.replace(topology, bucket_width_us=20_000)
        self.catalog = create_or_check(self.store, self.topology)
        self.waves: ThreadWaves | None = None

    def start(self, seed: int | None = None, waves_of: Callable[..., Waves] | None = None) -> PipelineHandle:
        stage = self.topology.stages[0]
        sides = [f"{read.stream}{side}" for read in stage.inputs for side in (".late", ".rejects")]
        names = [stage.name, f"{stage.name}.rejects", *sides]
        log = StreamLog.open(self.store, names, "node", shards=self.topology.shards, bucket_width_us=20_000)
        setup = SlotSetup(
            self.catalog.pipeline_id, self.store.url, msgspec.json.encode(self.topology), str(self.states)
        )

        def on_threads(put: Callable[[bytes], None]) -> Waves:
            self.waves = ThreadWaves(setup, put, seed)
            return self.waves

        options = NodeOptions(idle_commit_every_us=50_000)
        runner = NodeRunner(self.topology, self.catalog.pipeline_id, self.store, log, waves_of or on_threads, options)
        return runner.start()

    def send(self, producer: Producer, number: int) -> None:
        times = [number * 20_000 + step for step in range(len(ITEMS))]
        producer.send(rows_of(ITEMS, [number, 2 * number, 1], times))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node; when the test is over no thread of it is left."""
    before = set(threading.enumerate())
    yield Node(tmp_path)
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()]
    assert not left, left


def totals_when(consumer: Consumer, sales: int, handle: PipelineHandle) -> dict[str, tuple[int, int]]:
    """Return (total, sales) per item as soon as so many sales of each are counted."""
    found: dict[str, tuple[int, int]] = {}
    while {count for _, count in found.values()} != {sales}:
        assert handle.isActive, handle.exception()
        table = consumer.poll(LIMIT_S)
        assert table is not None, f"no row within {LIMIT_S} s; there are {found}"
        found |= {row["item"]: (row["total"], row["sales"]) for row in table.to_pylist()}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_lost_waves_and_repeated_receipts_change_nothing(node: Node, seed: int) -> None:
    handle = node.start(seed)
    with Producer(node.url, "north") as producer, Consumer(node.url, "results") as consumer:
        for number in range(30):
            node.send(producer, number)
        assert totals_when(consumer, 30, handle) == {
            "apple": (sum(range(30)), 30),
            "bread": (2 * sum(range(30)), 30),
            "cheese": (30, 30),
        }
        handle.stop()
    assert handle.exception() is None
    assert node.waves is not None
    assert node.waves.closed


def test_a_listener_may_raise_and_may_stop_the_pipeline(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    handle = node.start()
    told: list[str] = []

    class Raises(Listener):
        def onQueryProgress(self, event: QueryProgressEvent) -> None:
            raise ValueError("a listener's own affair")

        def onQueryIdle(self, event: QueryIdleEvent) -> None:
            raise ValueError("a listener's own affair")

    class Stops(Listener):
        def onQueryIdle(self, event: QueryIdleEvent) -> None:
            told.append("idle")
            handle.stop()

        def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
            told.append("terminated")

    handle.addListener(Raises())
    handle.addListener(Stops())
    assert handle.awaitTermination(LIMIT_S)
    assert handle.exception() is None
    assert told == ["idle", "terminated"]
    assert [record.exc_info is not None for record in caplog.records if "failed in" in record.message] == [True]


def test_what_is_counted_is_what_is_committed(node: Node) -> None:
    """Waves are lost and receipts come twice: statistics and reports know of each row once."""
    handle = node.start(seed=3)
    with Producer(node.url, "north") as producer, Consumer(node.url, "results") as consumer:
        for number in range(30):
            node.send(producer, number)
        totals_when(consumer, 30, handle)
        handle.stop()
    found = handle.statistics()
    (stage,), (source,) = found.stages, found.sources
    assert (stage.rows_in, source.rows, found.rows_ahead) == (90, 90, 0)
    assert (stage.state_rows, stage.stateful, stage.units) == (3, True, {"ready": node.topology.shards})
    assert stage.state_bytes > 0 and found.tries_failed > 0 and found.waves > 0
    reports = handle.recentProgress
    assert sum(report["numInputRows"] for report in reports) == 90
    assert {report["runId"] for report in reports} == {handle.runId}
    assert reports[-1].stateOperators[0].numRowsTotal == 3


def test_what_stops_a_thread_of_the_node_stops_the_node(node: Node) -> None:
    """A reader of a producer's stream meets a damaged journal: the node does not go on without its input."""
    handle = node.start()
    with Producer(node.url, "north") as producer, Consumer(node.url, "results") as consumer:
        node.send(producer, 1)
        totals_when(consumer, 1, handle)
    (journal,) = (Path(node.url) / "retail" / "journal" / "north").rglob("*.log")
    with open(journal, "r+b") as damaged:
        # The mark promises more than there is.
        damaged.seek(MARK_OFFSET)
        damaged.write((journal.stat().st_size + 1000).to_bytes(8, "little"))
    with pytest.raises(JournalCorrupt, match="damaged at offset"):
        handle.awaitTermination(LIMIT_S)


@pytest.mark.parametrize("fails_at", ["making", "slots", "send"])
def test_the_end_is_told_and_the_streams_are_free_whatever_fails(node: Node, fails_at: str) -> None:
    class Broken(ThreadWaves):
        def slots_changed(self) -> SlotsChanged | None:
            if fails_at == "slots":
                raise PipelineFailed("no slots")
            return super().slots_changed()

        def send(self, order: Order) -> None:
            raise RuntimeError("nothing can be sent")

    def waves_of(put: Callable[[bytes], None]) -> Any:
        if fails_at == "making":
            raise OSError("no waves")
        return Broken(SlotSetup("", "", b"", ""), put)

    handle = node.start(waves_of=waves_of)
    with pytest.raises(PipelineFailed):
        handle.awaitTermination(LIMIT_S)
    assert not handle.isActive
    again = node.start()
    again.stop()
    assert again.exception() is None
