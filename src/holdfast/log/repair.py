"""Verify a log and mend what can be mended: damaged frames from a copy, never from a guess.

Invariants:
    * A copy counts as the same frame only if its checksum is the one that was committed.
    * What has no copy is reported by stream, shard and buckets, and stays damaged: it is never left out silently.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence

import msgspec

from holdfast.errors import HoldfastError, SegmentCorrupt
from holdfast.log.ledger import Ledger
from holdfast.log.reconcile import Damage, reconcile, segment_paths
from holdfast.log.rewrite import copy_frames
from holdfast.log.segment import LOOK_FOR_A_COPY, FoundFrame, read_view, walk
from holdfast.log.stream_log import StreamLog
from holdfast.model import FrameRef, JournalItem, Reported
from holdfast.ports import Store


class Verified(msgspec.Struct, frozen=True):
    """What reading every frame of some streams found."""

    streams: list[str]
    frames: int
    bytes: int
    damaged: list[Damage]
    orphans: dict[str, int]
    torn_bytes: int


class Repaired(msgspec.Struct, frozen=True):
    """What was mended, and what is lost."""

    mended: int
    lost: list[Damage]
    cut_bytes: int


def verify(store: Store, ledger: Ledger, streams: Collection[str]) -> Verified:
    """Read every frame that the ledger names, and return those that are not what was committed."""
    found = reconcile(store, ledger, streams)
    damaged: list[Damage] = []
    frames = bytes_read = 0
    for stream in streams:
        for published in ledger.each_frame(stream):
            frames += 1
            bytes_read += published.frame.length
            try:
                read_view(store, published.frame)
            except (SegmentCorrupt, FileNotFoundError) as error:
                damaged.append(Damage(stream, published, str(error)))
    return Verified(sorted(streams), frames, bytes_read, damaged, found.orphans, found.torn_bytes)


def repair(store: Store, log: StreamLog, now_us: int) -> Repaired:
    """Mend the streams of a log that was opened with `check_segments=False`, commit it, and cut torn tails.

    Opening has already made a new journal file, so the mark is right again. Call it while no slot writes.
    """
    found = verify(store, log.ledger, log.names)
    mended = 0
    lost: list[Damage] = []
    for stream in log.names:
        damaged = [damage for damage in found.damaged if damage.stream == stream]
        copies = find_copies(store, stream, [damage.frame.frame for damage in damaged])
        if copies:
            moved = copy_frames(store, stream, list(copies.items())).moved
            _commit(log, moved)
            mended += len(moved)
        lost += [_without_advice(damage) for damage in damaged if damage.frame.frame not in copies]
    if lost:
        _commit(log, [_report(damage, now_us) for damage in lost])
    return Repaired(mended, lost, cut_tails(store, log.ledger, log.names))


def _without_advice(damage: Damage) -> Damage:
    """Return a damage that does not tell whoever looked for a copy to look for one."""
    return msgspec.structs.replace(damage, found=damage.found.removesuffix(LOOK_FOR_A_COPY))


def find_copies(store: Store, stream: str, refs: Sequence[FrameRef]) -> dict[FrameRef, FrameRef]:
    """Return, for damaged frames, where the same bytes are whole: in a rewritten segment, or one not yet deleted."""
    # Without a checksum in the journal nothing says that another frame is the same.
    wanted = {(ref.crc, ref.length): ref for ref in refs if ref.crc}
    copies: dict[FrameRef, FrameRef] = {}
    if not wanted:
        return copies
    for path in segment_paths(store, stream):
        for frame in _readable(store, path):
            committed = wanted.get((frame.ref.crc, frame.ref.length))
            if committed is None or committed in copies:
                continue
            try:
                read_view(store, frame.ref)
            except SegmentCorrupt:
                continue
            copies[committed] = frame.ref
    return copies


def cut_tails(store: Store, ledger: Ledger, streams: Collection[str]) -> int:
    """Cut off what lies behind the last committed frame of each segment; return how many bytes."""
    cut = 0
    for stream in streams:
        for path, use in ledger.segment_uses(stream).items():
            size = store.size(path) if store.exists(path) else 0
            if size > use.end:
                store.truncate(path, use.end)
                cut += size - use.end
    return cut


def _readable(store: Store, path: str) -> Iterator[FoundFrame]:
    """Yield the frames of a segment up to the first whose header is damaged."""
    with contextlib.suppress(HoldfastError, FileNotFoundError):
        yield from walk(store, path)


def _commit(log: StreamLog, items: Sequence[JournalItem]) -> None:
    future = log.commit(items)
    log.flush()
    future.result()


def _report(damage: Damage, now_us: int) -> Reported:
    frame = damage.frame
    shard = "all shards" if frame.shard < 0 else f"shard {frame.shard}"
    return Reported(
        damage.stream,
        f"{frame.rows} rows of {shard}, buckets [{frame.bucket_start}, {frame.bucket_end}), are lost: {damage.found}",
        now_us,
    )
