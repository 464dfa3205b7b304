"""holdfast's side of `bench.wave`: real units, slots, orders, receipts and journal; no tuples.

Invariants:
    * A wave's time is from its first order to the moment at which the entries of both receipts are synced.
    * What decides in a real node is left out, what does the work is not: the tasks open, lock and publish the state of
      every unit.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bench.peers.session import CORES

if TYPE_CHECKING:
    from holdfast.node.messages import Receipt, Result, Work
    from holdfast.plan import Topology
    from holdfast.spark.waves import Waves

STAGE: Final = "groups"
NODE: Final = "bench"
GENERATION: Final = 1
WARM_UP_WAVES: Final = 20
RECEIPT_LIMIT_S: Final = 60.0
BUCKET_WIDTH_US: Final = 50_000


def run_all(units_per_slot: list[int], seconds: float, work: str) -> dict[str, Any]:
    """Measure each number of units in one session; return the waves' times by name."""
    import holdfast as hf

    spark = hf.session("wave", **{"spark.master": f"local[{CORES}]"})
    runs = {}
    for units in units_per_slot:
        folder = Path(work, f"wave-{units}-{time.time_ns()}")
        folder.mkdir(parents=True)
        runs[f"holdfast_{units}_per_slot"] = Run(spark, folder, units).measure(seconds)
    return runs


class Run:
    """One store, and two slots with so many units each."""

    def __init__(self, spark: Any, folder: Path, units_per_slot: int) -> None:
        from holdfast.log.store import open_store

        self._spark = spark
        self._folder = folder
        self._units_per_slot = units_per_slot
        self._store = open_store(str(folder / "store"))
        self._receipts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._wave = 0

    def measure(self, seconds: float) -> dict[str, Any]:
        """Attach the units, warm up, then send waves for that long."""
        from holdfast.log.stream_log import StreamLog
        from holdfast.model import FIRST_BUCKET

        waves = self._waves()
        shards = CORES * self._units_per_slot
        with StreamLog.open(self._store, [STAGE], NODE, shards=shards, bucket_width_us=BUCKET_WIDTH_US) as log:
            self._attach(waves, FIRST_BUCKET)
            times_ms: list[float] = []
            tasks_ms: list[float] = []
            bucket = FIRST_BUCKET
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s or len(times_ms) <= WARM_UP_WAVES:
                begun = time.perf_counter()
                tasks_ms.append(self._wave_of_nothing(waves, log, bucket))
                times_ms.append((time.perf_counter() - begun) * 1000)
                bucket += 1
        return {"wave_ms": times_ms[WARM_UP_WAVES:], "longest_task_ms": tasks_ms[WARM_UP_WAVES:]}

    def _waves(self) -> Waves:
        import msgspec

        from holdfast.node.slot import SlotSetup
        from holdfast.spark.waves import Waves

        topology = msgspec.json.encode(topology_of(CORES * self._units_per_slot))
        setup = SlotSetup(self._folder.name, self._store.url, topology, str(self._folder / "state"))
        waves = Waves(self._spark, setup, self._receipts.put)
        waves.slots_changed()
        return waves

    def _attach(self, waves: Waves, bucket: int) -> None:
        from holdfast.node.messages import Attached, AttachWork

        works = [
            [AttachWork(STAGE, shard, GENERATION, bucket, bucket, [], True) for shard in self._shards_of(slot)]
            for slot in range(CORES)
        ]
        for receipt in self._send(waves, works):
            _expect(receipt.results, Attached)

    def _wave_of_nothing(self, waves: Waves, log: Any, bucket: int) -> float:
        """Run one wave and return the longer of its tasks' own times, in ms."""
        from holdfast.model import UnitCommitted
        from holdfast.node.messages import Processed, ProcessWork, UnitWork

        works = []
        for slot in range(CORES):
            units = [UnitWork(shard, GENERATION, bucket, bucket) for shard in self._shards_of(slot)]
            works.append([ProcessWork(STAGE, units, bucket, bucket + 1, [])])
        commits, tasks_s = [], []
        for receipt in self._send(waves, works):
            _expect(receipt.results, Processed)
            tasks_s.append(receipt.seconds)
            units_done = self._shards_of(receipt.slot)
            commits.append(
                log.commit([UnitCommitted(STAGE, unit, GENERATION, bucket, bucket + 1) for unit in units_done])
            )
        for commit in commits:
            commit.result()
        return max(tasks_s) * 1000

    def _send(self, waves: Waves, works: Sequence[Sequence[Work]]) -> Iterator[Receipt]:
        """Give each slot its work, and yield each receipt as it comes."""
        from holdfast.node.messages import RECEIPT_DECODER, Order

        self._wave += 1
        for slot, work in enumerate(works):
            waves.send(Order(self._wave, slot, NODE, list(work)))
        for _ in works:
            receipt = RECEIPT_DECODER.decode(self._receipts.get(timeout=RECEIPT_LIMIT_S))
            waves.received(receipt.wave, receipt.slot)
            yield receipt

    def _shards_of(self, slot: int) -> range:
        return range(slot * self._units_per_slot, (slot + 1) * self._units_per_slot)


def topology_of(shards: int) -> Topology:
    """Return a pipeline that counts by key and is never fed."""
    from holdfast.plan import (
        Aggregate,
        Aggregation,
        Column,
        Named,
        ProducerSource,
        Source,
        Stage,
        StageInput,
        Topology,
    )

    schema_in = pa.schema([pa.field("key", pa.int64())]).serialize().to_pybytes()
    schema_out = pa.schema([pa.field("key", pa.int64()), pa.field("count", pa.int64())]).serialize().to_pybytes()
    key = Named("key", Column("key", "bigint"))
    aggregation = Aggregation(
        keys=[key],
        aggregates=[Aggregate("count", "count_all", None, "bigint")],
        outputs=[key, Named("count", Column("count", "bigint"))],
    )
    stage = Stage(
        STAGE, [StageInput("tuples", schema_in, [])], schema_in, aggregation, [], schema_out, None, sharded=True
    )
    source = Source("tuples", schema_in, ProducerSource(), ["key"])
    return Topology("wave", shards, BUCKET_WIDTH_US, [source], [stage], [])


def _expect(results: list[Result], kind: type[Any]) -> None:
    for result in results:
        if not isinstance(result, kind):
            raise RuntimeError(f"a slot answered {result!r} where {kind.__name__} was expected")
