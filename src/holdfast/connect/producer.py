"""`Producer`: rows from any Python program into a source of a pipeline, durable when `send` returns.

Invariants:
    * One entry of the journal says who sent a batch, which frames it has, and the boundary: all of it or nothing.
    * Batches of a name are numbered by (epoch, sequence), ascending. A repeat is dropped.
    * A stamp is given while the lock is held, and is never below a boundary that was logged before: clocks may go back.
    * A boundary of an idle source is logged by somebody who holds the same lock, so nothing can be on its way with a
      lower stamp.
    * Sends that come while another one is being synced are appended and synced together after it.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import threading
import time
from collections import deque
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pyarrow as pa

from holdfast.clock import WallClock
from holdfast.config import duration_us
from holdfast.connect.batches import Batches, Flight, Sent
from holdfast.connect.catalog import Located, wait_until_located
from holdfast.connect.conform import later_columns, table_of
from holdfast.connect.outgoing import Outgoing, check_times, outgoing_of
from holdfast.connect.room import Room
from holdfast.connect.trimming import Trimmer
from holdfast.errors import BadRow, Fenced, HoldfastError, Misconfigured, Retryable, StoreUnavailable
from holdfast.log.segment import SEGMENT_BYTES
from holdfast.log.store import validate_name
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.model import END_OF_TIME, Advanced, BatchLogged, FrameRef, JournalItem, bucket_of, bucket_start_us
from holdfast.plan import ProducerSource, Source
from holdfast.ports import Clock

TRIM_EVERY_S = 5.0


class _Request:
    """A send that waits for somebody, perhaps itself, to append it."""

    def __init__(self, outgoing: Outgoing, sequence: int | None) -> None:
        self.outgoing = outgoing
        self.sequence = sequence
        self.explicit = sequence is not None
        self.result: Flight | Sent | BaseException | None = None


class Producer:
    """The one writer of a source stream. Any thread may send; use it in a `with`, or call `close`.

    `store` and `stream` are those of the pipeline, which may be started up to `wait` later. `name` identifies the
    sender: the same name goes on with the next epoch, or with `epoch` to repeat batches of an earlier life by their
    sequence. `timeout` bounds how long `send` waits while the stream is full (`LogFull`); without it, it waits.
    """

    def __init__(
        self,
        store: str,
        stream: str,
        name: str | None = None,
        *,
        wait: str = "10 seconds",
        epoch: int | None = None,
        timeout: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._name = validate_name("producer" if name is None else name)
        self._timeout_s = None if timeout is None else duration_us(timeout, "timeout") / 1e6
        self._clock: Clock = clock or WallClock()
        self._located = wait_until_located(store, stream, duration_us(wait, "wait"))
        self._source, origin = _source_of(self._located)
        topology = self._located.topology
        self._stream = self._source.name
        self._optional = later_columns(self._located.schema, self._located.earlier)
        self._width_us = topology.bucket_width_us
        self._log = StreamLog.open(
            self._located.store,
            [self._stream],
            f"producer-{self._name}",
            shards=topology.shards,
            bucket_width_us=self._width_us,
            # A segment can only go when the next one is begun.
            options=LogOptions(segment_bytes=min(SEGMENT_BYTES, max(1 << 20, origin.size_bytes_max // 8))),
        )
        try:
            self._writer = self._log.segment_writer(self._stream, 0, self._log.term.numbers[self._stream])
            self._room = Room(self._located.store, self._stream, origin.size_bytes_max)
            self._batches = Batches(self._log.ledger, self._stream, self._name, epoch)
            self._trimmer = Trimmer(self._located, self._log)
        except BaseException:
            self._log.close()
            raise
        ledger = self._log.ledger
        self._boundary_us = ledger.boundary_us(self._stream)
        self._event_time_max_us = ledger.event_time_max_us(self._stream)
        self._lock = threading.Lock()
        self._queue: deque[_Request] = deque()
        self._idle_commit: Future[int] | None = None
        self._closed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-producer-{self._stream}", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def name(self) -> str:
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The columns that rows have to have; those that the source got later may be missing, and are null then."""
        return self._located.schema

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def send(self, rows: Any, *, sequence: int | None = None) -> Sent:
        """Log rows; they survive a crash of the machine when this returns.

        `rows` is an Arrow table or record batch, a list of dicts, or a pandas frame. With `sequence`, which has to
        ascend within an epoch, a batch may be sent again after an error or a crash: a repeat is dropped.

        Raises `SchemaMismatch` or `BadRow` (nothing was sent), `LogFull` or `StoreUnavailable` (send it again later),
        `Fenced` (another producer has taken the stream over).
        """
        zone = self._located.topology.session_time_zone
        table = table_of(rows, self.schema, f"stream {self._stream!r}", zone, self._optional)
        check_times(table, self._source)
        request = _Request(outgoing_of(self._located, self._source, table), sequence)
        self._room.wait(self._timeout_s, self._make_room)
        self._queue.append(request)
        with self._lock:
            if request.result is None:
                self._append_queued()
        return self._outcome(request)

    def boundary(self, at: datetime.datetime | int | None = None) -> None:
        """Promise that no row will come with a tuple_time before `at` (microseconds since 1970, or a datetime; now).

        A source that is ordered by a column needs it while it is idle: nobody else can know. A boundary that is behind
        the present one changes nothing.
        """
        at_us = _microseconds(at, self._clock)
        with self._lock:
            self._check_usable()
            if at_us <= self._boundary_us:
                return
            commit = self._advance(at_us)
        commit.result()

    def close(self) -> None:
        """Log what is still queued and the boundary that completes the last bucket, and let go of the stream.

        A second call does nothing. Rows of a source that is ordered by a column stay in an open bucket until `boundary`
        has passed its end.
        """
        atexit.unregister(self.close)
        self._stop.set()
        self._trimmer.close()
        self._thread.join()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # What cannot be logged now can be by the next producer; closing has to let go of the stream in any case.
            with contextlib.suppress(HoldfastError):
                self._complete_last_bucket()
            self._writer.close()
            self._log.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append_queued(self) -> None:
        """Append everything that is queued, with as few syncs as can be. The lock is held."""
        while self._queue:
            group: list[_Request] = []
            sequences: set[int] = set()
            # A repeat of a batch of the same group has to wait until that one is on its way.
            while self._queue and self._queue[0].sequence not in sequences:
                request = self._queue.popleft()
                group.append(request)
                if request.sequence is not None:
                    sequences.add(request.sequence)
            self._append_group(group)

    def _append_group(self, group: list[_Request]) -> None:
        """Append and sync the frames of a group, then hand its entries to the journal."""
        try:
            self._check_usable()
            appended = [(request, refs) for request in group if (refs := self._append(request)) is not None]
            if appended:
                self._writer.sync()
            for request, refs in appended:
                self._commit(request, refs)
        except BaseException as error:
            for request in group:
                if request.result is None:
                    self._fail(request, error)
            if not isinstance(error, HoldfastError):
                raise

    def _append(self, request: _Request) -> list[FrameRef] | None:
        """Append a request's frames; None if it is a repeat or cannot be taken."""
        outgoing = request.outgoing
        try:
            request.result = self._batches.known(request.sequence, outgoing.rows)
            if request.result is not None:
                return None
            self._check_order(outgoing)
            request.sequence = self._batches.number(request.sequence)
            refs: list[FrameRef] = []
            if outgoing.frames:
                refs = self._writer.append_encoded([frame.encoded for frame in outgoing.frames])
                self._room.add(outgoing.size_bytes)
        except HoldfastError as error:
            self._fail(request, error)
            return None
        if outgoing.tuple_time_max_us is not None:
            # Raised now, so that the next request of the same group is checked against it.
            self._boundary_us = max(self._boundary_us, outgoing.tuple_time_max_us)
        return refs

    def _check_order(self, outgoing: Outgoing) -> None:
        """Raise if rows that have their own tuple_time are behind the boundary."""
        lowest_us = outgoing.tuple_time_min_us
        if lowest_us is None or lowest_us >= self._boundary_us:
            return
        error = BadRow(
            f"source {self._stream!r}: row {outgoing.first_row} has {self._source.tuple_time!r} = "
            f"{_time_text(lowest_us)}, which is before the boundary {_time_text(self._boundary_us)}: later rows may "
            "not have lower times. Nothing was sent; sort the rows, or leave late ones out."
        )
        error.row = outgoing.first_row
        raise error

    def _fail(self, request: _Request, error: BaseException) -> None:
        request.result = error
        if isinstance(error, Retryable) and request.sequence is not None:
            self._batches.fail(request.sequence, request.explicit)

    def _commit(self, request: _Request, refs: list[FrameRef]) -> None:
        """Stamp a batch and queue its entry."""
        outgoing, sequence = request.outgoing, request.sequence
        assert sequence is not None, "a batch is numbered when it is appended"
        stamp_us: int | None = None
        if self._source.tuple_time is None:
            stamp_us = max(self._clock.now_us(), self._boundary_us)
            self._boundary_us = stamp_us
        self._event_time_max_us = max(self._event_time_max_us, outgoing.event_time_max_us)
        boundary_us = stamp_us if stamp_us is not None else outgoing.tuple_time_max_us
        items: list[JournalItem] = [BatchLogged(self._stream, self._name, self.epoch, sequence)]
        items += [
            frame.published(self._stream, ref, stamp_us, self._width_us)
            for frame, ref in zip(outgoing.frames, refs, strict=True)
        ]
        if boundary_us is not None:
            items.append(Advanced(self._stream, boundary_us, self._event_time_max_us))
        sent = Sent(self.epoch, sequence, outgoing.rows, stamp_us)
        request.result = Flight(sent, self._log.commit(items), request.explicit)
        self._batches.fly(request.result)

    def _outcome(self, request: _Request) -> Sent:
        """Wait for a request's entry, and return what became of it or raise why it failed."""
        result = request.result
        assert result is not None, "whoever held the lock has taken every request"
        if isinstance(result, BaseException):
            raise result
        if isinstance(result, Sent):
            return result
        try:
            result.commit.result()
        except Retryable as error:
            with self._lock:
                self._batches.settle()
            raise StoreUnavailable(
                f"stream {self._stream!r}: batch {result.sent.sequence} was not logged: {error} Send it again."
            ) from error
        return result.sent

    def _check_usable(self) -> None:
        """Raise if nothing can be logged; after a failure of the store, try whether it is over."""
        if self._closed:
            raise Misconfigured(f"the producer of stream {self._stream!r} is closed; make a new one.")
        failure = self._log.failure
        if isinstance(failure, Fenced):
            raise failure
        if failure is not None:
            self._batches.settle()
            self._log.reopen()

    def _advance(self, boundary_us: int) -> Future[int]:
        """Queue an entry with a boundary. The lock is held."""
        self._boundary_us = boundary_us
        return self._log.commit([Advanced(self._stream, boundary_us, self._event_time_max_us)])

    def _make_room(self, timeout_s: float) -> None:
        """Wait until something changes, and let go of whatever nobody needs, the present segment included."""
        self._trimmer.wait(timeout_s)
        with self._lock:
            self._check_usable()
            self._batches.settle()
            self._writer.close()
            self._trimmer.trim((), retain_us=0)

    def _complete_last_bucket(self) -> None:
        """Log the boundary that ends the bucket of the last stamp, which may be a moment in the future."""
        if self._source.tuple_time is not None or self._boundary_us < 0 or self._boundary_us >= END_OF_TIME:
            return
        self._log.reopen()
        bucket_end_us = bucket_start_us(bucket_of(self._boundary_us, self._width_us) + 1, self._width_us)
        self._advance(max(bucket_end_us, self._clock.now_us())).result()

    def _run(self) -> None:
        """Log a boundary at the edge of each bucket in which nothing was sent; trim now and then."""
        trim_at = time.monotonic() + TRIM_EVERY_S
        while True:
            if self._source.tuple_time is None:
                now_us = self._clock.now_us()
                edge_us = bucket_start_us(bucket_of(now_us, self._width_us) + 1, self._width_us)
                wait_s = (edge_us - now_us) / 1e6
            else:
                wait_s = TRIM_EVERY_S
            if self._stop.wait(wait_s):
                return
            with self._lock:
                self._advance_idle()
            if time.monotonic() >= trim_at:
                trim_at = time.monotonic() + TRIM_EVERY_S
                # What cannot be deleted now can be later; a send tells of what stops it.
                with contextlib.suppress(HoldfastError):
                    self._trimmer.trim({self._writer.folder})

    def _advance_idle(self) -> None:
        """Log the present as the boundary, unless a send did so in this bucket. The lock is held."""
        if self._source.tuple_time is not None:
            return
        now_us = self._clock.now_us()
        waiting = self._idle_commit is not None and not self._idle_commit.done()
        if waiting or self._boundary_us >= bucket_start_us(bucket_of(now_us, self._width_us), self._width_us):
            return
        # An error will be met by the next send, which can tell somebody.
        with contextlib.suppress(HoldfastError):
            self._check_usable()
            self._idle_commit = self._advance(now_us)


def _source_of(located: Located) -> tuple[Source, ProducerSource]:
    """Return the source that a stream is, if a producer may write it."""
    declared = located.declared
    if isinstance(declared, Source) and isinstance(declared.origin, ProducerSource):
        return declared, declared.origin
    fed = "by files" if isinstance(declared, Source) else "by the pipeline itself"
    others = [each.name for each in located.topology.sources if isinstance(each.origin, ProducerSource)]
    raise Misconfigured(
        f"stream {located.stream!r} of pipeline {located.topology.name!r} is written {fed}. "
        f"Streams for producers: {', '.join(others) or 'none'}."
    )


def _microseconds(at: datetime.datetime | int | None, clock: Clock) -> int:
    if at is None:
        return clock.now_us()
    if isinstance(at, datetime.datetime):
        moment = at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
        return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)
    if type(at) is not int:
        raise Misconfigured(f"a boundary is {at!r} and must be a datetime, or microseconds since 1970 as an int.")
    return at


def _time_text(time_us: int) -> str:
    try:
        return datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return f"{time_us} us"
