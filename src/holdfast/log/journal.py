"""Journals: files of records that say what is part of a stream.

    first block (4 KiB): magic, mark, checksummed fields | head record | entry record | entry record ...
    record: length (4 bytes), CRC32C (4 bytes), MessagePack
    begun: a file beside them, with the number of the newest file that may have entries

A journal is a folder that one writer fills. The first record of each file is its *head*: everything that the files
before it said, folded; so a file stands for itself, and older ones may go.

Invariants:
    * Entries are numbered from 0 in a journal, without gaps, across its files.
    * The mark is written after the sync of what it covers. Other processes believe what is below it only, so what they
      saw survives a crash. It is not synced itself: losing it hides entries until a successor has read them.
    * A torn tail after the mark is normal. A bad record before it raises `JournalCorrupt`.
    * A file without a whole head is normal where its writer died before it could begin. Once it is noted as begun it
      was whole: if it is not, its entries are lost, and `JournalCorrupt` says so instead of going on without them.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.errors import HoldfastError, JournalCorrupt, StoreUnavailable, StoreUnfit
from holdfast.log.frame import checksum
from holdfast.log.store import number_of
from holdfast.model import FORMAT_VERSION, NOT_DECODED, Entry
from holdfast.ports import AppendFile, Buffer, Store

BLOCK_BYTES: Final = 4096
SUFFIX: Final = ".log"
MARK_OFFSET: Final = 8
BEGUN: Final = "begun"

_MAGIC: Final = b"HFjourn1"
_MARK: Final = struct.Struct("<Q")
_FIELDS: Final = struct.Struct("<III")  # version, length and checksum of the fields that follow
_RECORD: Final = struct.Struct("<II")
_FIELDS_OFFSET: Final = MARK_OFFSET + _MARK.size


class JournalFile(msgspec.Struct, frozen=True, array_like=True):
    """The checksummed fields of a file's first block. `names` are for people, and left out where they are too many."""

    journal: str
    number: int
    entry_first: int
    names: list[str] = []


_entry_encoder = msgspec.msgpack.Encoder()
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_file_decoder = msgspec.msgpack.Decoder(JournalFile)


def journal_path(journal: str, number: int) -> str:
    """Return the path of a file of a journal."""
    return f"{journal}/{number:06d}{SUFFIX}"


def journal_numbers(store: Store, journal: str) -> list[int]:
    """Return the numbers of a journal's files, ascending."""
    return sorted(number for name in store.list(journal) if (number := number_of(name, SUFFIX)) is not None)


def note_begun(store: Store, journal: str, number: int) -> None:
    """Note that a file has a whole head and may have entries."""
    text = b"%d" % number
    store.replace(f"{journal}/{BEGUN}", b"%s %08x" % (text, checksum(text)))


def begun_number(store: Store, journal: str) -> int:
    """Return the number of the newest file that was noted as begun, -1 before the first."""
    try:
        data = bytes(store.read(f"{journal}/{BEGUN}"))
    except FileNotFoundError:
        return -1
    text, _, crc = data.partition(b" ")
    if not text.isdigit() or crc != b"%08x" % checksum(text):
        raise JournalCorrupt(
            f"the file {journal}/{BEGUN} is damaged: expected a number and its checksum, found {data[:40]!r}; restore "
            "it from a copy of the store"
        )
    return int(text)


def _record(payload: bytes) -> bytes:
    length = len(payload).to_bytes(4, "little")
    return length + checksum(payload, checksum(length)).to_bytes(4, "little") + payload


