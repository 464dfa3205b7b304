"""The writer of a stream whose frames others have written: a query's batches, numbered by the query.

Invariants:
    * One entry of the journal names the batch, its frames and the boundary: all of it or nothing.
    * A batch that is logged is never logged again. Batches of one query ascend.
    * A stream that another query has written is not taken over unless somebody says so: its rows would come twice.
    * A boundary is logged by who has just looked at the source; a stamp is never below it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from holdfast.connect.catalog import Located
from holdfast.connect.room import Room
from holdfast.connect.trimming import Trimmer
from holdfast.errors import BadRow, HoldfastError, StoreUnfit
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

TRIM_EVERY_S = 5.0


class BatchWriter:
    """Logs the batches of one query into one stream. Any thread may call."""

    def __init__(self, located: Located, owner: str, clock: Clock) -> None:
        assert isinstance(located.declared, Source), "only a source's stream is written by a query"
        origin = located.declared.origin
        assert isinstance(origin, QuerySource), "the node itself writes what it reads from files"
        self._located = located
        self._source = located.declared
        self._stream = located.stream
        self._width_us = located.topology.bucket_width_us
        self._clock = clock
        self._open_folders = FoldersOf(owner)
        self._log = StreamLog.open(
            located.store, [self._stream], owner, shards=located.topology.shards, bucket_width_us=self._width_us
        )
        self._lock = threading.Lock()
        self._room = Room(located.store, self._stream, origin.size_bytes_max)
        self._trimmer = Trimmer(located, self._log)
        self._trim_at_s = time.monotonic() + TRIM_EVERY_S
        self._boundary_us = self._log.ledger.boundary_us(self._stream)
        self._event_time_max_us = self._log.ledger.event_time_max_us(self._stream)

    def take_over(self, query: str, adopt: bool) -> None:
        """Make sure that this query may write the stream; `adopt` says that another one's rows do not come again."""
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
        """Wait while the stream is as large as it may be."""
        self._room.wait(None, self._make_room)

    def log(self, query: str, batch: int, frames: Sequence[Published], times_us: tuple[int | None, int | None]) -> None:
        """Stamp a batch's frames, and return when its entry is in the journal."""
        with self._lock:
            if self.is_logged(query, batch):
                return
            self._log.reopen()
            items: list[JournalItem] = [BatchLogged(self._stream, query, 0, batch), *self._stamped(frames, times_us)]
            newest = [frame.event_time_max_us for frame in frames]
            self._event_time_max_us = max(self._event_time_max_us, *newest, NO_WATERMARK)
            if self._boundary_us != NO_BOUNDARY:
                items.append(Advanced(self._stream, self._boundary_us, self._event_time_max_us))
            commit = self._log.commit(items)
            self._room.add(sum(frame.frame.length for frame in frames))
        commit.result()

    def looked(self) -> None:
        """Log the present as the boundary: somebody has just seen that there is nothing more to read."""
        with self._lock:
            now_us = self._clock.now_us()
            reached_us = bucket_start_us(bucket_of(now_us, self._width_us), self._width_us)
            if self._source.tuple_time is not None or self._boundary_us >= reached_us:
                return
            self._log.reopen()
            self._advance(now_us)
        self._trim_now_and_then()

    def report(self, message: str) -> None:
        """Keep a message about the source, for `status`."""
        with self._lock:
            self._log.reopen()
            commit = self._log.commit([Reported(self._stream, message, self._clock.now_us())])
        commit.result()

    def close(self, complete: bool) -> None:
        """Let go of the stream; with `complete`, log the boundary that ends the bucket of the last stamp."""
        self._trimmer.close()
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

    def _stamped(self, frames: Sequence[Published], times_us: tuple[int | None, int | None]) -> list[Published]:
        lowest_us, highest_us = times_us
        if self._source.tuple_time is None:
            self._boundary_us = max(self._clock.now_us(), self._boundary_us)
            return [stamped(frame, self._boundary_us, self._width_us) for frame in frames]
        if lowest_us is not None and highest_us is not None:
            if lowest_us < self._boundary_us:
                raise BadRow(
                    f"source {self._stream!r}: a batch has {self._source.tuple_time!r} = {lowest_us} µs, which is "
                    f"before {self._boundary_us} µs that came earlier. A source with tuple_time= has to be ordered by "
                    "it: leave tuple_time out to have rows stamped as they arrive"
                )
            self._boundary_us = highest_us
        return list(frames)

    def _make_room(self, timeout_s: float) -> None:
        self._trimmer.wait(timeout_s)
        self._trimmer.trim(self._open_folders, retain_us=0)

    def _trim_now_and_then(self) -> None:
        if time.monotonic() >= self._trim_at_s:
            self._trim_at_s = time.monotonic() + TRIM_EVERY_S
            # What cannot be deleted now can be later.
            with contextlib.suppress(HoldfastError):
                self._trimmer.trim(self._open_folders)


class FoldersOf(Collection[str]):
    """The folders of a writer's tasks, also those that a task makes a moment from now: so they are known by their name.

    What is in them may not be named by an entry yet. A list, made before the segments are looked at, would lack some.
    """

    def __init__(self, owner: str) -> None:
        self._part = f"/{owner}/"

    def __contains__(self, folder: object) -> bool:
        return isinstance(folder, str) and self._part in folder

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
