"""Producers and files: who brings rows into the simulated pipeline, and what they were promised.

Guarantees:
    * A producer writes as `connect.producer` does: frames, one sync, then an entry with batch, frame and boundary; a
      batch that failed or whose answer never came is sent again under the same number.
    * `Feed.acknowledged` holds the batches whose future resolved: none of them may ever be missing, or be there twice.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from holdfast.connect.batches import Batches, Flight, Sent
from holdfast.connect.catalog import Catalog, Located
from holdfast.connect.trimming import Trimmer
from holdfast.errors import CommitRefused, Fenced, HoldfastError, StoreUnavailable, StreamTaken
from holdfast.log.frame import FrameHeader
from holdfast.log.segment import SegmentWriter
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.model import (
    FORMAT_VERSION,
    MANY_SHARDS,
    NO_BUCKET,
    Advanced,
    BatchLogged,
    FileLogged,
    FrameKind,
    JournalItem,
    Published,
    bucket_of,
)
from holdfast.testing.simulated_node import EagerLog
from holdfast.testing.simulated_slots import Chunk
from holdfast.testing.simulated_stage import SCHEMA, Row, batch_of, in_shard_order
from holdfast.testing.timeline import Process

if TYPE_CHECKING:
    from holdfast.testing.simulated_world import World

LOG_OPTIONS = LogOptions(segment_bytes=2500, journal_bytes=6000, commit_thread=False)
PRODUCER = "feeder"


class Feed:
    """The rows of one producer's stream, in batches, and which of them are safe."""

    def __init__(self, stream: str, batches: list[list[Row]]) -> None:
        self.stream = stream
        self.batches = batches
        self.next = 0
        self.acknowledged: set[int] = set()

    @property
    def done(self) -> bool:
        return self.next == len(self.batches)


class SimulatedFiles:
    """A folder in which files appear; each is read in chunks."""

    def __init__(self, chunks: list[tuple[int, Chunk]]) -> None:
        self._chunks = chunks
        """When each is there, and what it is; in the order in which they are to be read."""
        self.hurry = False

    def look(self, logged: dict[str, FileLogged], now_us: int) -> tuple[list[Chunk], bool]:
        """Return what is there and not logged, and whether that is all there will be."""
        there = [chunk for at_us, chunk in self._chunks if self.hurry or at_us <= now_us]
        found = [c for c in there if c.path not in logged or c.start >= logged[c.path].row_end]
        return found, True

    def rows(self) -> list[Row]:
        return [row for _, chunk in self._chunks for row in chunk.rows]


