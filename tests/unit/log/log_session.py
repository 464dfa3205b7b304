"""A scripted writer and reader over a faulty store, and what must hold after whatever happened to them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.errors import StoreUnavailable
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import SegmentWriter, read_batch
from holdfast.log.stream_log import LogOptions, StreamLog, StreamReader
from holdfast.model import Advanced, FrameKind, FrameRef, JournalItem, Published, UnitCommitted
from holdfast.testing.faulty_store import FaultyStore

SCHEMA = pa.schema([("number", pa.int64())])
WIDTH_US = 1000
SHARDS = 2
NAMES = ["north", "averages"]
OPTIONS = LogOptions(segment_bytes=800, journal_bytes=5200, commit_thread=False)


def open_log(store: FaultyStore, owner: str = "node") -> StreamLog:
    return StreamLog.open(store, NAMES, owner, shards=SHARDS, bucket_width_us=WIDTH_US, options=OPTIONS)


def batch_of(number: int) -> pa.RecordBatch:
    return pa.record_batch([np.full(3, number, dtype=np.int64)], schema=SCHEMA)


def append_frame(writer: SegmentWriter, number: int) -> FrameRef:
    header = FrameHeader(FrameKind.DATA, "north", 0, 1, number, number + 1)
    ref = writer.append(header, batch_of(number))
    writer.sync()
    return ref


def items_of(number: int, ref: FrameRef) -> list[JournalItem]:
    return [
        Published("north", 0, number, number + 1, 3, ref, stamp_us=number * WIDTH_US),
        Advanced("north", number * WIDTH_US),
        UnitCommitted("averages", 0, 1, number, number + 1, digests=[(number, 3, number)]),
        UnitCommitted("averages", 1, 1, number, number + 1),
    ]


class Session:
    """Commits numbered frames, and remembers what was promised to whom."""

    def __init__(self, store: FaultyStore) -> None:
        self.store = store
        self.acknowledged: set[int] = set()
        self.withdrawn: set[int] = set()
        self.seen: list[int] = []
        self.reading = store.process("reader")
        self.reader = StreamReader(self.reading, "north")
        self.number = 0

    def read(self) -> None:
        if not self.reading.alive:
            return
        self.seen += [item.stamp_us // WIDTH_US for item in self.reader.poll() if isinstance(item, Published)]

    def run(self, store: FaultyStore, frames: int) -> None:
        """Open the log and commit frames; a failed write is answered by `reopen`, as a node does."""
        with _opened(store) as log:
            # A slot's generation is new in each life, so a path is never used for two frames.
            writer = log.segment_writer("north", 0, log.term.numbers["north"])
            # After a restart the units go on from where they are, as a node's do.
            unit = log.ledger.unit("averages", 0)
            self.number = self.number if unit is None else unit.bucket_end
            for _ in range(frames):
                self._commit(log, writer)
                self.read()

    def _commit(self, log: StreamLog, writer: SegmentWriter) -> None:
        try:
            ref = append_frame(writer, self.number)
        except StoreUnavailable:
            return
        future = log.commit(items_of(self.number, ref))
        log.flush()
        if future.exception() is None:
            self.acknowledged.add(self.number)
            self.number += 1
        while log.failure is not None:
            try:
                log.reopen()
            except StoreUnavailable:
                continue
        if future.exception() is not None and log.failure is None:
            self.withdrawn.add(log_entry_of(ref))

    def check(self, store: FaultyStore) -> None:
        """Open once more and compare with every promise."""
        with _opened(store) as log:
            self.read()
            frames = log.ledger.all_frames("north")
            numbers = [frame.stamp_us // WIDTH_US for frame in frames if frame.stamp_us is not None]
            assert numbers == list(range(len(numbers))), "no gap and nothing twice"
            assert self.acknowledged <= set(numbers), "nothing committed is lost"
            assert set(self.seen) <= set(numbers), "nothing read is withdrawn"
            assert len(set(self.seen)) == len(self.seen), "nothing is told twice"
            assert not self.withdrawn & {log_entry_of(frame.frame) for frame in frames}, "what failed stays out"
            for number, frame in zip(numbers, frames, strict=True):
                assert read_batch(store, frame.frame, SCHEMA).equals(batch_of(number))
            assert {bucket for _, bucket in log.ledger.digests("averages")} == set(numbers), "entries are whole"
            fresh = StreamReader(store.process("fresh"), "north")
            fresh.poll()
            assert fresh.ledger == log.ledger.about("north")
            if self.reading.alive:
                assert self.reader.ledger.all_frames("north") == frames
                assert self.seen == numbers


def log_entry_of(ref: FrameRef) -> int:
    """Name a frame's bytes by a number."""
    return hash((ref.segment, ref.offset))


def _opened(store: FaultyStore) -> StreamLog:
    """Open, trying again after an error, as a supervisor does."""
    for _ in range(3):
        try:
            return open_log(store)
        except StoreUnavailable:
            continue
    return open_log(store)
