"""A log against a plain list: any order of commits, polls, trims, rewrites, full disks, crashes and take-overs."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.errors import StoreUnavailable
from holdfast.log.frame import FrameHeader
from holdfast.log.reconcile import segment_paths
from holdfast.log.retention import Need, decide
from holdfast.log.rewrite import copy_frames, rewrite
from holdfast.log.segment import SegmentWriter, read_batch
from holdfast.log.stream_log import LogOptions, StreamLog, StreamReader
from holdfast.model import Advanced, FrameKind, JournalItem, Published
from holdfast.testing.faulty_store import FaultyStore, How

SCHEMA = pa.schema([("number", pa.int64())])
WIDTH_US = 1000
OPTIONS = LogOptions(segment_bytes=900, journal_bytes=5000, commit_thread=False)


class LogMachine(RuleBasedStateMachine):
    """`self.kept` is the model: the numbers that were committed and not trimmed."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.store = FaultyStore(seed, "first")
        self.kept: list[int] = []
        self.next = 0
        self.open()
        self.new_reader()

    def open(self) -> None:
        self.log = StreamLog.open(self.store, ["s"], "node", shards=1, bucket_width_us=WIDTH_US, options=OPTIONS)
        self.writer: SegmentWriter = self.log.segment_writer("s", 0, self.log.term.numbers["s"])

    def new_reader(self) -> None:
        self.reader = StreamReader(self.store.process("reader"), "s")
        self.seen: set[int] = set()

    def commit(self, items: list[JournalItem]) -> bool:
        future = self.log.commit(items)
        self.log.flush()
        return future.exception() is None

    def frame(self, number: int) -> list[JournalItem]:
        header = FrameHeader(FrameKind.DATA, "s", 0, 1, number, number + 1)
        ref = self.writer.append(header, pa.record_batch([np.full(2, number)], schema=SCHEMA))
        self.writer.sync()
        return [Published("s", 0, number, number + 1, 2, ref), Advanced("s", (number + 1) * WIDTH_US)]

    @rule(count=st.integers(1, 4))
    def commit_frames(self, count: int) -> None:
        entries = [self.frame(self.next + position) for position in range(count)]
        futures = [self.log.commit(items) for items in entries]
        self.log.flush()
        assert [future.exception() for future in futures] == [None] * count
        self.kept += range(self.next, self.next + count)
        self.next += count

    @rule(after=st.integers(0, 5), how=st.sampled_from(How))
    def commit_with_a_failing_disk(self, after: int, how: How) -> None:
        self.store.fail_at(len(self.store.operations) + after, how)
        try:
            if self.commit(self.frame(self.next)):
                self.kept.append(self.next)
                self.next += 1
        except StoreUnavailable:
            pass
        self.store.disk.faults.clear()
        self.log.reopen()

    @rule()
    def poll(self) -> None:
        told = [item.bucket_start for item in self.reader.poll() if isinstance(item, Published)]
        assert not self.seen & set(told)
        self.seen |= set(told)
        assert self.reader.ledger == self.log.ledger.about("s")

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        bucket = int(self.next * share)
        sizes = {"s": {path: self.store.size(path) for path in segment_paths(self.store, "s")}}
        (decision,) = decide(self.log.ledger, {"s": [Need("test", bucket)]}, sizes)
        if decision.trimmed is not None:
            assert self.commit([decision.trimmed])
            self.kept = [number for number in self.kept if number >= decision.trimmed.before_bucket]
        for path in decision.delete:
            self.store.delete(path)
        if decision.rewrite:
            assert self.commit(list(rewrite(self.store, self.log.ledger, "s", decision.rewrite).moved))

    @rule(data=st.data(), bytes_each=st.integers(1, 2000))
    def rewrite_some_segments(self, data: st.DataObject, bytes_each: int) -> None:
        """Whatever retention finds worth it: copies are frames like any other."""
        uses = sorted(self.log.ledger.segment_uses("s"))
        chosen = data.draw(st.lists(st.sampled_from(uses), unique=True)) if uses else []
        frames = [f.frame for f in self.log.ledger.each_frame("s") if f.frame.segment in chosen]
        copied = copy_frames(self.store, "s", [(ref, ref) for ref in frames], bytes_each)
        if copied.moved:
            assert self.commit(list(copied.moved))
        assert len(copied.segments) <= len(frames)
        for path in [] if self.writer_segment() in chosen else chosen:
            self.store.delete(path)

    def writer_segment(self) -> str:
        return f"{self.writer.folder}/{self.log.ledger.segment_last('s').get(self.writer.folder, '')}"

    @rule(power=st.booleans())
    def die_and_come_back(self, power: bool) -> None:
        if power:
            self.store.crash()
        else:
            self.store.kill()
        self.store = self.store.process("next")
        self.open()
        if power:
            self.new_reader()

    @rule()
    def hand_over(self) -> None:
        self.log.close()
        self.open()

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        frames = self.log.ledger.all_frames("s")
        assert [frame.bucket_start for frame in frames] == self.kept
        for frame in frames[-3:]:
            assert read_batch(self.store, frame.frame, SCHEMA).column(0).to_pylist() == [frame.bucket_start] * 2


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
