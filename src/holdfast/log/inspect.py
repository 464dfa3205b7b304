"""What `holdfast log show`, `verify` and `repair` print, as plain data.

Looking takes no term and no lock, and changes nothing; it may be done while the streams are written. What there may be
much of is yielded piece by piece: a log of any size is looked through in little memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.errors import StoreUnfit
from holdfast.log.journal import JournalReader, journal_numbers
from holdfast.log.ledger import NO_BOUNDARY, Ledger
from holdfast.log.reconcile import segment_paths
from holdfast.log.repair import Repaired, Verified
from holdfast.log.repair import repair as repair_log
from holdfast.log.repair import verify as verify_ledger
from holdfast.log.segment import walk
from holdfast.log.store import validate_path
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import TermRecord, read_term, standing
from holdfast.model import Entry, FrameKind, Published
from holdfast.ports import Store

_KIND_NAMES = {int(kind): kind.name for kind in FrameKind}


class StreamShown(msgspec.Struct, frozen=True):
    """One line of `holdfast log show`."""

    stream: str
    term: int
    owner: str
    host: str
    pid: int
    journal: str
    frames: int
    rows: int
    bytes: int
    bucket_first: int | None
    bucket_end: int | None
    boundary_us: int | None
    units: int
    trimmed_before: int | None
    segments: int


class FrameShown(msgspec.Struct, frozen=True):
    """A frame as it is in a segment, whether or not it is committed."""

    offset: int
    length: int
    kind: str
    stream: str
    shard: int
    generation: int
    bucket_start: int
    bucket_end: int
    rows: int


class JournalShown(msgspec.Struct, frozen=True):
    """One file of a journal."""

    path: str
    bytes: int
    mark: int
    entry_first: int
    names: list[str]


def show_streams(store: Store) -> list[StreamShown]:
    """Return a line for each stream that anybody ever took."""
    return [shown for name in store.list("terms") if (shown := show_stream(store, name)) is not None]


def show_stream(store: Store, stream: str) -> StreamShown | None:
    """Return the line of one stream, None where nobody has ever taken it."""
    newest = standing(store, stream).newest
    if newest is None:
        return None
    record = read_term(store, stream, newest)
    ledger = read_ledger(store, stream)
    uses = ledger.segment_uses(stream).values()
    frames, rows, bucket_first = 0, 0, None
    for frame in ledger.each_frame(stream):
        frames += 1
        rows += frame.rows if frame.kind == FrameKind.DATA else 0
        bucket_first = frame.bucket_start if bucket_first is None else min(bucket_first, frame.bucket_start)
    boundary_us = ledger.boundary_us(stream)
    return StreamShown(
        stream=stream,
        term=record.number,
        owner=record.owner,
        host=record.host,
        pid=record.pid,
        journal=record.journal,
        frames=frames,
        rows=rows,
        bytes=ledger.size_bytes(stream),
        bucket_first=bucket_first,
        bucket_end=max((use.bucket_end for use in uses), default=None),
        boundary_us=None if boundary_us == NO_BOUNDARY else boundary_us,
        units=len(ledger.units(stream)),
        trimmed_before=ledger.trimmed_before(stream),
        segments=sum(1 for _ in segment_paths(store, stream)),
    )


def show_terms(store: Store, stream: str) -> list[TermRecord]:
    """Return the terms of a stream whose files are kept, the newest last."""
    return [read_term(store, stream, number) for number in standing(store, stream).numbers]


def show_frames(store: Store, stream: str) -> Iterator[Published]:
    """Yield the committed frames of a stream."""
    return read_ledger(store, stream).each_frame(stream)


def show_segment(store: Store, path: str, verify: bool = False) -> Iterator[FrameShown]:
    """Yield the frames of a segment by their headers, with `verify` by every byte.

    Where bytes are no more frames `SegmentCorrupt` says so; behind the committed end that is normal.
    """
    for found in walk(store, validate_path(path), verify=verify):
        header, ref = found.header, found.ref
        yield FrameShown(
            offset=ref.offset,
            length=ref.length,
            kind=_KIND_NAMES.get(header.kind, str(header.kind)),
            stream=header.stream,
            shard=header.shard,
            generation=header.generation,
            bucket_start=header.bucket_start,
            bucket_end=header.bucket_end,
            rows=header.rows,
        )


def show_journal(store: Store, journal: str) -> Iterator[tuple[JournalShown, Iterator[tuple[Entry, bool]]]]:
    """Yield the files of a journal that have a head, the oldest first, each with its entries and which are visible."""
    for number in journal_numbers(store, validate_path(journal)):
        reader = JournalReader(store, journal, number)
        fields = reader.fields()
        if fields is None or reader.head(beyond_mark=True) is None:
            continue
        size_bytes, mark = store.size(reader.path), reader.mark()
        yield JournalShown(reader.path, size_bytes, mark, fields.entry_first, fields.names), _entries(reader)


def _entries(reader: JournalReader) -> Iterator[tuple[Entry, bool]]:
    """Yield visible entries, then whole ones beyond the mark."""
    for entry in reader.entries():
        yield entry, True
    for entry in reader.entries(beyond_mark=True):
        yield entry, False


def read_ledger(store: Store, stream: str) -> Ledger:
    """Return what a reader of the stream knows now."""
    reader = StreamReader(store, stream)
    try:
        reader.poll()
        return reader.ledger
    finally:
        reader.close()


def verify(store: Store, streams: list[str] | None = None) -> Iterator[Verified]:
    """Read every committed frame of the streams (None: of all), and yield what is damaged, stream by stream."""
    for name in streams or store.list("terms"):
        yield verify_ledger(store, read_ledger(store, name), [name])


def repair(store: Store, streams: list[str], now_us: int) -> Iterator[Repaired]:
    """Mend streams that nobody writes now, one after the other; `StreamTaken` where somebody does."""
    for name in streams:
        ledger = read_ledger(store, name)
        if standing(store, name).newest is None:
            raise StoreUnfit(f"the store {store.url} has no stream {name!r}: `holdfast log show` lists those it has")
        options = LogOptions(check_segments=False, commit_thread=False)
        with StreamLog.open(
            store, [name], "repair", shards=ledger.shards, bucket_width_us=ledger.bucket_width_us, options=options
        ) as log:
            yield repair_log(store, log, now_us)
