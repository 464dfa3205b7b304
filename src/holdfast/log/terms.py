"""Terms: who may publish a stream, and where the journal of the one before ended.

    terms/<stream>/000008.sealing    somebody is about to take term 8: nothing of term 7 counts from now on
    terms/<stream>/000008            who holds term 8, its journal, and where that of term 7 ended

Fencing is by name, not by lock: both files are created exclusively. A reader takes an entry only if afterwards no seal
of a later term exists, or if the entry lies before the end that the later term's file names. A flock, where the store
has one, only says earlier that the holder lives.

Invariants:
    * Of a stream's terms the highest whose file exists is the holder; its `previous` always names a journal with a
      head.
    * What lies at or past the end named in a term's file was never read by anybody, and never will be.
    * Taking can stop after any step and be begun again, by anybody.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.errors import AlreadyExists, Fenced, StoreCorrupt, StoreUnfit, StreamTaken
from holdfast.log.frame import checksum
from holdfast.log.journal import Recovered, recover
from holdfast.log.ledger import Ledger
from holdfast.log.store import number_of, validate_name
from holdfast.model import FORMAT_VERSION, NOT_DECODED
from holdfast.ports import Lock, Store

_SEALING: Final = ".sealing"
_LOCK: Final = "lock"


class Previous(msgspec.Struct, frozen=True):
    """The journal of the term before, and the number after its last entry that counts."""

    journal: str
    entry_end: int


class TermRecord(msgspec.Struct, frozen=True):
    """The content of a term's file: a line of JSON, and a line with its CRC32C."""

    stream: str
    number: int
    owner: str
    host: str
    pid: int
    journal: str
    previous: Previous | None
    names: list[str]
    version: int = FORMAT_VERSION


class _Seal(msgspec.Struct, frozen=True):
    owner: str
    host: str
    pid: int


class Standing(msgspec.Struct, frozen=True):
    """The terms of a stream at a moment."""

    numbers: list[int]
    sealing: int | None
    """The number of a term that is sealed for but has no file yet."""

    @property
    def newest(self) -> int | None:
        return self.numbers[-1] if self.numbers else None


def terms_folder(stream: str) -> str:
    return f"terms/{validate_name(stream)}"


def term_path(stream: str, number: int) -> str:
    return f"{terms_folder(stream)}/{number:06d}"


def seal_path(stream: str, number: int) -> str:
    return term_path(stream, number) + _SEALING


def standing(store: Store, stream: str) -> Standing:
    """Return which terms of a stream there are."""
    files = store.list(terms_folder(stream))
    numbers = sorted(number for name in files if (number := number_of(name)) is not None)
    seals = (number_of(name, _SEALING) for name in files)
    pending = max((seal for seal in seals if seal is not None and (not numbers or seal > numbers[-1])), default=None)
    return Standing(numbers, pending)


def has_terms(store: Store, stream: str) -> bool:
    """Return whether anybody ever took the stream, or is about to."""
    now = standing(store, stream)
    return now.newest is not None or now.sealing is not None


def is_succeeded(store: Store, stream: str, number: int) -> bool:
    """Return whether somebody has taken, or begun to take, a term after `number`.

    Any later one counts, not only the next: its files may have been cleared while those of an older term stayed.
    """
    names = (name.removesuffix(_SEALING) for name in store.list(terms_folder(stream)))
    return any(found is not None and found > number for found in map(number_of, names))


def read_term(store: Store, stream: str, number: int) -> TermRecord:
    """Return the content of a term's file; `FileNotFoundError` where it is gone."""
    path = term_path(stream, number)
    data = bytes(store.read(path))
    text, _, crc = data.partition(b"\n")
    try:
        if crc != b"%08x\n" % checksum(text):
            raise msgspec.DecodeError("its checksum is another")
        record = msgspec.json.decode(text, type=TermRecord)
        if (record.stream, record.number) != (stream, number):
            raise msgspec.DecodeError(f"it is that of term {record.number} of {record.stream!r}")
    except NOT_DECODED as error:
        raise StoreCorrupt(
            f"the term file {path} is damaged: expected who holds term {number} of {stream!r}, found {data[:80]!r} "
            f"({error}); restore it from a copy of the store"
        ) from error
    if record.version > FORMAT_VERSION:
        raise StoreUnfit(
            f"the term file {path} has format version {record.version}, this holdfast reads up to {FORMAT_VERSION}: "
            "use a "
            "newer holdfast"
        )
    return record


