"""Segments: append-only files of frames, written by one slot in one generation.

Invariants:
    * Only the process that created a segment appends to it; a segment that could not be synced is left alone.
    * A `FrameRef` counts once `sync` has returned after its `append`. What the journal does not name does not exist.
    * Bytes below a named frame's end never change, so reading needs no lock, and views stay valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from holdfast.errors import AlreadyExists, HoldfastError, SegmentCorrupt
from holdfast.log.frame import (
    EncodedFrame,
    FrameFault,
    FrameHeader,
    FrameView,
    decode_header,
    encode,
    frame_length_before,
)
from holdfast.log.store import number_of, validate_name
from holdfast.model import FrameRef
from holdfast.ports import AppendFile, Store

SEGMENT_BYTES: Final = 256 << 20
SUFFIX: Final = ".seg"


def segment_folder(stream: str, node: str, slot: str | int, generation: int) -> str:
    """Return the folder of the segments that one slot writes for a stream in one generation."""
    return f"streams/{validate_name(stream)}/{validate_name(node)}/{validate_name(str(slot))}-{generation:06d}"


def segment_number(path: str) -> int:
    """Return the number in a segment's name, or -1 if it is not a segment's."""
    number = number_of(path.rpartition("/")[2], SUFFIX)
    return -1 if number is None else number


LOOK_FOR_A_COPY: Final = "; run `holdfast log repair` to look for another copy of it"


class SegmentWriter:
    """Append frames to the segments of one folder. For one thread."""

    def __init__(self, store: Store, folder: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._store = store
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file: AppendFile | None = None
        self._synced_size = 0
        self._number = max((segment_number(name) for name in store.list(folder)), default=-1) + 1

    @property
    def folder(self) -> str:
        return self._folder

    def append(self, header: FrameHeader, batch: pa.RecordBatch | None) -> FrameRef:
        """Append one frame; it is not durable before `sync`."""
        return self.append_encoded([encode(header, batch)])[0]

    def append_many(self, frames: Sequence[tuple[FrameHeader, pa.RecordBatch | None]]) -> list[FrameRef]:
        """Append frames, one after the other, with one write."""
        return self.append_encoded([encode(header, batch) for header, batch in frames])

    def append_encoded(self, frames: Sequence[EncodedFrame]) -> list[FrameRef]:
        """Append frames that are encoded already, all to the same segment."""
        file = self._file_with_room()
        try:
            offset = file.append([buffer for frame in frames for buffer in frame.buffers])
        except HoldfastError:
            # Frames appended before it may still be synced; then the file has to stay until `sync` has said so.
            if file.size == self._synced_size:
                self._abandon()
            raise
        refs = []
        for frame in frames:
            refs.append(FrameRef(file.path, offset, frame.length, frame.crc))
            offset += frame.length
        return refs

    def sync(self) -> None:
        """Return when every appended frame is durable; after an error none since the last `sync` counts."""
        if self._file is not None:
            try:
                self._file.sync()
            except (HoldfastError, OSError):
                self._abandon()
                raise
            self._synced_size = self._file.size

    def close(self) -> None:
        """Close the segment; frames that were not synced do not count."""
        self._abandon()

    def _file_with_room(self) -> AppendFile:
        if self._file is not None and self._file.size >= self._segment_bytes:
            # Its last frames may belong to a group that the caller syncs later: it would sync the next file only.
            self.sync()
            self._abandon()
        while self._file is None:
            path = f"{self._folder}/{self._number:06d}{SUFFIX}"
            self._number += 1
            try:
                self._file = self._store.create(path)
            except AlreadyExists:
                # Never append to what another process made; the next number may be free.
                continue
        return self._file

    def _abandon(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._synced_size = 0


def _corrupt(path: str, offset: int, fault: FrameFault, stream: str | None, shard: int | None) -> SegmentCorrupt:
    stream = stream or (path.split("/")[1] if path.startswith("streams/") else "unknown")
    unit = "unknown" if shard is None else ("many" if shard < 0 else str(shard))
    return SegmentCorrupt(
        f"stream {stream!r}, shard {unit}: the frame at offset {offset} of segment {path} is damaged: expected "
        f"{fault.expected}, found {fault.found}{LOOK_FOR_A_COPY}"
    )


def _fetch(store: Store, ref: FrameRef) -> memoryview:
    data = store.read(ref.segment, ref.offset, ref.length)
    if data.nbytes != ref.length:
        raise _corrupt(
            ref.segment,
            ref.offset,
            FrameFault(f"{ref.length} bytes", f"{data.nbytes} to the end of the file"),
            None,
            None,
        )
    return data


def read_view(store: Store, ref: FrameRef, verify: bool = True) -> FrameView:
    """Return the frame that `ref` names; without `verify` its payload is taken as it is (it was verified before)."""
    data = _fetch(store, ref)
    shard: int | None = None
    try:
        view = decode_header(data)
        shard = view.header.shard
        if ref.crc and view.crc != ref.crc:
            raise FrameFault(f"header checksum {ref.crc:08x}, as committed", f"{view.crc:08x}")
        if view.length != ref.length:
            raise FrameFault(f"a frame of {ref.length} bytes", f"{view.length}")
        if verify:
            view.verify(data)
        return view
    except FrameFault as fault:
        raise _corrupt(ref.segment, ref.offset, fault, None, shard) from fault


def read_bytes(store: Store, ref: FrameRef) -> memoryview:
    """Return the verified bytes of a whole frame, as they are in the segment."""
    read_view(store, ref)
    return _fetch(store, ref)


def read_header(store: Store, ref: FrameRef) -> FrameHeader:
    """Return the header of a frame; its payload is not touched."""
    return read_view(store, ref, verify=False).header


def read_frame(
    store: Store, ref: FrameRef, schema: pa.Schema, verify: bool = True, others: Sequence[pa.Schema] = ()
) -> tuple[FrameHeader, pa.RecordBatch]:
    """Return a frame's header and rows, the rows as views of the mapped segment. Safe from many threads.

    `others` are schemas that the stream had at other times; rows come with the columns of `schema` in any case.
    """
    view = read_view(store, ref, verify)
    try:
        return view.header, view.batch(schema, others)
    except FrameFault as fault:
        raise _corrupt(ref.segment, ref.offset, fault, view.header.stream, view.header.shard) from fault


def read_batch(store: Store, ref: FrameRef, schema: pa.Schema, verify: bool = True) -> pa.RecordBatch:
    """Return the rows of a frame without copying them. Safe from many threads."""
    return read_frame(store, ref, schema, verify)[1]


def shard_rows(header: FrameHeader, shard_from: int, shard_to: int) -> tuple[int, int]:
    """Return the range of a frame's rows that are of the shards `[shard_from, shard_to)`."""
    if header.shard_row_ends:
        ends = header.shard_row_ends
        row_from = ends[min(shard_from, len(ends)) - 1] if shard_from > 0 else 0
        return row_from, ends[min(shard_to, len(ends)) - 1] if shard_to > 0 else 0
    return (0, header.rows) if shard_from <= header.shard < shard_to else (0, 0)


