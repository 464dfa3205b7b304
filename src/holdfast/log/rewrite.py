"""Copy the live frames of segments to new ones, so that the old ones can go.

Invariants:
    * A frame is copied byte for byte: the copy has the checksum that was committed, and was verified on its way.
    * Nothing refers to a copy before its `Moved` is committed; copies that are not committed are orphans, and the next
      opening deletes them.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.errors import HoldfastError
from holdfast.log.ledger import Ledger
from holdfast.log.segment import SEGMENT_BYTES, SUFFIX, read_bytes, segment_number
from holdfast.log.store import validate_name
from holdfast.model import FrameRef, Moved
from holdfast.ports import AppendFile, Store

REWRITTEN_NODE = "rewritten"


class Rewritten(msgspec.Struct, frozen=True):
    """The items to commit; afterwards the old segments hold nothing."""

    moved: list[Moved]
    segments: list[str]
    bytes: int


def rewritten_folder(stream: str, owner: str = "segments") -> str:
    """Return the folder of the segments that one owner's rewriting makes.

    A node's is of its term: one that was taken over and does not know it must not take its successor's copies for its
    own that nothing names.
    """
    return f"streams/{validate_name(stream)}/{REWRITTEN_NODE}/{validate_name(owner)}"


def create_rewritten(store: Store, folder: str) -> AppendFile:
    """Create the next segment for copies."""
    number = max((segment_number(name) for name in store.list(folder)), default=-1) + 1
    return store.create(f"{folder}/{number:06d}{SUFFIX}")


def rewrite(
    store: Store, ledger: Ledger, stream: str, segments: Collection[str], folder: str | None = None
) -> Rewritten:
    """Copy the frames that `stream` has in `segments` to new ones, and return the items that say so.

    Raises `SegmentCorrupt` where a frame is damaged: nothing is moved then, and nothing was deleted.
    """
    refs = [published.frame for published in ledger.each_frame(stream) if published.frame.segment in segments]
    if not refs:
        return Rewritten([], [], 0)
    refs.sort(key=lambda ref: (ref.segment, ref.offset))
    return copy_frames(store, stream, [(ref, ref) for ref in refs], folder=folder)


def copy_frames(
    store: Store,
    stream: str,
    frames: Collection[tuple[FrameRef, FrameRef]],
    segment_bytes: int = SEGMENT_BYTES,
    folder: str | None = None,
) -> Rewritten:
    """Copy frames, each given as (what is committed, where its bytes are), to new segments and sync them."""
    moved: list[Moved] = []
    segments: list[str] = []
    file: AppendFile | None = None
    try:
        for committed, source in frames:
            if file is None or file.size >= segment_bytes:
                _finish(file)
                file = create_rewritten(store, folder or rewritten_folder(stream))
                segments.append(file.path)
            data = read_bytes(store, source)
            offset = file.append([data])
            crc = committed.crc or source.crc
            moved.append(Moved(stream, committed, FrameRef(file.path, offset, data.nbytes, crc)))
        _finish(file)
        for item in moved:
            # What the disk gives back is what counts, not what it was given.
            read_bytes(store, item.new)
    except (HoldfastError, OSError):
        if file is not None:
            file.close()
        for path in segments:
            store.delete(path)
        raise
    return Rewritten(moved, segments, sum(item.new.length for item in moved))


def _finish(file: AppendFile | None) -> None:
    if file is not None:
        file.sync()
        file.close()
