"""A named consumer of one stream: it reads whole buckets, remembers its place by a lease, crashes and comes back.

Guarantees:
    * What one life of the reader saw in a bucket, every later life must see again: nothing that was read is withdrawn.
    * From its lease on every frame must be readable: retention that deletes too much is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.connect.lease import Lease, read_lease, write_lease
from holdfast.errors import StoreUnavailable
from holdfast.log.segment import read_frame
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, MANY_SHARDS, Published
from holdfast.node.ranges import bucket_slices
from holdfast.testing.simulated_stage import SCHEMA, Row, rows_of, shard_of
from holdfast.testing.timeline import Process

if TYPE_CHECKING:
    from holdfast.testing.simulated_world import World

READER = "reader"
FAILURES_MAX = 20


class Seen:
    """What has been read of a stream, by all lives of its reader."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.bucket_end = FIRST_BUCKET
        self.rows: dict[tuple[int, int], list[Row]] = {}
        """Per (bucket, shard)."""


class ReaderProcess(Process):
    """One life of a consumer."""

    def __init__(self, world: World, seen: Seen, name: str) -> None:
        super().__init__(world.timeline, name, world.disk.process(name))
        self.world = world
        self.seen = seen
        self._reader = StreamReader(self.store, seen.stream)
        self._failures = 0

    def open(self) -> None:
        """Go on from the lease."""
        lease = read_lease(self.store, self.seen.stream, READER)
        self._position = FIRST_BUCKET if lease is None else lease.bucket
        self.soon(50_000, self._read)

    def died(self, reason: str) -> None:
        self.timeline.tell(self.name, f"ends: {reason}")
        self.world.reader_ended(self)

    def _read(self) -> None:
        self._reader.poll()
        end = self._reader.ledger.stream_bucket_end(self.seen.stream) if self._reader.started else None
        if end is None or end <= self._position:
            self.soon(120_000, self._read)
        else:
            # Between the look and the reading anything may happen to the frames.
            self.soon(800_000 if self.timeline.chance(0.1) else 50_000, lambda: self._take(end))

    def _take(self, end: int) -> None:
        try:
            self._read_to(end)
            self._failures = 0
        except FileNotFoundError as error:
            # A frame that was moved just now: the next poll says where it is.
            self.timeline.count("a frame moved under a reader")
            self._failures += 1
            if self._failures > FAILURES_MAX:
                self.world.violated(f"{self.name} cannot read buckets from {self._position} on: {error}")
        if self.timeline.chance(0.5):
            self._commit()
        self.soon(60_000, self._read)

    def _read_to(self, end: int) -> None:
        ledger = self._reader.ledger
        found: dict[tuple[int, int], list[Row]] = {}
        for frame in ledger.frames(self.seen.stream, self._position, end):
            for bucket, rows in self._buckets_of(frame):
                for row in rows if self._position <= bucket < end else []:
                    shard = shard_of(row[0], self.world.shards) if frame.shard == MANY_SHARDS else frame.shard
                    found.setdefault((bucket, shard), []).append(row)
        for bucket, shard in self.seen.rows:
            if self._position <= bucket < min(end, self.seen.bucket_end) and (bucket, shard) not in found:
                self.world.violated(f"{self.name}: bucket {bucket} of shard {shard} was read before and is gone")
        for (bucket, shard), rows in found.items():
            before = self.seen.rows.get((bucket, shard), [] if bucket < self.seen.bucket_end else rows)
            if before != rows:
                self.world.violated(f"{self.name}: bucket {bucket}, shard {shard} was {before}, is {rows}")
            self.seen.rows[bucket, shard] = rows
        self._position = end
        self.seen.bucket_end = max(self.seen.bucket_end, end)

    def _buckets_of(self, frame: Published) -> list[tuple[int, list[Row]]]:
        header, batch = read_frame(self.store, frame.frame, SCHEMA)
        rows = rows_of(batch)
        if frame.stamp_us is not None:
            return [(frame.bucket_start, rows)]
        return [(bucket, rows[start:end]) for bucket, start, end in bucket_slices(header)]

    def _commit(self) -> None:
        try:
            write_lease(self.store, Lease(self.seen.stream, READER, self._position, 0, END_OF_TIME))
        except StoreUnavailable:
            self.timeline.count("a lease could not be written")