def read_rows(
    store: Store, ref: FrameRef, schema: pa.Schema, shard_from: int, shard_to: int, verify: bool = True
) -> pa.RecordBatch:
    """Return the rows of the shards `[shard_from, shard_to)` of a frame without copying them."""
    header, batch = read_frame(store, ref, schema, verify)
    row_from, row_to = shard_rows(header, shard_from, shard_to)
    return batch.slice(row_from, row_to - row_from)


class FoundFrame(msgspec.Struct, frozen=True):
    """A frame met on a walk through a segment."""

    ref: FrameRef
    view: FrameView

    @property
    def header(self) -> FrameHeader:
        return self.view.header


def walk(store: Store, path: str, kinds: Collection[int] | None = None, verify: bool = False) -> Iterator[FoundFrame]:
    """Yield a segment's frames of `kinds` (None: all) from its beginning, the others skipped by header alone.

    A torn tail is normal after a crash and may be anywhere past the committed end, which only the journal knows: where
    bytes stop being frames `SegmentCorrupt` is raised, and the caller decides what it means.
    """
    data = store.read(path)
    offset = 0
    while offset < data.nbytes:
        try:
            view = decode_header(data[offset:])
            if kinds is None or view.header.kind in kinds:
                if verify:
                    view.verify(data[offset:])
                yield FoundFrame(FrameRef(path, offset, view.length, view.crc), view)
        except FrameFault as fault:
            raise _corrupt(path, offset, fault, None, None) from fault
        offset += view.length


def walk_backwards(
    store: Store, path: str, end: int, kinds: Collection[int] | None = None, verify: bool = False
) -> Iterator[FoundFrame]:
    """Yield a segment's frames of `kinds` that end at or before `end` (a committed frame's end), the last one first."""
    data = store.read(path, 0, end)
    while end > 0:
        try:
            length = frame_length_before(data[:end])
            offset = end - length
            view = decode_header(data[offset:end])
            if view.length != length:
                raise FrameFault(f"a frame of {length} bytes", f"{view.length}")
            if kinds is None or view.header.kind in kinds:
                if verify:
                    view.verify(data[offset:end])
                yield FoundFrame(FrameRef(path, offset, length, view.crc), view)
        except FrameFault as fault:
            raise _corrupt(path, end, fault, None, None) from fault
        end = offset