class Term:
    """The right to publish some streams, with one journal for all of them."""

    def __init__(
        self, store: Store, owner: str, journal: str, numbers: dict[str, int], previous: dict[str, Previous | None]
    ) -> None:
        self._store = store
        self.owner = owner
        self.journal = journal
        self.numbers = numbers
        self.previous = previous
        self.recovered: list[tuple[list[str], Recovered, Ledger]] = []
        self.locks: list[Lock] = []

    @property
    def names(self) -> list[str]:
        return sorted(self.numbers)

    def check_held(self) -> None:
        """Raise `Fenced` if a later term of one of the streams is sealed or taken."""
        for stream, number in self.numbers.items():
            if is_succeeded(self._store, stream, number):
                raise Fenced(
                    f"{self.owner!r} held term {number} of stream {stream!r}, and another process has taken or is "
                    "taking "
                    f"term {number + 1}: what was not committed before may be lost; stop this process"
                )

    def still_held(self) -> bool:
        """Return whether no later term of any of the streams is sealed or taken; cheap."""
        return not any(is_succeeded(self._store, stream, number) for stream, number in self.numbers.items())

    def release(self) -> None:
        """Let another process take the streams without waiting for this one to end."""
        for lock in self.locks:
            lock.release()
        self.locks.clear()


def take(store: Store, names: Sequence[str], owner: str, shards: int, bucket_width_us: int) -> Term:
    """Take the next term of each stream in `names`, with one new journal for all of them.

    Raises `StreamTaken`, naming the holder, where a living process holds one of them (on stores with locks), or where
    another process took one at the same moment.

    1. Lock, so that a living holder is noticed. 2. Seal, so that readers take nothing more. 3. Read the old journals to
    their ends. 4. Name a new journal. 5. Create the terms, with these ends.
    """
    assert names and len(set(names)) == len(names), "streams are taken once each"
    names = sorted(validate_name(name) for name in names)
    validate_name(owner)
    locks = _lock(store, names)
    try:
        for name in names:
            # Before anything is sealed: a stream that nobody can go on with stays as it is, for whoever restores it.
            newest = standing(store, name).newest
            if newest is not None:
                check_there(store, read_term(store, name, newest))
        numbers = {name: _seal(store, name, owner) for name in names}
        previous, recovered = _recover(store, names, numbers, shards, bucket_width_us)
        journal = _name_journal(store, owner, names[0], numbers[names[0]])
        term = Term(store, owner, journal, numbers, previous)
        for name in names:
            _create(store, term, name)
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    term.locks, term.recovered = locks, recovered
    return term


def _lock(store: Store, names: Sequence[str]) -> list[Lock]:
    locks: list[Lock] = []
    if not store.capabilities.lock:
        return locks
    for name in names:
        lock = store.lock(f"{terms_folder(name)}/{_LOCK}")
        if lock is None:
            for held in locks:
                held.release()
            raise _taken(store, name)
        locks.append(lock)
    return locks


@contextlib.contextmanager
def locked(store: Store, names: Sequence[str]) -> Iterator[None]:
    """Hold the locks of streams without taking them: where there are locks, no writer of theirs lives or begins."""
    locks = _lock(store, sorted(names))
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def _taken(store: Store, name: str) -> StreamTaken:
    now = standing(store, name)
    holder = "another process, which has only just begun"
    if now.newest is not None:
        record = read_term(store, name, now.newest)
        holder = f"{record.owner!r} (process {record.pid} on {record.host}), term {record.number}"
    taken = StreamTaken(
        f"stream {name!r} of {store.url} is being written by {holder}: a stream has one writer; stop that process, or "
        "write to another stream"
    )
    taken.stream = name
    return taken


def _seal(store: Store, name: str, owner: str) -> int:
    now = standing(store, name)
    if now.sealing is not None:
        # A taker died between sealing and creating; its seal serves.
        return now.sealing
    number = 0 if now.newest is None else now.newest + 1
    # Where another taker sealed at the same moment, who creates the term decides.
    with contextlib.suppress(AlreadyExists):
        store.write_new(seal_path(name, number), msgspec.json.encode(_Seal(owner, socket.gethostname(), os.getpid())))
    return number


