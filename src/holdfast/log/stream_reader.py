"""Follow a stream from another process: its journal's items in order, across files and terms.

Invariants:
    * What `poll` returned is synced and never withdrawn: only entries below the mark are taken, and only if afterwards
      no later term is sealed, or if they lie before the end that the later term names.
    * `ledger` is the fold of all that `poll` returned.
    * A reader that was away for so long that files are gone catches up by the difference of two ledgers: it misses no
      frame that is still there, only the steps between.
"""

from __future__ import annotations

import time

import pyarrow as pa

from holdfast.errors import StoreUnavailable
from holdfast.log.difference import difference
from holdfast.log.journal import JournalReader, begun_number, check_begun, check_numbers, journal_numbers
from holdfast.log.ledger import Ledger, stream_of
from holdfast.log.segment import read_batch, read_rows
from holdfast.log.store import validate_name
from holdfast.log.terms import check_there, is_succeeded, read_term, standing, terms_folder
from holdfast.log.watch import POLL_INTERVAL_S, watch_store
from holdfast.model import Entry, FrameRef, JournalItem
from holdfast.ports import Store


class StreamReader:
    """A reader of one stream. For one thread; `wake` may be called from any."""

    def __init__(self, store: Store, stream: str) -> None:
        self._store = store
        self._stream = validate_name(stream)
        self._ledger: Ledger | None = None
        self._term = -1
        self._entry_next = 0
        self._file: JournalReader | None = None
        self._watch = watch_store(store, terms_folder(stream))
        self._woken = False

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def ledger(self) -> Ledger:
        """The fold of what `poll` returned (of one shard and no bucket while nothing was ever written)."""
        return Ledger(1, 1) if self._ledger is None else self._ledger

    @property
    def started(self) -> bool:
        """Whether the stream has a journal that this reader has read."""
        return self._ledger is not None

    @property
    def term(self) -> int:
        """The number of the term that is followed, -1 before the first."""
        return self._term

    @property
    def place(self) -> tuple[str, int] | None:
        """The journal that is followed and the number of its next entry, None while there is none to follow."""
        return None if self._file is None else (self._file.journal, self._entry_next)

    def poll(self) -> list[JournalItem]:
        """Return what the journal says of the stream since the last call, in its order."""
        items: list[JournalItem] = []
        while self._step(items):
            pass
        return items

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as `poll` has something to return (or `wake` was called), False when the time is over."""
        deadline = time.monotonic() + timeout_s
        while not self._woken and not self._has_news():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._watch is None:
                time.sleep(min(left_s, POLL_INTERVAL_S))
            else:
                self._watch.wait(left_s)
        self._woken = False
        return True

    def wake(self) -> None:
        """Make the present or the next `wait` return."""
        self._woken = True
        if self._watch is not None:
            self._watch.wake()

    def fileno(self) -> int | None:
        """Return a descriptor that is readable when files of the journal changed; None where the store cannot tell."""
        return None if self._watch is None else self._watch.fileno()

    def read(self, ref: FrameRef, schema: pa.Schema, verify: bool = True) -> pa.RecordBatch:
        """Return the rows of a frame without copying them."""
        try:
            return read_batch(self._store, ref, schema, verify)
        except FileNotFoundError as error:
            raise self._gone(ref) from error

    def read_rows(
        self, ref: FrameRef, schema: pa.Schema, shard_from: int, shard_to: int, verify: bool = True
    ) -> pa.RecordBatch:
        """Return the rows of the shards `[shard_from, shard_to)` of a frame without copying them."""
        try:
            return read_rows(self._store, ref, schema, shard_from, shard_to, verify)
        except FileNotFoundError as error:
            raise self._gone(ref) from error

    def close(self) -> None:
        """Give the descriptors back."""
        if self._watch is not None:
            self._watch.close()

    def _gone(self, ref: FrameRef) -> StoreUnavailable:
        return StoreUnavailable(
            f"segment {ref.segment} of stream {self._stream!r} is gone: its frames were moved to another segment or "
            "dropped "
            "by retention; call poll() and take the frame from the ledger again"
        )

    def _step(self, items: list[JournalItem]) -> bool:
        """Go one step on; return whether another may find more."""
        if self._file is None:
            return self._attach(items)
        try:
            offset = self._file.offset
            entries = self._file.next_entries()
            # The order matters: what was read before a look that finds no seal was not behind one.
            if is_succeeded(self._store, self._stream, self._term):
                return self._succeed(entries, offset, items)
            self._take(entries, items)
            return self._roll_over(items)
        except FileNotFoundError:
            # The file was rolled over and deleted, or its journal is over.
            self._file = None
            return True

    def _take(self, entries: list[Entry], items: list[JournalItem]) -> None:
        assert self._ledger is not None, "entries come after a head"
        assert self._file is not None, "entries come from a file"
        check_numbers(self._file.path, self._entry_next, entries)
        for entry in entries:
            self._entry_next += 1
            mine = [item for item in entry.items if stream_of(item) == self._stream]
            self._ledger.apply_all(mine)
            items += mine

    def _succeed(self, entries: list[Entry], offset: int, items: list[JournalItem]) -> bool:
        """A later term is sealed: nothing counts until its file says where ours ended."""
        assert self._file is not None, "only called while a file is read"
        newest = standing(self._store, self._stream).newest
        if newest is None or newest <= self._term:
            self._file.skip_to(offset)
            return False
        entry_end = 0
        try:
            previous = read_term(self._store, self._stream, self._term + 1).previous
            if previous is not None and previous.journal == self._file.journal:
                entry_end = previous.entry_end
        except FileNotFoundError:
            # Several terms have passed; the newest journal's head says it all.
            pass
        self._take([entry for entry in entries if entry.number < entry_end], items)
        self._file = None
        return True

    def _roll_over(self, items: list[JournalItem]) -> bool:
        """Go on to a newer file of the same journal, if there is one with a visible head."""
        assert self._file is not None, "only called while a file is read"
        numbers = journal_numbers(self._store, self._file.journal)
        for number in reversed([number for number in numbers if number > self._file.number]):
            newer = JournalReader(self._store, self._file.journal, number)
            fields = newer.fields()
            if fields is None or newer.mark() == 0:
                continue
            if fields.entry_first <= self._entry_next:
                newer.head()
                self._file = newer
                return True
            # The last entries before the roll-over: once more from the old file, or else from the new head.
            last = self._file.next_entries()
            if is_succeeded(self._store, self._stream, self._term):
                return True
            self._take(last, items)
            if self._entry_next < fields.entry_first:
                self._file = None
            return True
        return False

    def _attach(self, items: list[JournalItem]) -> bool:
        """Begin with the newest head of the newest term; return whether it could be taken."""
        found = self._newest_head()
        if found is None:
            return False
        term, file, head = found
        fields = file.fields()
        assert fields is not None, "a file with a head has fields"
        new = Ledger.deserialize(head, file.path).about(self._stream)
        if is_succeeded(self._store, self._stream, term):
            return False
        items += difference(self._ledger or Ledger(new.shards, new.bucket_width_us), new, self._stream)
        self._ledger, self._term, self._entry_next, self._file = new, term, fields.entry_first, file
        if self._watch is not None:
            # Both by one watch: the journal for entries and new files, the terms for successors.
            absolute = self._store.absolute  # type: ignore[attr-defined]
            self._watch.watch_only(absolute(terms_folder(self._stream)), absolute(file.journal))
        return True

    def _newest_head(self) -> tuple[int, JournalReader, bytes] | None:
        now = standing(self._store, self._stream)
        if now.newest is None or now.sealing is not None:
            return None
        try:
            record = read_term(self._store, self._stream, now.newest)
            journal = record.journal
            if self._watch is not None:
                # A term is there before its journal has a head: watched before it is looked for, none comes unseen.
                self._watch.add(self._store.absolute(journal))  # type: ignore[attr-defined]
            # The note first: what is begun when it is read has a whole head.
            begun = begun_number(self._store, journal)
            for number in reversed(journal_numbers(self._store, journal)):
                file = JournalReader(self._store, journal, number)
                head = file.head()
                if head is not None:
                    return now.newest, file, head
                check_begun(begun, file)
            if not is_succeeded(self._store, self._stream, now.newest):
                # What a successor has cleared away is no loss.
                check_there(self._store, record)
        except FileNotFoundError:
            return None
        return None

    def _has_news(self) -> bool:
        try:
            if self._file is None:
                return self._newest_head() is not None
            if is_succeeded(self._store, self._stream, self._term):
                return self._newest_head() is not None
            if self._file.mark() > self._file.offset:
                return True
            numbers = journal_numbers(self._store, self._file.journal)
            newer = [number for number in numbers if number > self._file.number]
            return any(JournalReader(self._store, self._file.journal, number).mark() for number in newer)
        except FileNotFoundError:
            return True
