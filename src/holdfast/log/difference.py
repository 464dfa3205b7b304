"""What happened between two ledgers, as items: how a reader catches up over entries that it can no longer read.

Invariants:
    * A frame that both ledgers have is not reported again, wherever its bytes are now.
    * Applied to the older ledger, the items bring its stream to where the newer one has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

from holdfast.log.ledger import Ledger
from holdfast.model import (
    Advanced,
    BatchLogged,
    Ended,
    FileLogged,
    FrameRef,
    JournalItem,
    Moved,
    Published,
    Reported,
    SinkBegun,
    SinkDone,
    SinkIntended,
    SnapshotVerified,
    StageBegun,
    Trimmed,
    UnitCommitted,
)


def difference(old: Ledger, new: Ledger, stream: str) -> list[JournalItem]:
    """Return what the journal said about `stream` between `old` and `new`, folded: no step that was overtaken."""
    return [
        *_trimmed(old, new, stream),
        *_frames(old, new, stream),
        *_logged(old, new, stream),
        *_units(old, new, stream),
        *_snapshots(old, new, stream),
        *_sinks(old, new, stream),
        *_reports(old, new, stream),
        # The boundary last: whoever sees it has seen the frames below it.
        *_boundary(old, new, stream),
    ]


def _trimmed(old: Ledger, new: Ledger, stream: str) -> Iterator[Trimmed]:
    bucket = new.trimmed_before(stream)
    if bucket is not None and bucket != old.trimmed_before(stream):
        yield Trimmed(stream, bucket)


def _identity(frame: Published) -> Hashable:
    """Return what stays the same when a frame is moved."""
    return (
        frame.shard,
        frame.kind,
        frame.bucket_start,
        frame.bucket_end,
        frame.stamp_us,
        frame.frame.length,
        frame.frame.crc,
    )


def _frames(old: Ledger, new: Ledger, stream: str) -> Iterator[Moved | Published]:
    before, after = old.all_frames(stream), new.all_frames(stream)
    refs_before, refs_after = {f.frame for f in before}, {f.frame for f in after}
    gone: defaultdict[Hashable, list[FrameRef]] = defaultdict(list)
    for frame in reversed(before):
        if frame.frame not in refs_after:
            gone[_identity(frame)].append(frame.frame)
    for frame in after:
        if frame.frame in refs_before:
            continue
        candidates = gone.get(_identity(frame))
        yield Moved(stream, candidates.pop(), frame.frame) if candidates else frame


def _logged(old: Ledger, new: Ledger, stream: str) -> Iterator[BatchLogged | FileLogged]:
    for writer, (epoch, sequence) in new.batches(stream).items():
        if old.batch_last(stream, writer) != (epoch, sequence):
            yield BatchLogged(stream, writer, epoch, sequence)
    files = old.files(stream)
    for path, file in new.files(stream).items():
        if files.get(path) != file:
            yield file


def _units(old: Ledger, new: Ledger, stream: str) -> Iterator[StageBegun | UnitCommitted | Ended]:
    begun = new.begun(stream)
    if begun is not None and begun != old.begun(stream):
        yield begun
    known_endings = old.endings(stream)
    yield from (Ended(stream, bucket_end) for bucket_end in new.endings(stream) if bucket_end not in known_endings)
    digests: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    known = old.digests(stream)
    for (shard, bucket), (rows, digest) in sorted(new.digests(stream).items()):
        if (shard, bucket) not in known:
            digests[shard].append((bucket, rows, digest))
    for shard, unit in sorted(new.units(stream).items()):
        was = old.unit(stream, shard)
        if was is not None and was.bucket_end >= unit.bucket_end:
            continue
        bucket_start = (
            was.bucket_end if was is not None else min((b for b, _, _ in digests[shard]), default=unit.bucket_end)
        )
        rows_in, rows_late = (0, 0) if was is None else (was.rows_in, was.rows_late)
        yield UnitCommitted(
            stream,
            shard,
            unit.generation,
            bucket_start,
            unit.bucket_end,
            digests[shard],
            unit.rows_in - rows_in,
            unit.rows_late - rows_late,
        )


def _snapshots(old: Ledger, new: Ledger, stream: str) -> Iterator[SnapshotVerified]:
    for shard in sorted(new.snapshot_shards(stream)):
        known = old.snapshots(stream, shard)
        yield from (snapshot for snapshot in new.snapshots(stream, shard) if snapshot not in known)


def _sinks(old: Ledger, new: Ledger, stream: str) -> Iterator[SinkBegun | SinkIntended | SinkDone]:
    before = old.sinks
    for name, position in new.sinks.items():
        if position.stream != stream:
            continue
        was = before.get(name)
        done, rows = (None, 0) if was is None else (was.bucket_end, was.rows)
        if position.begun is not None and (was is None or was.begun != position.begun):
            yield SinkBegun(name, stream, position.begun)
            done = position.begun
        if position.bucket_end is not None and position.bucket_end != done:
            yield SinkDone(name, stream, position.bucket_end, position.rows - rows)
        if position.intended is not None and (was is None or was.intended != position.intended):
            yield position.intended


def _reports(old: Ledger, new: Ledger, stream: str) -> Iterator[Reported]:
    known = set(old.reports)
    yield from (report for report in new.reports if report.subject == stream and report not in known)


def _boundary(old: Ledger, new: Ledger, stream: str) -> Iterator[Advanced]:
    boundary_us, event_time_max_us = new.promised(stream)
    if (boundary_us, event_time_max_us) != old.promised(stream):
        yield Advanced(stream, boundary_us, event_time_max_us)
