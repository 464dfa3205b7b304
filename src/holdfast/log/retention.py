"""Decide what of a log may go: pure, from a ledger and from who needs what.

Invariants:
    * A frame goes only when every need of its stream lies behind it; a stream whose needs are unknown keeps all.
    * A segment goes only when no frame in it is named and its writer is done with it: it has committed a frame in a
      later segment, or its folder is closed. A frame that is written and not yet committed is never deleted.
    * Buckets go in their order, so a segment is mostly dead for a moment before it is wholly dead. It is rewritten only
      where that moment is long: each byte of a stream is not copied once more just before it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.log.frame_table import SegmentUse
from holdfast.log.ledger import Ledger
from holdfast.log.segment import SEGMENT_BYTES
from holdfast.model import FIRST_BUCKET, Trimmed

LIVE_SHARE_MIN: Final = 0.3
"""A segment of which less is live is rewritten, unless it will soon be deleted anyway."""
SOON_SHARE: Final = 0.5
"""Of the buckets that a stream keeps: what is needed no longer than that is not worth copying."""


class Need(msgspec.Struct, frozen=True):
    """Somebody needs the buckets of a stream from `bucket` on."""

    who: str
    bucket: int


class Decision(msgspec.Struct, frozen=True):
    """What to do for one stream: commit `trimmed` first, then delete and rewrite."""

    stream: str
    trimmed: Trimmed | None
    kept_for: str | None
    """Who needs the oldest bucket that stays."""
    delete: list[str]
    rewrite: list[str]


class Folders(msgspec.Struct, frozen=True):
    """Folders that slots write to (None: perhaps any), and those that surely nobody writes to."""

    open: Collection[str] | None
    closed: Collection[str]


def oldest_need(needs: Sequence[Need]) -> Need | None:
    """Return the need that holds most back, None without any."""
    return min(needs, key=lambda need: (need.bucket, need.who), default=None)


def decide(
    ledger: Ledger,
    needs: Mapping[str, Sequence[Need]],
    sizes: Mapping[str, Mapping[str, int]],
    open_folders: Collection[str] | None = None,
    closed_folders: Collection[str] = (),
) -> list[Decision]:
    """Return what may go of each stream in `needs`.

    `sizes` has, per stream, the size of each segment that is there. `open_folders` are the folders that live slots
    write to; None says that any may be written to but `closed_folders`: those whose writers are gone, and that of the
    copies which whoever decides has made, as none is being made now.
    """
    folders = Folders(open_folders, closed_folders)
    return [
        _decide_stream(ledger, stream, oldest_need(wanted), sizes.get(stream, {}), folders)
        for stream, wanted in sorted(needs.items())
    ]


def _decide_stream(
    ledger: Ledger, stream: str, need: Need | None, sizes: Mapping[str, int], folders: Folders
) -> Decision:
    trimmed = None if need is None else _trim(ledger, stream, need.bucket)
    uses = ledger.segment_uses(stream, None if trimmed is None else trimmed.before_bucket)
    last = ledger.segment_last(stream)
    done = [path for path in sorted(sizes) if _is_done(path, last, folders)]
    delete = [path for path in done if path not in uses]
    stays = _stays_from(ledger, stream, trimmed)
    sparse = [path for path in done if path in uses and _is_sparse(uses[path], sizes[path])]
    rewrite = [path for path in sparse if stays is not None and uses[path].bucket_end > stays]
    return Decision(stream, trimmed, None if need is None else need.who, delete, rewrite)


def _trim(ledger: Ledger, stream: str, bucket: int) -> Trimmed | None:
    """Return the item that drops what nobody needs; None where there is nothing to drop."""
    complete = ledger.stream_bucket_end(stream)
    # Buckets that are not complete may still get rows: their digests and frames stay together. A side stream has no
    # boundary of its own; who needs it knows.
    bucket = bucket if complete is None else min(bucket, complete)
    already = ledger.trimmed_before(stream)
    if already is not None and bucket <= already:
        return None
    oldest = ledger.frames(stream, FIRST_BUCKET if already is None else already, bucket, None)
    return Trimmed(stream, bucket) if any(frame.bucket_end <= bucket for frame in oldest) else None


def _stays_from(ledger: Ledger, stream: str, trimmed: Trimmed | None) -> int | None:
    """Return the bucket from which on what is kept stays for long; None where nothing was ever trimmed."""
    before = ledger.trimmed_before(stream) if trimmed is None else trimmed.before_bucket
    complete = ledger.stream_bucket_end(stream)
    return None if before is None or complete is None else before + int((complete - before) * SOON_SHARE)


def _is_done(path: str, last: Mapping[str, str], folders: Folders) -> bool:
    """Return whether the writer of a segment can have no uncommitted frame in it."""
    folder, _, name = path.rpartition("/")
    if folder in folders.closed:
        return True
    if folders.open is not None and folder not in folders.open:
        return True
    # A slot's waves follow one another: once a frame in a later segment is committed, this one is finished.
    return name < last.get(folder, "")


def _is_sparse(use: SegmentUse, size_bytes: int) -> bool:
    return use.live_bytes < LIVE_SHARE_MIN * min(size_bytes, SEGMENT_BYTES)