class ProducerProcess(Process):
    """One life of a producer."""

    def __init__(self, world: World, feed: Feed, name: str) -> None:
        super().__init__(world.timeline, name, world.disk.process(name))
        self.world = world
        self.feed = feed
        self._skew_us = self.timeline.random.randint(-150_000, 150_000) if self.timeline.chance(0.3) else 0
        self._log: StreamLog
        self._writer: SegmentWriter
        self._flying = False

    def open(self) -> None:
        """Take the stream over, and find out what of the last life is logged."""
        world, stream = self.world, self.feed.stream
        world.taking()
        try:
            log = self._log = StreamLog.open(
                self.store,
                [stream],
                f"producer-{PRODUCER}",
                shards=world.shards,
                bucket_width_us=world.width_us,
                options=LOG_OPTIONS,
            )
            self._writer = log.segment_writer(stream, 0, log.term.numbers[stream])
        except (StreamTaken, Fenced, StoreUnavailable) as error:
            self.timeline.count(f"a start failed: {type(error).__name__}")
            # Who holds a stream is told with a process number, which is not the seed's.
            self.die(f"cannot start: {'it is taken' if isinstance(error, StreamTaken) else error}")
            return
        self._batches = Batches(log.ledger, stream, PRODUCER, 0)
        catalog = Catalog(FORMAT_VERSION, "simulated", "", world.topology)
        located = Located(self.store, catalog, world.sources[stream], SCHEMA)
        self._trimmer = Trimmer(located, cast(StreamLog, EagerLog(log, self.timeline)))
        self._boundary_us = log.ledger.boundary_us(stream)
        self.timeline.tell(self.name, f"starts, term {log.term.numbers[stream]}")
        world.took(log.term)
        self.soon(10_000, self._act)
        self.soon(300_000, self._trim)

    def died(self, reason: str) -> None:
        self.timeline.tell(self.name, f"ends: {reason}")
        self.world.producer_ended(self)

    def _now_us(self) -> int:
        return self.timeline.now_us + self._skew_us

    def _act(self) -> None:
        """Send the next batch, or say that time has passed."""
        try:
            if not self._flying and self._usable():
                if not self.feed.done and (self.world.healing or self.timeline.chance(0.6)):
                    self._send()
                else:
                    self._advance()
        except StoreUnavailable as error:
            self.timeline.tell(self.name, f"could not log: {error}")
        except Fenced as error:
            self.timeline.count("a producer was fenced")
            self.die(f"fenced: {error}")
            return
        self.soon(self.world.pace_us, self._act)

    def _usable(self) -> bool:
        failure = self._log.failure
        if isinstance(failure, Fenced):
            raise failure
        if failure is not None:
            self._batches.settle()
            self._log.reopen()
            self.timeline.count("a producer's log was reopened")
            self.world.observe([self.feed.stream])
        return True

    def _send(self) -> None:
        feed = self.feed
        sequence, rows = feed.next, feed.batches[feed.next]
        known = self._batches.known(sequence, len(rows))
        if known is not None:
            self.timeline.count("a batch was sent again and known")
            self._acknowledge(sequence)
            return
        self._batches.number(sequence)
        try:
            ordered, ends = in_shard_order(rows, self.world.shards)
            header = FrameHeader(FrameKind.DATA, feed.stream, MANY_SHARDS, 0, NO_BUCKET, NO_BUCKET, shard_row_ends=ends)
            ref = self._writer.append(header, batch_of(ordered))
            self.world.wrote(feed.stream, ref, ordered)
            self._writer.sync()
        except StoreUnavailable:
            self._batches.fail(sequence, explicit=True)
            raise
        stamp_us = self._boundary_us = max(self._now_us(), self._boundary_us)
        bucket = bucket_of(stamp_us, self.world.width_us)
        items: list[JournalItem] = [
            BatchLogged(feed.stream, PRODUCER, 0, sequence),
            Published(feed.stream, MANY_SHARDS, bucket, bucket + 1, len(rows), ref, stamp_us),
            Advanced(feed.stream, stamp_us),
        ]
        flight = self._log.commit(items)
        self._batches.fly(Flight(Sent(0, sequence, len(rows), stamp_us), flight, True))
        self._flying = True
        flight.add_done_callback(lambda future: self._answered(sequence, items, future))
        self.soon(5_000, self._flush)

    def _answered(self, sequence: int, items: list[JournalItem], future: Future[int]) -> None:
        self._flying = False
        error = future.exception()
        if isinstance(error, CommitRefused):
            self.later(0, lambda: self.world.violated(f"{self.name}: {error}"))
        if error is None:
            self.world.confirmed += items
            self._acknowledge(sequence)

    def _acknowledge(self, sequence: int) -> None:
        self.feed.acknowledged.add(sequence)
        self.feed.next = sequence + 1

    def _advance(self) -> None:
        if self._now_us() > self._boundary_us:
            self._boundary_us = self._now_us()
            self._log.commit([Advanced(self.feed.stream, self._boundary_us)])
            self._flush()

    def _flush(self) -> None:
        self._log.flush()
        self.world.observe([self.feed.stream])

    def _trim(self) -> None:
        try:
            self._trimmer.trim({self._writer.folder}, self.world.options.retain_us)
        except HoldfastError as error:
            self.timeline.tell(self.name, f"could not trim: {error}")
        self.world.observe([self.feed.stream])
        self.soon(300_000, self._trim)