def _recover(
    store: Store, names: Sequence[str], numbers: dict[str, int], shards: int, bucket_width_us: int
) -> tuple[dict[str, Previous | None], list[tuple[list[str], Recovered, Ledger]]]:
    """Read the last journal of each stream to its end; several streams may have had the same."""
    previous: dict[str, Previous | None] = {}
    found: dict[Previous, tuple[list[str], Recovered, Ledger]] = {}
    for name in names:
        previous[name] = None
        recovered = _recover_name(store, name, numbers[name])
        if recovered is None:
            continue
        end = Previous(recovered.journal, recovered.entry_end)
        previous[name] = end
        if end not in found:
            found[end] = ([], recovered, _fold(recovered, shards, bucket_width_us))
        found[end][0].append(name)
    return previous, list(found.values())


def _recover_name(store: Store, name: str, number: int) -> Recovered | None:
    """Return the last journal with a head: that of the last term, or of the one before where its holder died first."""
    newest = standing(store, name).newest
    if newest is None or newest >= number:
        if newest is None:
            return None
        raise _taken(store, name)
    record = read_term(store, name, newest)
    recovered = recover(store, record.journal)
    while recovered is None and record.previous is not None:
        # Fewer entries than `entry_end` are fine: what was never synced and never shown may go in a crash. So may a
        # whole head that its successor read before the crash; then what counts is where that journal went on from.
        recovered = recover(store, record.previous.journal, record.previous.entry_end)
        if recovered is None:
            record = _record_of(store, name, record)
    return recovered


def check_there(store: Store, record: TermRecord) -> None:
    """Raise if a term's journal has no file at all: its folder is claimed by one before the term is created."""
    if not store.list(record.journal):
        raise StoreCorrupt(
            f"the journal {record.journal} of stream {record.stream!r} is gone, and term {record.number} names it; "
            "restore it from a copy of the store"
        )


def _record_of(store: Store, name: str, successor: TermRecord) -> TermRecord:
    """Return the term whose journal `successor` goes on from."""
    assert successor.previous is not None, "only a term that goes on from another"
    for number in reversed(standing(store, name).numbers):
        record = read_term(store, name, number)
        if number < successor.number and record.journal == successor.previous.journal:
            return record
    raise StoreCorrupt(
        f"the journal {successor.previous.journal} of stream {name!r} is damaged: term {successor.number} goes on from "
        "it, and it has no file with a head; restore it from a copy of the store"
    )


def _fold(recovered: Recovered, shards: int, bucket_width_us: int) -> Ledger:
    ledger = Ledger.deserialize(recovered.head, recovered.journal)
    if (ledger.shards, ledger.bucket_width_us) != (shards, bucket_width_us):
        raise StoreUnfit(
            f"the journal {recovered.journal} was written with {ledger.shards} shards and buckets of "
            f"{ledger.bucket_width_us} us, this pipeline has {shards} and {bucket_width_us}: both are fixed when a "
            "store is "
            "made; use the former values, or another store"
        )
    for entry in recovered.entries:
        ledger.apply_all(entry.items)
    return ledger


def _name_journal(store: Store, owner: str, name: str, number: int) -> str:
    """Return a folder for a journal that no other term ever has, claimed by a file in it.

    It is below the stream whose term has that number: a name that could come again would let whoever clears the term
    that had it first delete the journal of the one that has it now.
    """
    journal, attempt = f"journal/{name}/{owner}-{number:06d}", 1
    while True:
        # A crash may bring back part of a journal that was deleted: only a folder with nothing in it is new.
        if not store.list(journal):
            with contextlib.suppress(AlreadyExists):
                store.write_new(f"{journal}/owner", f"{socket.gethostname()} {os.getpid()}\n".encode())
                return journal
        attempt += 1
        journal = f"journal/{name}/{owner}-{number:06d}.{attempt}"


def _create(store: Store, term: Term, name: str) -> None:
    record = TermRecord(
        stream=name,
        number=term.numbers[name],
        owner=term.owner,
        host=socket.gethostname(),
        pid=os.getpid(),
        journal=term.journal,
        previous=term.previous[name],
        names=term.names,
    )
    try:
        text = msgspec.json.encode(record)
        store.write_new(term_path(name, record.number), b"%s\n%08x\n" % (text, checksum(text)))
    except AlreadyExists:
        raise _taken(store, name) from None
