"""The writer of a stream whose frames others have written: a query's batches, numbered by the query.

Invariants:
    * One entry of the journal names the batch, its frames and the boundary: all of it or nothing.
    * A batch that is logged is never logged again. Batches of one query ascend.
    * A stream that another query has written is not taken over unless somebody says so: its rows would come twice.
    * A boundary is logged by who has just looked at the source; a stamp is never below it.
    * What an entry would have moved is moved when it is in the journal: a batch whose entry failed comes again, and
      neither the boundary nor the highest event time may have gone past it.
    * A segment that a task of the present life writes is never deleted (`task_folders`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import msgspec

from holdfast.connect.catalog import Located
from holdfast.connect.room import Room
from holdfast.connect.task_folders import TaskFolders
from holdfast.connect.trimming import RETAIN_US, Trimmer
from holdfast.errors import BadRow, HoldfastError, LogFull, StoreUnavailable, StoreUnfit
from holdfast.log.ledger import NO_BOUNDARY
from holdfast.log.stream_log import StreamLog
from holdfast.model import (
    END_OF_TIME,
    NO_WATERMARK,
    Advanced,
    BatchLogged,
    JournalItem,
    Published,
    Reported,
    bucket_of,
    bucket_start_us,
    stamped,
)
from holdfast.plan import QuerySource, Source
from holdfast.ports import Clock


class WriterOptions(msgspec.Struct, frozen=True):
    """How often a query's stream is trimmed, and what is kept. Times in microseconds."""

    trim_every_us: int = 5_000_000
    retain_us: int = RETAIN_US
    segment_life_us: int = 600_000_000
    """After it tasks begin new segments. Those of a task's process that has ended would never be finished otherwise."""


