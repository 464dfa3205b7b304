"""Copy the live frames of segments to a new one, so that the old ones can go.

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
from holdfast.log.segment import SUFFIX, read_bytes, segment_number
from holdfast.log.store import validate_name
from holdfast.model import FrameRef, Moved
from holdfast.ports import AppendFile, Store

REWRITTEN_NODE = "rewritten"


class Rewritten(msgspec.Struct, frozen=True):
    """The items to commit; afterwards the old segments hold nothing."""

    moved: list[Moved]
    segment: str | None
    bytes: int


def rewritten_folder(stream: str) -> str:
    """Return the folder of the segments that rewriting makes."""
    return f"streams/{validate_name(stream)}/{REWRITTEN_NODE}/segments"


def create_rewritten(store: Store, stream: str) -> AppendFile:
    """Create the next segment for copies."""
    folder = rewritten_folder(stream)
    number = max((segment_number(name) for name in store.list(folder)), default=-1) + 1
    return store.create(f"{folder}/{number:06d}{SUFFIX}")


def rewrite(store: Store, ledger: Ledger, stream: str, segments: Collection[str]) -> Rewritten:
    """Copy the frames that `stream` has in `segments` to one new segment, and return the items that say so.

    Raises `SegmentCorrupt` where a frame is damaged: nothing is moved then, and nothing was deleted.
    """
    refs = [published.frame for published in ledger.all_frames(stream) if published.frame.segment in segments]
    if not refs:
        return Rewritten([], None, 0)
    return copy_frames(store, stream, [(ref, ref) for ref in sorted(refs, key=lambda ref: (ref.segment, ref.offset))])


def copy_frames(store: Store, stream: str, frames: Collection[tuple[FrameRef, FrameRef]]) -> Rewritten:
    """Copy frames, each given as (what is committed, where its bytes are), to one new segment and sync it."""
    file = create_rewritten(store, stream)
    moved: list[Moved] = []
    try:
        for committed, source in frames:
            data = read_bytes(store, source)
            offset = file.append([data])
            moved.append(
                Moved(stream, committed, FrameRef(file.path, offset, data.nbytes, committed.crc or source.crc))
            )
        file.sync()
        for item in moved:
            # What the disk gives back is what counts, not what it was given.
            read_bytes(store, item.new)
    except (HoldfastError, OSError):
        file.close()
        store.delete(file.path)
        raise
    file.close()
    return Rewritten(moved, file.path, sum(item.new.length for item in moved))
