"""What runs inside a task: an order carried out, piece by piece, with one sync at its end.

Guarantees:
    * Every piece of work gets one result. What is in a result is durable; after a failed sync nothing of the order is in one.
    * A unit's state is locked for as long as its wave runs, here or in another process of this host.
    * No pyspark: the same code runs in a Spark task, in the simulator's processes and in a test.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, Retryable
from holdfast.errors import StateAbsent as StateAbsentError
from holdfast.log.segment import SegmentWriter, segment_folder
from holdfast.log.store import open_store
from holdfast.node.messages import (
    AttachWork,
    DeliverWork,
    Failed,
    IngestWork,
    Order,
    ProcessWork,
    Result,
    Skipped,
    StateAbsent,
    Work,
)
from holdfast.plan import Topology
from holdfast.ports import Store


class SlotSetup(msgspec.Struct, frozen=True):
    """What a slot has to know before its first order. `functions` are the user's own, by number."""

    pipeline_id: str
    store_url: str
    topology: bytes
    state_folder: str
    functions: Sequence[Callable[..., Any]] = ()


class SlotContext:
    """What the works of one slot share: the store, the topology, the segments being written."""

    def __init__(self, setup: SlotSetup, node: str, store: Store | None = None) -> None:
        self.setup = setup
        self.node = node
        self.store = store if store is not None else open_store(setup.store_url)
        self.topology = msgspec.json.decode(setup.topology, type=Topology)
        self.stages = {stage.name: stage for stage in self.topology.stages}
        self.sources = {source.name: source for source in self.topology.sources}
        self.sinks = {sink.name: sink for sink in self.topology.sinks}
        self._writers: dict[str, SegmentWriter] = {}

    def writer(self, stream: str) -> SegmentWriter:
        """Return this process's segment of a stream. No other process ever appends to it."""
        writer = self._writers.get(stream)
        if writer is None:
            folder = segment_folder(stream, self.node, f"{os.uname().nodename}-{os.getpid()}", time.time_ns())
            writer = self._writers[stream] = SegmentWriter(self.store, folder)
        return writer

    def sync(self) -> None:
        """Make every frame durable that was appended since the last time."""
        for writer in self._writers.values():
            writer.sync()

    def forget_writers(self) -> None:
        """After a failure: what was appended and not synced is nobody's, and the next frames go to new segments."""
        writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()


class Slot:
    """Carries out orders, one at a time."""

    def __init__(self, setup: SlotSetup, node: str, store: Store | None = None) -> None:
        from holdfast.node.slot_edges import deliver, ingest
        from holdfast.node.slot_units import SlotUnits

        self.context = SlotContext(setup, node, store)
        self.units = SlotUnits(self.context)
        self._ingest = ingest
        self._deliver = deliver

    def perform(self, order: Order) -> list[Result]:
        """Return a result for each piece of work."""
        results: list[Result] = []
        for number, work in enumerate(order.works):
            stop = any(isinstance(result, Failed) for result in results)
            results.append(Skipped(number) if stop else self._guarded(number, work))
        started = time.perf_counter()
        try:
            self.context.sync()
        except HoldfastError as error:
            self.context.forget_writers()
            return [_failed(number, error) for number in range(len(order.works))]
        return [_with_seconds(result, "sync", time.perf_counter() - started) for result in results]

    def close(self) -> None:
        self.units.close()
        self.context.forget_writers()

    def _guarded(self, number: int, work: Work) -> Result:
        try:
            return self._perform(work)
        except StateAbsentError as error:
            assert isinstance(work, ProcessWork | AttachWork), "only work on units needs state"
            stage, shard = self.units.absent(work)
            return StateAbsent(stage, shard, str(error))
        except HoldfastError as error:
            if isinstance(error, Retryable):
                self.context.forget_writers()
            return _failed(number, error)
        except FileNotFoundError as error:
            # A frame that was moved to another segment after the order was written: the next order names the new place.
            return Failed(number, "StoreUnavailable", f"a file of the store is gone: {error}", retry=True)
        except Exception:
            return Failed(number, "PipelineFailed", traceback.format_exc(), retry=False)

    def _perform(self, work: Work) -> Result:
        match work:
            case ProcessWork():
                return self.units.process(work)
            case AttachWork():
                return self.units.attach(work)
            case IngestWork():
                return self._ingest(self.context, work)
            case DeliverWork():
                return self._deliver(self.context, work)


def _failed(number: int, error: HoldfastError) -> Failed:
    return Failed(number, type(error).__name__, str(error), isinstance(error, Retryable))


def _with_seconds(result: Result, phase: str, seconds: float) -> Result:
    times = getattr(result, "seconds", None)
    if times is not None:
        times[phase] = times.get(phase, 0.0) + seconds
    return result


def warm() -> None:
    """Import everything a wave needs, and load its kernels."""
    import holdfast.node.slot_edges  # noqa: F401
    from holdfast.node.slot_units import warm as warm_units

    warm_units()