class BatchWriter:
    """Logs the batches of one query into one stream. Any thread may call; batches come one after the other."""

    def __init__(self, located: Located, owner: str, clock: Clock, options: WriterOptions | None = None) -> None:
        assert isinstance(located.declared, Source), "only a source's stream is written by a query"
        origin = located.declared.origin
        assert isinstance(origin, QuerySource), "the node itself writes what it reads from files"
        self._located = located
        self._source = located.declared
        self._stream = located.stream
        self._width_us = located.topology.bucket_width_us
        self._owner = owner
        self._clock = clock
        self._options = options or WriterOptions()
        self._life = 0
        self._life_ends_us = clock.now_us() + self._options.segment_life_us
        self._log = StreamLog.open(
            located.store, [self._stream], owner, shards=located.topology.shards, bucket_width_us=self._width_us
        )
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._room = Room(located.store, self._stream, origin.size_bytes_max)
        self._trimmer = Trimmer(located, self._log)
        self._trim_at_us = clock.now_us() + self._options.trim_every_us
        self._boundary_us = self._log.ledger.boundary_us(self._stream)
        self._event_time_max_us = self._log.ledger.event_time_max_us(self._stream)

    def take_over(self, query: str, adopt: bool) -> None:
        """Make sure that this query may write the stream; `adopt` says that another one's rows do not come again."""
        with self._lock:
            # Tasks of the query before, if there are any left, write for nobody.
            self._begin_life()
        others = sorted(name for name in self._log.ledger.batches(self._stream) if name != query)
        if not others or query in self._log.ledger.batches(self._stream):
            return
        if not adopt:
            raise StoreUnfit(
                f"the stream {self._stream!r} was written by {others[-1]}, and this is {query}: its spark_checkpoint "
                "is new, so it begins at the source's start and rows would be there twice. Bring the checkpoint back, "
                "or take the stream over with pipeline.source(..., adopt=True) if the source starts behind what is "
                "logged"
            )
        self.report(f"{query} has taken the stream over from {others[-1]}")

    def is_logged(self, query: str, batch: int) -> bool:
        """Return whether a batch is in the stream."""
        last = self._log.ledger.batch_last(self._stream, query)
        return last is not None and batch <= last[1]

    def wait_for_room(self) -> None:
        """Wait while the stream is as large as it may be; `LogFull` if the writer is closed meanwhile."""
        self._room.wait(None, self._make_room)

    def begin(self) -> TaskFolders:
        """Return where the tasks of the next batch are to write; nothing of any batch before is still being written."""
        with self._lock:
            if self._clock.now_us() >= self._life_ends_us:
                self._begin_life()
            return self._folders()

    def log(
        self,
        query: str,
        batch: int,
        frames: Sequence[Published],
        times_us: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """Stamp a batch's frames, and return when its entry is in the journal."""
        with self._lock:
            if self.is_logged(query, batch):
                return
            self._check_written_for_now(batch, frames)
            self._log.reopen()
            boundary_us, published = self._stamped(frames, times_us)
            newest_us = max(self._event_time_max_us, *(frame.event_time_max_us for frame in frames), NO_WATERMARK)
            items: list[JournalItem] = [BatchLogged(self._stream, query, 0, batch), *published]
            if boundary_us != NO_BOUNDARY:
                items.append(Advanced(self._stream, boundary_us, newest_us))
            self._room.add(sum(frame.frame.length for frame in frames))
            self._log.commit(items).result()
            self._boundary_us, self._event_time_max_us = boundary_us, newest_us

    def looked(self) -> None:
        """Log the present as the boundary: somebody has just seen that there is nothing more to read."""
        with self._lock:
            now_us = self._clock.now_us()
            reached_us = bucket_start_us(bucket_of(now_us, self._width_us), self._width_us)
            if self._source.tuple_time is None and self._boundary_us < reached_us:
                self._log.reopen()
                self._advance(now_us)
        self._trim_now_and_then(now_us)

    def report(self, message: str) -> None:
        """Keep a message about the source, for `status`."""
        with self._lock:
            self._log.reopen()
            commit = self._log.commit([Reported(self._stream, message, self._clock.now_us())])
        commit.result()

    def stop_waiting(self) -> None:
        """Let whoever waits for room give up. A node that ends makes none any more."""
        self._closing.set()
        self._trimmer.close()

    def close(self, complete: bool) -> None:
        """Let go of the stream; with `complete`, log the boundary that ends the bucket of the last stamp."""
        self.stop_waiting()
        with self._lock:
            with contextlib.suppress(HoldfastError):
                if complete and NO_BOUNDARY < self._boundary_us < END_OF_TIME and self._source.tuple_time is None:
                    self._log.reopen()
                    end_us = bucket_start_us(bucket_of(self._boundary_us, self._width_us) + 1, self._width_us)
                    self._advance(max(end_us, self._clock.now_us()))
            self._log.close()

    def _advance(self, boundary_us: int) -> None:
        self._boundary_us = max(self._boundary_us, boundary_us)
        self._log.commit([Advanced(self._stream, self._boundary_us, self._event_time_max_us)])

    def _stamped(
        self, frames: Sequence[Published], times_us: tuple[int | None, int | None]
    ) -> tuple[int, list[Published]]:
        """Return the boundary after a batch, and its frames as they are committed."""
        lowest_us, highest_us = times_us
        if self._source.tuple_time is None:
            stamp_us = max(self._clock.now_us(), self._boundary_us)
            return stamp_us, [stamped(frame, stamp_us, self._width_us) for frame in frames]
        if lowest_us is None or highest_us is None:
            return self._boundary_us, list(frames)
        if lowest_us < self._boundary_us:
            raise BadRow(
                f"source {self._stream!r}: a batch has {self._source.tuple_time!r} = {lowest_us} µs, which is "
                f"before {self._boundary_us} µs that came earlier. A source with tuple_time= has to be ordered by "
                "it: leave tuple_time out to have rows stamped as they arrive"
            )
        return highest_us, list(frames)

    # Segments

    def _begin_life(self) -> None:
        self._life += 1
        self._life_ends_us = self._clock.now_us() + self._options.segment_life_us

    def _folders(self) -> TaskFolders:
        return TaskFolders(self._owner, self._life)

    def _check_written_for_now(self, batch: int, frames: Sequence[Published]) -> None:
        """Refuse what a task of an ended life has written: it may have been deleted."""
        folders = self._folders()
        for frame in frames:
            if frame.frame.segment.rpartition("/")[0] not in folders:
                raise StoreUnavailable(
                    f"source {self._stream!r}: batch {batch} has a frame in {frame.frame.segment}, which is not of "
                    f"{folders.writer}: its query was started again meanwhile. The batch comes again"
                )

    def _make_room(self, timeout_s: float) -> None:
        if not self._closing.is_set():
            self._trimmer.wait(timeout_s)
        if self._closing.is_set():
            raise LogFull(f"the stream {self._stream!r} was full when the node stopped; the batch comes again")
        self._trim(retain_us=0)

    def _trim_now_and_then(self, now_us: int) -> None:
        if now_us >= self._trim_at_us:
            self._trim_at_us = now_us + self._options.trim_every_us
            # What cannot be deleted now can be later.
            with contextlib.suppress(HoldfastError):
                self._trim(self._options.retain_us)

    def _trim(self, retain_us: int) -> None:
        with self._lock:
            folders = self._folders()
        self._trimmer.trim(folders, retain_us, folders.has_closed)
