"""Check an entry against what is committed and what is on its way, before anything is written.

Invariants:
    * An admitted entry never makes a unit, a boundary, a batch or a file go back or happen twice: that double commits
      are impossible is decided here, not by who calls.
    * Nothing is said about a stream that is not of this log.
    * Refusing changes nothing. What an entry costs does not depend on how many are queued.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final

from holdfast.errors import CommitRefused
from holdfast.log.ledger import Ledger, stream_of
from holdfast.model import (
    Advanced,
    BatchLogged,
    Ended,
    FileLogged,
    JournalItem,
    Moved,
    Published,
    SinkBegun,
    SinkDone,
    SnapshotVerified,
    StageBegun,
    Trimmed,
    UnitCommitted,
)


class Admission:
    """Positions of a ledger, plus those of entries that are queued but not yet applied to it."""

    def __init__(self, ledger: Ledger, names: Collection[str]) -> None:
        self._ledger = ledger
        self._names = frozenset(names)
        self._queued: dict[Hashable, Any] = {}
        self._trial: dict[Hashable, Any] = {}

    def admit(self, items: Sequence[JournalItem]) -> None:
        """Take an entry into account, or raise `CommitRefused` and leave everything as it was."""
        self._trial.clear()
        for item in items:
            check = _CHECKS.get(type(item))
            if check is not None:
                check(self, item)
        self._queued |= self._trial

    def settle(self) -> None:
        """Forget what is on its way: it is in the ledger now, or it failed."""
        self._queued.clear()

    def _position(self, key: Hashable) -> Any:
        """Return the position that this entry, or one that is queued, leads to; None if it is still the ledger's."""
        found = self._trial.get(key)
        return self._queued.get(key) if found is None else found

    def _boundary_us(self, stream: str) -> int:
        known: int | None = self._position((Advanced, stream))
        return self._ledger.boundary_us(stream) if known is None else known

    def _published(self, item: Published) -> None:
        self._check_name(item.stream, item)
        if item.bucket_start >= item.bucket_end:
            raise _refused(item, "at least one bucket", f"[{item.bucket_start}, {item.bucket_end})")
        # Asked for only where it counts: that of a stage's output is the least of all its units'.
        if item.stamp_us is not None and item.stamp_us < (boundary_us := self._boundary_us(item.stream)):
            raise _refused(item, f"a stamp at or after the boundary {boundary_us}", str(item.stamp_us))

    def _advanced(self, item: Advanced) -> None:
        self._check_name(item.stream, item)
        boundary_us = self._boundary_us(item.stream)
        if item.boundary_us < boundary_us:
            raise _refused(item, f"a boundary at or after {boundary_us}", str(item.boundary_us))
        self._trial[Advanced, item.stream] = item.boundary_us

    def _unit_committed(self, item: UnitCommitted) -> None:
        self._check_name(item.stage, item)
        key = (UnitCommitted, item.stage, item.shard)
        committed = self._position(key)
        if committed is None:
            unit = self._ledger.unit(item.stage, item.shard)
            committed = item.bucket_start if unit is None else unit.bucket_end
        if item.bucket_start != committed or item.bucket_end <= item.bucket_start:
            raise _refused(item, f"buckets from {committed} on", f"[{item.bucket_start}, {item.bucket_end})")
        if not 0 <= item.shard < self._ledger.shards:
            raise _refused(item, f"a shard below {self._ledger.shards}", str(item.shard))
        self._trial[key] = item.bucket_end

    def _batch_logged(self, item: BatchLogged) -> None:
        self._check_name(item.stream, item)
        key = (BatchLogged, item.stream, item.writer)
        last = self._position(key) or self._ledger.batch_last(item.stream, item.writer)
        if last is not None and (item.epoch, item.sequence) <= last:
            raise _refused(item, f"a batch after (epoch, sequence) {last}", f"{(item.epoch, item.sequence)}")
        self._trial[key] = (item.epoch, item.sequence)

    def _file_logged(self, item: FileLogged) -> None:
        self._check_name(item.stream, item)
        key = (FileLogged, item.stream, item.path)
        last = self._position(key) or self._ledger.file(item.stream, item.path)
        again = last is None or (last.size_bytes, last.modified_ns) != (item.size_bytes, item.modified_ns)
        row_expected = 0 if again or last is None else last.row_end
        if item.row_start != row_expected or (last is not None and last.last and not again):
            expected = "nothing: the file is done" if last is not None and last.last else f"rows from {row_expected} on"
            raise _refused(item, expected, f"rows [{item.row_start}, {item.row_end})")
        self._trial[key] = item

    def _sink_done(self, item: SinkDone) -> None:
        done = self._position((SinkDone, item.sink))
        if done is None:
            position = self._ledger.sinks.get(item.sink)
            done = None if position is None else position.bucket_end
        if done is not None and item.bucket_end < done:
            raise _refused(item, f"a bucket end at or after {done}", str(item.bucket_end))
        self._trial[SinkDone, item.sink] = item.bucket_end

    def _sink_begun(self, item: SinkBegun) -> None:
        self._sink_done(SinkDone(item.sink, item.stream, item.bucket_start, 0))

    def _stage_begun(self, item: StageBegun) -> None:
        self._check_name(item.stage, item)
        units = self._ledger.units(item.stage)
        if units:
            raise _refused(item, "a stage of which no unit has committed anything", f"{len(units)} units that have")

    def _about_stream(self, item: JournalItem) -> None:
        self._check_name(stream_of(item), item)

    def _check_name(self, stream: str, item: JournalItem) -> None:
        if stream not in self._names:
            raise _refused(item, f"a stream of this log ({', '.join(sorted(self._names))})", stream)


def _refused(item: JournalItem, expected: str, found: str) -> CommitRefused:
    return CommitRefused(
        f"a {type(item).__name__} of {stream_of(item)!r} was refused: expected {expected}, found {found}; nothing of "
        "its "
        "entry was written; what it reports is committed already or was not asked for, so drop it"
    )


_CHECKS: Final[dict[type, Callable[..., None]]] = {
    Published: Admission._published,
    Advanced: Admission._advanced,
    UnitCommitted: Admission._unit_committed,
    BatchLogged: Admission._batch_logged,
    FileLogged: Admission._file_logged,
    SinkDone: Admission._sink_done,
    SnapshotVerified: Admission._about_stream,
    Ended: Admission._about_stream,
    Moved: Admission._about_stream,
    Trimmed: Admission._about_stream,
    StageBegun: Admission._stage_begun,
    SinkBegun: Admission._sink_begun,
}