class JournalWriter:
    """Append entries to one file of a journal. For one thread.

    Making one writes and syncs the file's head, and shows it: from then on the file stands for all before it.
    """

    def __init__(
        self, store: Store, journal: str, number: int, names: Sequence[str], head: bytes, entry_first: int
    ) -> None:
        self._file: AppendFile = store.create(journal_path(journal, number))
        self.journal = journal
        self.number = number
        self.head_size_bytes = len(head)
        self._marked = True
        self._closed = False
        try:
            self._begin(JournalFile(journal, number, entry_first, list(names)), head)
        except (HoldfastError, OSError):
            self.close()
            # Never shown, so nobody misses it; a disk that stays full shall not fill with beginnings.
            with contextlib.suppress(StoreUnavailable):
                store.delete(self.path)
            raise
        try:
            note_begun(store, journal, number)
        except (HoldfastError, OSError):
            self.close()
            with contextlib.suppress(HoldfastError, OSError):
                # The note may be there in spite of the error; then the file has to be there too.
                if begun_number(store, journal) < number:
                    store.delete(self.path)
            raise

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def size_bytes(self) -> int:
        return self._file.size

    @property
    def marked(self) -> bool:
        """Whether all that is synced is also visible to other processes."""
        return self._marked

    def append(self, entries: Sequence[Entry]) -> None:
        """Append entries; they are neither durable nor visible before `sync`."""
        self._file.append([_record(_entry_encoder.encode(entry)) for entry in entries])

    def sync(self) -> None:
        """Make what was appended durable, then visible.

        An error says that it is neither. Where only the mark could not be written the entries are durable, so this
        returns, and `marked` is false: go on in a new file.
        """
        self._file.sync()
        self._mark()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._file.close()

    def _begin(self, fields: JournalFile, head: bytes) -> None:
        encoded = msgspec.msgpack.encode(fields)
        block = bytearray(BLOCK_BYTES)
        block[:MARK_OFFSET] = _MAGIC
        start = _FIELDS_OFFSET + _FIELDS.size
        if start + len(encoded) > BLOCK_BYTES:
            encoded = msgspec.msgpack.encode(msgspec.structs.replace(fields, names=[]))
        _FIELDS.pack_into(block, _FIELDS_OFFSET, FORMAT_VERSION, len(encoded), checksum(encoded))
        block[start : start + len(encoded)] = encoded
        buffers: list[Buffer] = [block, _record(head)]
        self._file.append(buffers)
        self.sync()

    def _mark(self) -> None:
        try:
            self._file.write_at(MARK_OFFSET, _MARK.pack(self._file.size))
        except HoldfastError:
            self._marked = False


class JournalReader:
    """Read one file of a journal, as far as it was read by `next_entries` last time."""

    def __init__(self, store: Store, journal: str, number: int) -> None:
        self._store = store
        self.journal = journal
        self.number = number
        self.path = journal_path(journal, number)
        self._offset = BLOCK_BYTES
        self._fields: JournalFile | None = None

    @property
    def offset(self) -> int:
        """Where the next record begins."""
        return self._offset

    def fields(self) -> JournalFile | None:
        """Return the fields of the first block, or None where they were not written whole."""
        if self._fields is None:
            block = self._store.read(self.path, 0, BLOCK_BYTES)
            self._fields = self._parse(block) if block.nbytes == BLOCK_BYTES else None
        return self._fields

    def mark(self) -> int:
        """Return the end of what other processes may believe, 0 if nothing."""
        data = self._store.read(self.path, MARK_OFFSET, _MARK.size)
        return int(_MARK.unpack(data)[0]) if data.nbytes == _MARK.size else 0

    def head(self, beyond_mark: bool = False) -> bytes | None:
        """Return the head, or None where it is not (yet) there; entries are read from behind it."""
        if self.fields() is None:
            return None
        self._offset = BLOCK_BYTES
        # Read once: its writer may move it at any moment.
        mark = self.mark()
        data = self._store.read(self.path, 0, self._store.size(self.path) if beyond_mark else mark)
        payload = self._payload(data, self._offset, mark)
        if payload is None:
            return None
        self._offset += _RECORD.size + payload.nbytes
        return bytes(payload)

    def next_entries(self, beyond_mark: bool = False, entry_end: int | None = None) -> list[Entry]:
        """Return the entries after those returned before, below the mark, or (a successor) all whole ones.

        With `entry_end` those from that number on are left alone.
        """
        return list(self.entries(beyond_mark, entry_end))

    def entries(self, beyond_mark: bool = False, entry_end: int | None = None) -> Iterator[Entry]:
        """Yield what `next_entries` returns."""
        mark = self.mark()
        end = self._store.size(self.path) if beyond_mark else mark
        if end <= self._offset:
            return
        data = self._store.read(self.path, 0, end)
        while (payload := self._payload(data, self._offset, mark)) is not None:
            try:
                entry = _entry_decoder.decode(payload)
            except NOT_DECODED as error:
                raise self._corrupt(self._offset, "an entry that this version knows", str(error)) from error
            if entry_end is not None and entry.number >= entry_end:
                return
            self._offset += _RECORD.size + payload.nbytes
            yield entry

    def skip_to(self, offset: int) -> None:
        """Go back (or on) to an offset that `offset` returned."""
        self._offset = offset

    def _payload(self, data: memoryview, offset: int, mark: int) -> memoryview | None:
        """Return the record at `offset`, None at the end or at a torn one past the mark."""
        start = offset + _RECORD.size
        if start > data.nbytes:
            if offset < mark:
                raise self._corrupt(offset, f"a record before the mark at {mark}", f"{data.nbytes} bytes in the file")
            return None
        length, crc = _RECORD.unpack_from(data, offset)
        # Past the mark a machine's crash may leave zeros: a record is never empty.
        fault = None
        if length == 0 or start + length > data.nbytes:
            fault = (f"a record of {length} bytes", f"{data.nbytes - start} bytes to the end")
        else:
            payload = data[start : start + length]
            found = checksum(payload, checksum(data[offset : offset + 4]))
            if found == crc:
                return payload
            fault = (f"record checksum {crc:08x}", f"{found:08x}")
        if offset < mark:
            raise self._corrupt(offset, *fault)
        return None

    def _parse(self, block: memoryview) -> JournalFile | None:
        if bytes(block[:MARK_OFFSET]) != _MAGIC:
            return None
        version, length, crc = _FIELDS.unpack_from(block, _FIELDS_OFFSET)
        start = _FIELDS_OFFSET + _FIELDS.size
        encoded = block[start : start + length]
        if encoded.nbytes != length or checksum(encoded) != crc:
            return None
        if version > FORMAT_VERSION:
            raise StoreUnfit(
                f"the journal {self.path} has format version {version}, this holdfast reads up to {FORMAT_VERSION}: "
                "use a newer holdfast"
            )
        try:
            fields = _file_decoder.decode(encoded)
        except NOT_DECODED as error:
            raise self._corrupt(_FIELDS_OFFSET, "fields that this version knows", str(error)) from error
        if (fields.journal, fields.number) != (self.journal, self.number):
            raise self._corrupt(
                0, f"the fields of {self.path}", f"those of {journal_path(fields.journal, fields.number)}"
            )
        return fields

    def _corrupt(self, offset: int, expected: str, found: str) -> JournalCorrupt:
        return JournalCorrupt(
            f"the journal {self.path} is damaged at offset {offset}: expected {expected}, found {found}; restore the "
            "file "
            "from a copy of the store, or run `holdfast log verify` to see what can still be read"
        )


