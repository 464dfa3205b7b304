"""What a slot is told once, and what the works of one slot share: the store, the topology, the segments being written.

Invariants:
    * No other process ever appends to this process's segments: their folder carries host, process and time.
    * After `forget_writers` nothing that was appended and not synced is ever synced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.log.segment import SegmentWriter, segment_folder
from holdfast.log.store import open_store
from holdfast.plan import Topology
from holdfast.ports import Store


class SlotSetup(msgspec.Struct, frozen=True):
    """What a slot has to know before its first order.

    `functions` are the user's own, by number; `lines` says where in the user's program steps stand (`pipeline.lines`).
    """

    pipeline_id: str
    store_url: str
    topology: bytes
    state_folder: str
    functions: Sequence[Callable[..., Any]] = ()
    lines: dict[str, str] = {}


class SlotContext:
    """What the works of one slot share."""

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
        """Return this process's segment of a stream."""
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
        """After a failed sync: what was appended is nobody's, and the next frames go to new segments."""
        writers, self._writers = list(self._writers.values()), {}
        for writer in writers:
            writer.close()
