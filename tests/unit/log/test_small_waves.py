"""A stream of tiny waves that goes on for days: whatever a log keeps, in memory and on disk, stays as it is."""

from __future__ import annotations

from tests.unit.log.log_session import NAMES, SHARDS, WIDTH_US, batch_of

from holdfast.log.frame import FrameHeader
from holdfast.log.ledger import Ledger
from holdfast.log.reconcile import segment_paths
from holdfast.log.retention import Need, decide
from holdfast.log.rewrite import rewrite
from holdfast.log.segment import SegmentWriter
from holdfast.log.stream_log import LogOptions, StreamLog, StreamReader
from holdfast.model import Advanced, BatchLogged, FrameKind, JournalItem, Published, UnitCommitted
from holdfast.testing.faulty_store import FaultyStore

OPTIONS = LogOptions(segment_bytes=20_000, journal_bytes=50_000, commit_thread=False)
KEPT = 300
TRIM_EVERY = 50


class Stream:
    """A producer's stream and a stage's, wave by wave, with what both processes do to let go."""

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.log = StreamLog.open(self.store, NAMES, "node", shards=SHARDS, bucket_width_us=WIDTH_US, options=OPTIONS)
        self.writers = {name: self.log.segment_writer(name, 0, 1) for name in NAMES}
        self.reader = StreamReader(self.store.process("reader"), "averages")
        self.next = 0

    def run(self, waves: int) -> None:
        for bucket in range(self.next, self.next + waves):
            self.commit(self.sent(bucket))
            self.commit(self.processed(bucket))
            if bucket % TRIM_EVERY == 0:
                self.trim(bucket - KEPT)
                self.reader.poll()
        self.next += waves

    def sent(self, bucket: int) -> list[JournalItem]:
        stamp_us = bucket * WIDTH_US
        frame = self.frame(self.writers["north"], "north", bucket, 0, stamp_us)
        return [frame, BatchLogged("north", "feed", 0, bucket), Advanced("north", stamp_us + WIDTH_US)]

    def processed(self, bucket: int) -> list[JournalItem]:
        items: list[JournalItem] = []
        for shard in range(SHARDS):
            items.append(self.frame(self.writers["averages"], "averages", bucket, shard, None))
            items.append(UnitCommitted("averages", shard, 1, bucket, bucket + 1, [(bucket, 3, bucket)], 3))
        return items

    def frame(self, writer: SegmentWriter, stream: str, bucket: int, shard: int, stamp_us: int | None) -> Published:
        header = FrameHeader(FrameKind.DATA, stream, shard, 1, bucket, bucket + 1)
        ref = writer.append(header, batch_of(bucket))
        writer.sync()
        return Published(stream, shard, bucket, bucket + 1, 3, ref, stamp_us)

    def commit(self, items: list[JournalItem]) -> None:
        future = self.log.commit(items)
        self.log.flush()
        future.result()

    def trim(self, bucket: int) -> None:
        needs = {name: [Need("the time to retain", bucket)] for name in NAMES}
        sizes = {name: {path: self.store.size(path) for path in segment_paths(self.store, name)} for name in NAMES}
        for decision in decide(self.log.ledger, needs, sizes):
            if decision.trimmed is not None:
                self.commit([decision.trimmed])
            for path in decision.delete:
                self.store.delete(path)
            if decision.rewrite:
                self.commit(list(rewrite(self.store, self.log.ledger, decision.stream, decision.rewrite).moved))

    def sizes(self) -> dict[str, int]:
        ledger: Ledger = self.log.ledger
        files = self.store.disk.seen
        return {
            "head": len(ledger.serialize()),
            "frames": sum(len(ledger.all_frames(name)) for name in NAMES),
            "digests": len(ledger.digests("averages")),
            "frames of the reader": len(self.reader.ledger.all_frames("averages")),
            "files": len(files),
            "bytes": sum(len(file.seen) for file in files.values()),
        }


def test_nothing_grows_with_the_number_of_waves() -> None:
    stream = Stream()
    stream.run(1000)
    early = stream.sizes()
    stream.run(2000)
    late = stream.sizes()
    # Numbers get longer by a byte now and then; a segment or a journal is at another place of its life.
    assert all(late[what] <= early[what] * 1.25 for what in early), (early, late)
    assert late["head"] < 40 * late["frames"], "a frame costs little in each new journal file"
    head = stream.log.ledger.serialize()
    assert Ledger.deserialize(head) == stream.log.ledger and Ledger.deserialize(head).serialize() == head
    stream.log.close()