class Recovered(msgspec.Struct, frozen=True):
    """What a successor found in a journal: the newest whole head, and the entries after it."""

    journal: str
    file_number: int
    fields: JournalFile
    head: bytes
    entries: list[Entry]
    entry_end: int
    torn_bytes: int


def recover(store: Store, journal: str, entry_end: int | None = None) -> Recovered | None:
    """Return the newest file's head and all whole entries, beyond the mark too; None where there is no whole head.

    Only for a successor, after it has sealed: entries beyond the mark were never shown, so keeping them withdraws
    nothing. With `entry_end` (another successor has read it before) nothing from that number on is taken, and a file
    that begins behind it is passed over.
    """
    begun = begun_number(store, journal)
    numbers = journal_numbers(store, journal)
    if begun >= 0 and begun not in numbers:
        raise _headless(journal_path(journal, begun), "no such file")
    for number in reversed(numbers):
        reader = JournalReader(store, journal, number)
        fields = reader.fields()
        head = reader.head(beyond_mark=True) if fields is not None else None
        if fields is None or head is None:
            # Others may be attempts to begin that failed.
            if number == begun or reader.mark():
                raise _headless(reader.path, f"none in {store.size(reader.path)} bytes")
            continue
        if entry_end is not None and fields.entry_first > entry_end:
            continue
        entries = reader.next_entries(beyond_mark=True, entry_end=entry_end)
        check_numbers(reader.path, fields.entry_first, entries)
        torn = store.size(reader.path) - reader.offset
        return Recovered(journal, number, fields, head, entries, fields.entry_first + len(entries), torn)
    return None


def _headless(path: str, found: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"the journal {path} is damaged: expected a head, since the file was begun, found {found}; restore the file "
        "from a copy of the store"
    )


def check_begun(begun: int, file: JournalReader) -> None:
    """Raise `JournalCorrupt` where a file is noted as begun and its first block is damaged."""
    if file.number == begun and file.fields() is None:
        raise _headless(file.path, "a first block that is damaged")


def check_numbers(path: str, entry_first: int, entries: Sequence[Entry]) -> None:
    """Raise `JournalCorrupt` where entries are not numbered one after the other."""
    for expected, entry in enumerate(entries, entry_first):
        if entry.number != expected:
            raise JournalCorrupt(
                f"the journal {path} is damaged: expected entry {expected}, found entry {entry.number}; restore the "
                "file "
                "from a copy of the store"
            )
