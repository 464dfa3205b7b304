"""Write streams: one journal for many of them, group commit, roll-over, and going on after a full disk.

Invariants:
    * A future that resolved names an entry that is synced; the ledger has it, and every reader will.
    * After a failed write or sync nothing more is committed until `reopen` has made a new file whose head is the
      ledger: so an entry whose future failed is in the log only if this process dies before `reopen` succeeded.
    * Nothing is committed after another process has sealed one of the streams.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Final

import msgspec

from holdfast.errors import CommitRefused, Fenced, HoldfastError, StoreUnavailable
from holdfast.log.admission import Admission
from holdfast.log.housekeeping import clear_journals, clear_terms
from holdfast.log.journal import JournalWriter, journal_path
from holdfast.log.ledger import Ledger
from holdfast.log.reconcile import Reconciled, check_nothing_missing, reconcile
from holdfast.log.rewrite import rewritten_folder
from holdfast.log.segment import SEGMENT_BYTES, SegmentWriter, segment_folder
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import Term, take
from holdfast.model import Entry, JournalItem
from holdfast.ports import Store

JOURNAL_BYTES: Final = 16 << 20
_HEADS_PER_FILE: Final = 4
"""A file is at least this many times as long as its head, so that heads stay a small part of what is written."""

OnCommit = Callable[[Entry], None]


class LogOptions(msgspec.Struct, frozen=True):
    """How a log writes. Without `commit_thread` nothing happens before `flush`: for a simulator."""

    segment_bytes: int = SEGMENT_BYTES
    journal_bytes: int = JOURNAL_BYTES
    commit_thread: bool = True
    check_segments: bool = True
    """Refuse to open where a frame is missing, and delete what nothing names; repair does neither: it needs copies."""


class _Waiting(msgspec.Struct, frozen=True):
    items: list[JournalItem]
    future: Future[int]


class StreamLog:
    """The writer of some streams. Any thread may commit; one thread writes.

    `ledger` is what is committed: it changes on the commit thread, and may be asked from any (see `Ledger`).
    """

    def __init__(
        self, store: Store, term: Term, ledger: Ledger, writer: JournalWriter, found: Reconciled, options: LogOptions
    ) -> None:
        self._store = store
        self._term = term
        self._ledger = ledger
        self._writer = writer
        self._options = options
        self._admission = Admission(ledger, term.names)
        self._entry_next = 0
        self._file_next = writer.number + 1
        self._callbacks: list[OnCommit] = []
        self._queue: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._failure: HoldfastError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self.reconciled = found
        """What opening found beside the named frames; orphans were deleted, except for repair."""
        self._folders_closed = set(found.folders)

    @classmethod
    def open(
        cls,
        store: Store,
        names: Sequence[str],
        owner: str,
        *,
        shards: int,
        bucket_width_us: int,
        options: LogOptions | None = None,
    ) -> StreamLog:
        """Take the streams `names` over and return a log that goes on where they ended.

        1. Take the terms, which reads the old journals. 2. Fold what concerns these streams. 3. Compare it with the
        real files. 4. Begin a new journal whose head is the fold. 5. Only then delete what nothing names any more.

        Raises `StreamTaken` where a living process has one of them, `SegmentCorrupt` where a committed frame is
        missing.
        """
        options = options or LogOptions()
        term = take(store, names, owner, shards, bucket_width_us)
        try:
            ledger = Ledger(shards, bucket_width_us)
            for streams, _, recovered in term.recovered:
                ledger.absorb(recovered.only(streams))
            found = reconcile(store, ledger, term.names)
            if options.check_segments:
                check_nothing_missing(found)
            for name in term.names:
                ledger.forget_folders(name, [f for f in ledger.segment_last(name) if not store.list(f)])
            writer = JournalWriter(store, term.journal, 0, term.names, ledger.serialize(), 0)
            term.check_held()
        except BaseException:
            term.release()
            raise
        term.recovered.clear()
        log = cls(store, term, ledger, writer, found, options)
        log._clear()
        if options.commit_thread:
            log._start()
        return log

    @property
    def term(self) -> Term:
        return self._term

    @property
    def names(self) -> list[str]:
        return self._term.names

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    @property
    def failure(self) -> HoldfastError | None:
        """Why nothing can be committed now, None if all is well."""
        return self._failure

    @property
    def folders_closed(self) -> frozenset[str]:
        """Folders of segments that were there when the log was opened: nobody commits anything in them any more."""
        return frozenset(self._folders_closed)

    def copies_folder(self, stream: str) -> str:
        """Return the folder for copies that this log's holder makes of a stream's frames; nobody else writes there."""
        return rewritten_folder(stream, f"{self._term.owner}-{self._term.numbers[stream]:06d}")

    def on_commit(self, callback: OnCommit) -> None:
        """Call `callback` with each entry, in order, on the commit thread, before the entry's future resolves."""
        self._callbacks.append(callback)

    def commit(self, items: Sequence[JournalItem]) -> Future[int]:
        """Queue one entry, and return a future of its number: resolved once it is synced, all of its items or none.

        The future fails with `CommitRefused` (the entry contradicts what is committed), `StoreUnavailable` (call
        `reopen` when there may be room, then commit again) or `Fenced` (stop).
        """
        waiting = _Waiting(list(items), Future())
        with self._changed:
            refusal = self._refusal()
            if refusal is None:
                self._queue.append(waiting)
                self._changed.notify_all()
        if refusal is not None:
            waiting.future.set_exception(refusal)
        return waiting.future

    def flush(self) -> None:
        """Write all that is queued on the calling thread, and return when it is synced (or has failed)."""
        while self._write_group():
            pass

    def reopen(self) -> None:
        """Go on after a failure, in a new file; `StoreUnavailable` while it still cannot be written."""
        with self._writing:
            if self._failure is None:
                return
            if isinstance(self._failure, Fenced):
                raise self._failure
            # Whoever was queued when it failed is told so now: what is committed again afterwards is then there once.
            with self._changed:
                waiting = list(self._queue)
                self._queue.clear()
            _fail(waiting, StoreUnavailable(str(self._failure)))
            self._roll_over()
            self._failure = None

    def segment_writer(self, stream: str, slot: str | int, generation: int) -> SegmentWriter:
        """Return a writer of new segments of a stream. Slots in other processes make the same by `segment_folder`."""
        folder = segment_folder(stream, self._term.owner, slot, generation)
        self._folders_closed.discard(folder)
        return SegmentWriter(self._store, folder, self._options.segment_bytes)

    def close(self) -> None:
        """Write what is queued, stop, and let others have the streams; a second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        self._writer.close()
        self._term.release()

    def __enter__(self) -> StreamLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"holdfast-commit-{self._term.owner}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
            try:
                self._write_group()
            except BaseException as error:
                # A bug of ours, or of a callback: nobody may wait for ever for a thread that is gone.
                self._failure = Fenced(f"the commit thread of {', '.join(self.names)} ended: {error!r}")
                with self._changed:
                    waiting = list(self._queue)
                    self._queue.clear()
                _fail(waiting, self._failure)
                raise

    def _refusal(self) -> HoldfastError | None:
        """Return why an entry cannot be taken now."""
        if self._closed:
            return CommitRefused(f"the log of {', '.join(self.names)} is closed: open it again to commit")
        failure = self._failure
        if failure is None or isinstance(failure, Fenced):
            return failure
        return StoreUnavailable(
            f"the log of {', '.join(self.names)} takes no entries since a write failed ({failure}); nothing committed "
            "is "
            "lost; it goes on once reopen() succeeds"
        )

    def _write_group(self) -> bool:
        """Write everything queued with one sync; return whether there was anything."""
        with self._writing:
            with self._changed:
                group = list(self._queue)
                self._queue.clear()
                refusal = self._failure and self._refusal()
            if not group:
                return False
            if refusal:
                _fail(group, refusal)
                return True
            admitted = self._admit(group)
            if admitted:
                self._write(admitted)
            return True

    def _admit(self, group: Sequence[_Waiting]) -> list[_Waiting]:
        admitted = []
        for waiting in group:
            try:
                self._admission.admit(waiting.items)
                admitted.append(waiting)
            except CommitRefused as refusal:
                waiting.future.set_exception(refusal)
        self._admission.settle()
        return admitted

    def _write(self, group: Sequence[_Waiting]) -> None:
        """1. Append and sync. 2. Look for a successor. 3. Apply, tell, resolve. 4. Roll over if it is time."""
        entries = [Entry(self._entry_next + position, waiting.items) for position, waiting in enumerate(group)]
        try:
            self._writer.append(entries)
            self._writer.sync()
            # After the sync: if no seal is there now, a successor that seals later will read these entries.
            self._term.check_held()
        except (HoldfastError, OSError) as error:
            self._failure = error if isinstance(error, HoldfastError) else StoreUnavailable(str(error))
            _fail(group, self._failure)
            return
        self._entry_next += len(entries)
        self._publish(group, entries)
        size_bytes = max(self._options.journal_bytes, _HEADS_PER_FILE * self._writer.head_size_bytes)
        if self._writer.size_bytes >= size_bytes or not self._writer.marked:
            try:
                self._roll_over()
            except HoldfastError as error:
                self._failure = error

    def _publish(self, group: Sequence[_Waiting], entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._ledger.apply_all(entry.items)
        try:
            for entry in entries:
                for callback in self._callbacks:
                    callback(entry)
        finally:
            # They are committed whatever a callback thinks of them.
            for waiting, entry in zip(group, entries, strict=True):
                waiting.future.set_result(entry.number)

    def _roll_over(self) -> None:
        """Begin a new file whose head is the ledger; on failure the old one takes nothing more either.

        A half-made new file may be whole on disk, and would then stand for all before it: so going on means a third.
        """
        self._writer.close()
        number, self._file_next = self._file_next, self._file_next + 1
        old = self._writer.number
        try:
            self._writer = JournalWriter(
                self._store, self._term.journal, number, self.names, self._ledger.serialize(), self._entry_next
            )
            self._term.check_held()
        except OSError as error:
            raise StoreUnavailable(
                f"{journal_path(self._term.journal, number)} could not be written: {error}"
            ) from error
        # The file before stays: a reader that is a little behind reads its end.
        # It may be gone in part, or not at all: the new file is whole, and the next roll-over clears again.
        with contextlib.suppress(HoldfastError, OSError):
            clear_journals(self._store, self._term.journal, before=old)

    def _clear(self) -> None:
        """Delete what the new head makes useless; what cannot be deleted now is found again by the next opening."""
        with contextlib.suppress(HoldfastError, OSError):
            for path in self.reconciled.orphans if self._options.check_segments else ():
                self._store.delete(path)
            clear_terms(self._store, self._term)


def _fail(group: Sequence[_Waiting], error: HoldfastError) -> None:
    for waiting in group:
        waiting.future.set_exception(error)


__all__ = ["JOURNAL_BYTES", "LogOptions", "OnCommit", "StreamLog", "StreamReader"]
