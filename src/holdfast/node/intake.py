"""Sources that the node itself reads: which chunk goes to a slot next, and what its rows are stamped with.

Invariants:
    * Chunks of a source are committed in the order in which they were found, whichever slot is done first.
    * A stamp is never below the boundary; the boundary is what has been said, committed or on its way to be.
    * A chunk that was lost is read again; what its first reader wrote is not named by any entry, so it does not exist.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.errors import BadRow
from holdfast.log.ledger import NO_BOUNDARY
from holdfast.model import Advanced, FileLogged, JournalItem, Published, bucket_of, stamped
from holdfast.node.events import ChunkFound
from holdfast.node.messages import Ingested, IngestWork
from holdfast.plan import Source


@dataclass(slots=True)
class Intake:
    """One source of files."""

    source: Source
    bucket_width_us: int
    boundary_us: int
    event_time_max_us: int
    chunks: dict[int, ChunkFound] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    done: dict[int, Ingested] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    next_number: int = 0
    next_commit: int = 0
    looks: int = 0
    settled: bool = False

    def looked(self, at_us: int, chunks: list[ChunkFound], settled: bool) -> list[JournalItem]:
        """Take what was found; return the boundary that the look allows."""
        self.looks += 1
        self.settled = settled
        for chunk in chunks:
            if chunk.key not in self.known:
                self.known.add(chunk.key)
                self.chunks[self.next_number] = chunk
                self.waiting.append(self.next_number)
                self.next_number += 1
        if self.source.tuple_time is not None or at_us <= self.boundary_us:
            return []
        return [self._advance(at_us)]

    def next_work(self) -> IngestWork | None:
        """Return the next chunk to read, and remember that it is being read."""
        if not self.waiting:
            return None
        number = self.waiting.popleft()
        return IngestWork(self.source.name, number, self.chunks[number].chunk)

    def lost(self, number: int) -> None:
        self.waiting.appendleft(number)

    def arrived(self, result: Ingested, now_us: int) -> list[JournalItem]:
        """Take a chunk that was read; return the items of all chunks whose turn has come."""
        self.done[result.number] = result
        items: list[JournalItem] = []
        while self.next_commit in self.done:
            items += self._items(self.done.pop(self.next_commit), now_us)
            del self.chunks[self.next_commit]
            self.next_commit += 1
        return items

    @property
    def idle(self) -> bool:
        """Whether everything that was found is in the stream or on its way into the journal."""
        return self.next_commit == self.next_number

    @property
    def bucket_reached(self) -> int | None:
        """Return the bucket that the boundary lies in; None before the first one."""
        return None if self.boundary_us == NO_BOUNDARY else bucket_of(self.boundary_us, self.bucket_width_us)

    def finish(self, bucket_end: int) -> list[JournalItem]:
        """Promise that nothing more comes before `bucket_end`, so that what is there can be processed at once."""
        return [self._advance(bucket_end * self.bucket_width_us)]

    def _items(self, result: Ingested, now_us: int) -> list[JournalItem]:
        published = self._stamped(result, now_us)
        logged = FileLogged(
            self.source.name,
            result.path,
            result.size_bytes,
            result.modified_ns,
            result.row_start,
            result.row_end,
            result.last,
        )
        for frame in published:
            if frame.stream == self.source.name:
                self.event_time_max_us = max(self.event_time_max_us, frame.event_time_max_us)
        return [logged, *published, Advanced(self.source.name, self.boundary_us, self.event_time_max_us)]

    def _stamped(self, result: Ingested, now_us: int) -> list[Published]:
        if self.source.tuple_time is None:
            self.boundary_us = max(now_us, self.boundary_us)
            return [stamped(frame, self.boundary_us, self.bucket_width_us) for frame in result.published]
        if result.tuple_time_min_us is not None and result.tuple_time_max_us is not None:
            if result.tuple_time_min_us < self.boundary_us:
                raise BadRow(
                    f"source {self.source.name!r}: {result.path}, rows {result.row_start} to {result.row_end}: "
                    f"column {self.source.tuple_time!r} has {result.tuple_time_min_us} µs, which is before "
                    f"{self.boundary_us} µs that came earlier. A source with tuple_time= has to be ordered by it: "
                    "sort the files, or leave tuple_time out to have rows stamped as they arrive"
                )
            self.boundary_us = result.tuple_time_max_us
        return result.published

    def _advance(self, boundary_us: int) -> Advanced:
        self.boundary_us = max(self.boundary_us, boundary_us)
        return Advanced(self.source.name, self.boundary_us, self.event_time_max_us)
