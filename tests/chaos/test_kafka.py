"""Kafka in, through kills of broker, query and node, while the query's stream is trimmed: every record counts once."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.chaos import kafka_pipeline
from tests.chaos.arena import Arena, arena_in
from tests.chaos.kafka_pipeline import STEP_US, TOPIC
from tests.chaos.oracle import Rows, counted, rows_in
from tests.chaos.processes import NodeProcess, wait_until
from tests.components.jars import jars_of
from tests.components.kafka import Broker

from holdfast.connect.consumer import Consumer
from holdfast.connect.query_state import read_query_state
from holdfast.log.inspect import read_ledger
from holdfast.log.local_store import LocalStore

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka.py"
PARTITIONS = 3
NAMES = 97
NUMBERS_A_PIECE = 500
PIECE_EVERY_S = 0.05
UNACKNOWLEDGED_MAX = 20_000
"""More would put rows further apart in event time than the watermark allows."""
START = datetime.datetime(2025, 10, 9, 8, 53, 20, tzinfo=datetime.UTC)


class Feed:
    """Sends the numbers from 0 on, each once, and waits for the broker to acknowledge them, however often it dies."""

    def __init__(self, address: str) -> None:
        self.sent = 0
        self._acknowledged = 0
        self._refused: list[KafkaError] = []
        settings = {
            "bootstrap.servers": address,
            # What is sent again is stored once, and nothing is ever given up.
            "enable.idempotence": True,
            "message.timeout.ms": 600_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
            "log.connection.close": False,
        }
        self._producer = Producer(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def finish(self) -> int:
        """Send no more; return how many were sent, all of them acknowledged."""
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(120) == 0, "the broker did not acknowledge everything"
        assert self._acknowledged == self.sent and not self._refused, self._refused[:3]
        return self.sent

    def _run(self) -> None:
        while not self._stop.wait(PIECE_EVERY_S):
            self._producer.poll(0)
            if len(self._producer) > UNACKNOWLEDGED_MAX:
                continue
            for number in range(self.sent, self.sent + NUMBERS_A_PIECE):
                text = str(number).encode()
                self._producer.produce(TOPIC, text, partition=number % PARTITIONS, on_delivery=self._delivered)
            self.sent += NUMBERS_A_PIECE

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._refused.append(error)


@contextlib.contextmanager
def fed_broker(folder: Path) -> Iterator[tuple[Broker, Feed]]:
    with Broker(folder / "kafka") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
        feed = Feed(broker.address)
        try:
            yield broker, feed
        finally:
            with contextlib.suppress(AssertionError):
                feed.finish()


def send(address: str, topic: str, texts: list[str]) -> None:
    producer = Producer({"bootstrap.servers": address})
    for text in texts:
        producer.produce(topic, text.encode())
    assert producer.flush(60) == 0


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    with Broker(tmp_path / "kafka") as broker:
        sales = [{"item": "apple", "price": 0.5, "sold_at": f"2026-11-19T10:00:{second:02d}Z"} for second in range(40)]
        send(broker.address, "sales", [json.dumps(sale) for sale in sales])
        program = f"import runpy; runpy.run_path({str(EXAMPLE)!r})['pipeline'].run(available_now=True)"
        jars = ",".join(map(str, jars_of("connector")))
        environment = os.environ | {"KAFKA": broker.address, "KAFKA_JARS": jars, "HOLDFAST_STATE_DIR": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
    rows = pq.read_table(tmp_path / "out" / "totals").to_pylist()
    assert [(row["item"], row["sales"], row["total"]) for row in rows] == [("apple", 10, 5.0)] * 4


def disturb(target: str, arena: Arena, broker: Broker, node: NodeProcess) -> None:
    """Kill something for real; whoever is to come back by itself does so afterwards."""
    if target == "broker":
        broker.kill()
        arena.pause(0.0, 2.0)
        broker.start()
    elif target == "worker":
        wait_until(lambda: node.workers() or not node.lives, "waiting for a worker")
        node.signal_all(node.workers(), signal.SIGKILL)
    elif target == "query":
        store = LocalStore(arena.folder / "store" / "chaos")
        (arena.folder / "raise").touch()

        def has_died() -> bool:
            state = read_query_state(store, "sales")
            return not node.lives or (state is not None and state.phase == "dead" and "told to raise" in str(state))

        wait_until(has_died, "waiting for the query to die")
        (arena.folder / "raise").unlink()
    else:
        node.kill()


def windows_of(numbers: int) -> Rows:
    """Return what `time` makes of the numbers from 0 on."""
    found: Counter[tuple[object, ...]] = Counter()
    slide, number = 5_000_000 // STEP_US, np.arange(numbers)
    for first in range(-1, numbers // slide + 1):
        inside = number[max(first * slide, 0) : (first + 2) * slide]
        start = START + datetime.timedelta(seconds=5 * first)
        window = (("start", start), ("end", start + datetime.timedelta(seconds=10)))
        for name in range(NAMES):
            of_name = inside[inside % NAMES == name]
            if len(of_name):
                found[f"name {name}", window, int(of_name.sum()), len(of_name), int(of_name.max())] += 1
    return found


def totals_of(numbers: int) -> dict[str, tuple[int, int, int]]:
    """Return the last that `running` makes of the numbers from 0 on."""
    parts = {name: np.arange(name, numbers, NAMES) for name in range(NAMES)}
    return {f"name {name}": (int(part.sum()), len(part), int(part.max())) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("kind", "seed", "trims", "targets"),
    [
        ("time", 11, False, ["worker", "broker", "node"]),
        ("running", 12, True, ["query", "node", "broker", "worker"]),
    ],
)
def test_every_acknowledged_record_counts_once(
    tmp_path: Path, kind: str, seed: int, trims: bool, targets: list[str]
) -> None:
    with arena_in(tmp_path, seed, Path(kafka_pipeline.__file__)) as arena, fed_broker(tmp_path) as (broker, feed):
        options = ["--broker", broker.address, *(["--trims"] if trims else [])]
        node = arena.start(kind, *options)
        # With a name its rows are kept for it.
        with Consumer(arena.store, "totals", name="watcher", wait="120 seconds") as consumer:
            arena.wait_for_rows(consumer, node)
            for target in targets:
                arena.pause(0.2, 1.5)
                print(f"killing the {target}")
                disturb(target, arena, broker, node)
                if target == "node":
                    node = arena.start(kind, *options)
                arena.wait_for_rows(consumer, node)
        node.stop()
        numbers = feed.finish()
        if trims:
            ledger = read_ledger(LocalStore(tmp_path / "store" / "chaos"), "sales")
            assert ledger.trimmed_before("sales") is not None, "nothing was trimmed meanwhile"
        arena.run_to_the_end(kind, *options, *([] if trims else ["--plain", str(tmp_path / "plain.parquet")]))
        rows = rows_in(tmp_path)
        if kind == "running":
            # Each update once, and the last of each name what all records give.
            assert max(Counter((row["name"], row["rows"]) for row in rows).values()) == 1
            last = {row["name"]: row for row in sorted(rows, key=lambda row: row["rows"])}
            found = {name: (row["total"], row["rows"], row["last"]) for name, row in last.items()}
            assert found == totals_of(numbers)
        else:
            assert counted(rows) == windows_of(numbers)
            assert counted(rows) == counted(pq.read_table(tmp_path / "plain.parquet").to_pylist())
