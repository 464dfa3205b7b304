"""What the journal says, folded: frames, boundaries, unit positions, snapshots, batches, files, sinks, digests.

Pure: no I/O. `apply` trusts its input (`admission` has checked it before it was written).

Invariants:
    * Two ledgers that applied the same items are equal, however the items were grouped into entries.
    * Queries may run while one other thread applies: tables only grow or are replaced whole. Items of an entry become
      visible in their order, so read a boundary first, then the frames below it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.errors import JournalCorrupt, StoreUnfit
from holdfast.log.digest_table import DigestTable
from holdfast.log.frame_table import FrameTable, SegmentUse
from holdfast.model import (
    FORMAT_VERSION,
    NO_WATERMARK,
    NOT_DECODED,
    Advanced,
    BatchLogged,
    Ended,
    FileLogged,
    FrameKind,
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

NO_BOUNDARY: Final = NO_WATERMARK
"""The boundary of a stream that has promised nothing yet."""

SNAPSHOTS_KEPT: Final = 2
REPORTS_KEPT: Final = 1000
_DIGEST_MODULUS: Final = 1 << 64


def stream_of(item: JournalItem) -> str:
    """Return the stream that an item is about (a stage's output stream has the stage's name)."""
    if isinstance(item, UnitCommitted | SnapshotVerified | Ended | StageBegun):
        return item.stage
    return item.subject if isinstance(item, Reported) else item.stream


class Unit(msgspec.Struct, array_like=True):
    """How far one shard of a stage is committed."""

    generation: int
    bucket_end: int
    rows_in: int = 0
    rows_late: int = 0


class SinkPosition(msgspec.Struct, array_like=True):
    """What a sink has put out, and what it may have begun to."""

    stream: str
    bucket_end: int | None = None
    rows: int = 0
    intended: SinkIntended | None = None
    begun: int | None = None
    """The bucket before which it was given nothing, None where it had everything."""


class StreamState(msgspec.Struct, array_like=True):
    """Everything that the journal says about one stream. `None` for a boundary means nothing was promised."""

    shards: dict[int, FrameTable] = {}
    boundary_us: int = NO_BOUNDARY
    event_time_max_us: int = NO_WATERMARK
    batches: dict[str, tuple[int, int]] = {}
    files: dict[str, FileLogged] = {}
    units: dict[int, Unit] = {}
    snapshots: dict[int, list[SnapshotVerified]] = {}
    digests: dict[int, DigestTable] = {}
    digests_folded: dict[int, tuple[int, int]] = {}
    """Per shard: rows and sum of digests (modulo 2**64) of the buckets that were trimmed."""
    endings: list[int] = []
    """Every bucket end at which all windows closed, ascending: a replay closes them there again."""
    trimmed_before: int | None = None
    segment_last: dict[str, str] = {}
    """Per folder: the newest segment that a committed frame was in."""
    bytes: int = 0
    begun: StageBegun | None = None
    """Of a stage that came later: where it began."""


class _Head(msgspec.Struct, array_like=True):
    version: int
    shards: int
    bucket_width_us: int
    streams: dict[str, StreamState]
    sinks: dict[str, SinkPosition]
    reports: list[Reported]


def _stored(table: object) -> object:
    assert isinstance(table, FrameTable | DigestTable), "all else is plain"
    return table.stored()


def _restored(kind: type, stored: object) -> FrameTable | DigestTable:
    return FrameTable.restored(stored) if kind is FrameTable else DigestTable.restored(stored)


_encoder = msgspec.msgpack.Encoder(enc_hook=_stored)
_decoder = msgspec.msgpack.Decoder(_Head, dec_hook=_restored)


class Ledger:
    """The fold of a journal. One thread applies; any thread may ask."""

    def __init__(self, shards: int, bucket_width_us: int) -> None:
        assert shards > 0 and bucket_width_us > 0, "a pipeline has shards and buckets"
        self.shards = shards
        self.bucket_width_us = bucket_width_us
        self._streams: dict[str, StreamState] = {}
        self._sinks: dict[str, SinkPosition] = {}
        self._reports: list[Reported] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._as_head() == other._as_head()

    __hash__ = None  # type: ignore[assignment]

    # What is stored.
    def _as_head(self) -> _Head:
        return _Head(FORMAT_VERSION, self.shards, self.bucket_width_us, self._streams, self._sinks, self._reports)

    def serialize(self) -> bytes:
        """Return the ledger as a journal's head."""
        return _encoder.encode(self._as_head())

    @classmethod
    def deserialize(cls, data: bytes | memoryview, journal: str = "unknown") -> Ledger:
        """Return the ledger that `serialize` made bytes of; `JournalCorrupt` where the bytes cannot be that."""
        try:
            head = _decoder.decode(data)
        except NOT_DECODED as error:
            raise _damaged(journal, f"{len(data)} bytes that are not one ({error})") from error
        if head.version > FORMAT_VERSION:
            raise StoreUnfit(
                f"a journal's head has format version {head.version}, this holdfast reads up to {FORMAT_VERSION}: "
                "use a newer holdfast"
            )
        if head.shards <= 0 or head.bucket_width_us <= 0:
            raise _damaged(journal, f"one of {head.shards} shards and buckets of {head.bucket_width_us} us")
        ledger = cls(head.shards, head.bucket_width_us)
        ledger._streams, ledger._sinks, ledger._reports = head.streams, head.sinks, head.reports
        return ledger

    def only(self, streams: Collection[str]) -> Ledger:
        """Return a ledger of `streams` (sharing their lists with this one), all sinks and all reports."""
        ledger = Ledger(self.shards, self.bucket_width_us)
        ledger._streams = {name: state for name, state in self._streams.items() if name in streams}
        ledger._sinks, ledger._reports = dict(self._sinks), list(self._reports)
        return ledger

    def about(self, stream: str) -> Ledger:
        """Return what a reader of `stream` alone is told (sharing lists with this ledger)."""
        ledger = self.only([stream])
        ledger._sinks = {name: position for name, position in self._sinks.items() if position.stream == stream}
        ledger._reports = [report for report in self._reports if report.subject == stream]
        return ledger

    def absorb(self, other: Ledger) -> None:
        """Take over what `other` has: its streams, and its sinks and reports where this one knows less."""
        self._streams.update(other._streams)
        for name, position in other._sinks.items():
            mine = self._sinks.get(name)
            if mine is None or _position(mine) < _position(position):
                self._sinks[name] = position
        known = set(self._reports)
        self._reports = (self._reports + [r for r in other._reports if r not in known])[-REPORTS_KEPT:]

    # What changes it.
    def apply(self, item: JournalItem) -> None:
        """Fold one item in."""
        _APPLY[type(item)](self, item)

    def apply_all(self, items: Sequence[JournalItem]) -> None:
        """Fold the items of an entry in, in their order; many moved frames cost one pass."""
        moved: dict[str, dict[FrameRef, FrameRef]] = {}
        for item in items:
            if isinstance(item, Moved):
                moved.setdefault(item.stream, {})[item.old] = item.new
            else:
                _APPLY[type(item)](self, item)
        for stream, refs in moved.items():
            self._move(stream, refs)

    def drop(self, stream: str, before_bucket: int) -> None:
        """Forget the frames that end at or before `before_bucket`; digests of older buckets are folded."""
        state = self._state(stream)
        for shard, frames in list(state.shards.items()):
            state.shards[shard] = frames.without(before_bucket)
        state.bytes = sum(frames.size_bytes() for frames in state.shards.values())
        for shard, digests in list(state.digests.items()):
            rows, digest, state.digests[shard] = digests.split(before_bucket)
            folded_rows, folded = state.digests_folded.get(shard, (0, 0))
            if rows:
                state.digests_folded[shard] = (folded_rows + rows, (folded + digest) % _DIGEST_MODULUS)
        state.trimmed_before = max(before_bucket, state.trimmed_before or before_bucket)

    def forget_folders(self, stream: str, folders: Collection[str]) -> None:
        """Forget folders of segments that are gone."""
        if folders:
            state = self._state(stream)
            state.segment_last = {k: v for k, v in state.segment_last.items() if k not in folders}

    def _state(self, stream: str) -> StreamState:
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = StreamState()
        return state

    def _published(self, item: Published) -> None:
        state = self._state(item.stream)
        frames = state.shards.get(item.shard)
        if frames is None:
            frames = state.shards[item.shard] = FrameTable(item.stream, item.shard)
        if frames.append(item):
            self._saw_segment(state, item.frame.segment)
        state.bytes += item.frame.length
        if item.event_time_max_us > state.event_time_max_us:
            state.event_time_max_us = item.event_time_max_us

    @staticmethod
    def _saw_segment(state: StreamState, segment: str) -> None:
        folder, _, name = segment.rpartition("/")
        if name > state.segment_last.get(folder, ""):
            state.segment_last[folder] = name

    def _advanced(self, item: Advanced) -> None:
        state = self._state(item.stream)
        state.boundary_us = max(state.boundary_us, item.boundary_us)
        state.event_time_max_us = max(state.event_time_max_us, item.event_time_max_us)

    def _batch_logged(self, item: BatchLogged) -> None:
        batches = self._state(item.stream).batches
        batches[item.writer] = max(batches.get(item.writer, (-1, -1)), (item.epoch, item.sequence))

    def _file_logged(self, item: FileLogged) -> None:
        self._state(item.stream).files[item.path] = item

    def _unit_committed(self, item: UnitCommitted) -> None:
        state = self._state(item.stage)
        known = state.units.get(item.shard)
        rows_in, rows_late = (known.rows_in, known.rows_late) if known is not None else (0, 0)
        if item.digests:
            digests = state.digests.get(item.shard)
            if digests is None:
                digests = state.digests[item.shard] = DigestTable()
            for bucket, rows, digest in item.digests:
                digests.put(bucket, rows, digest)
        state.units[item.shard] = Unit(
            item.generation, item.bucket_end, rows_in + item.rows_in, rows_late + item.rows_late
        )

    def _snapshot_verified(self, item: SnapshotVerified) -> None:
        snapshots = self._state(item.stage).snapshots
        kept = [s for s in snapshots.get(item.shard, []) if s.bucket_end != item.bucket_end]
        snapshots[item.shard] = sorted([*kept, item], key=lambda s: s.bucket_end)[-SNAPSHOTS_KEPT:]

    def _sink_intended(self, item: SinkIntended) -> None:
        position = self._sinks.get(item.sink, SinkPosition(item.stream))
        self._sinks[item.sink] = msgspec.structs.replace(position, stream=item.stream, intended=item)

    def _sink_done(self, item: SinkDone) -> None:
        position = self._sinks.get(item.sink, SinkPosition(item.stream))
        self._sinks[item.sink] = msgspec.structs.replace(
            position,
            stream=item.stream,
            bucket_end=item.bucket_end,
            rows=position.rows + item.rows,
            intended=None,
        )

    def _sink_begun(self, item: SinkBegun) -> None:
        rows = self._sinks[item.sink].rows if item.sink in self._sinks else 0
        self._sinks[item.sink] = SinkPosition(item.stream, item.bucket_start, rows, None, item.bucket_start)

    def _stage_begun(self, item: StageBegun) -> None:
        self._state(item.stage).begun = item

    def _ended(self, item: Ended) -> None:
        state = self._state(item.stage)
        state.endings = sorted({*state.endings, item.bucket_end})

    def _reported(self, item: Reported) -> None:
        self._reports = [*self._reports, item][-REPORTS_KEPT:]

    def _moved(self, item: Moved) -> None:
        self._move(item.stream, {item.old: item.new})

    def _move(self, stream: str, refs: dict[FrameRef, FrameRef]) -> None:
        state = self._state(stream)
        for shard, frames in list(state.shards.items()):
            state.shards[shard] = frames.moved(refs)
        for ref in refs.values():
            self._saw_segment(state, ref.segment)

    def _trimmed(self, item: Trimmed) -> None:
        self.drop(item.stream, item.before_bucket)

    # What it knows.
    @property
    def streams(self) -> list[str]:
        """The streams that anything was said about, sorted."""
        return sorted(self._streams)

    def frames(
        self,
        stream: str,
        bucket_from: int,
        bucket_to: int,
        kinds: Collection[int] | None = (FrameKind.DATA,),
        shard_from: int = 0,
        shard_to: int | None = None,
    ) -> list[Published]:
        """Return the frames of `kinds` (None: all) that have buckets in `[bucket_from, bucket_to)`.

        With a range of shards: those of these shards, and those that hold rows of many. The order is that of the
        commits within a shard, shard after shard.
        """
        state = self._streams.get(stream)
        found: list[Published] = []
        if state is None:
            return found
        for shard, frames in sorted(state.shards.items()):
            if shard < 0 or (shard_from <= shard and (shard_to is None or shard < shard_to)):
                found += frames.between(bucket_from, bucket_to)
        return found if kinds is None else [frame for frame in found if frame.kind in kinds]

    def all_frames(self, stream: str) -> list[Published]:
        """Return all frames of a stream, of every kind, shard after shard."""
        return list(self.each_frame(stream))

    def each_frame(self, stream: str) -> Iterator[Published]:
        """Yield what `all_frames` returns, without making it all at once."""
        state = self._streams.get(stream)
        for _, frames in sorted(state.shards.items()) if state is not None else ():
            yield from frames.each()

    def last_frame(self, stream: str, shard: int) -> Published | None:
        """Return the newest frame of a shard."""
        state = self._streams.get(stream)
        frames = state.shards.get(shard) if state is not None else None
        return None if frames is None else frames.last()

    def boundary_us(self, stream: str) -> int:
        """Return the boundary of a stream; that of a stage's output is where its last unit is."""
        state = self._streams.get(stream)
        if state is None:
            return NO_BOUNDARY
        units = list(state.units.values())
        if not units:
            return state.boundary_us
        if len(units) < self.shards:
            return NO_BOUNDARY
        return min(unit.bucket_end for unit in units) * self.bucket_width_us

    def promised(self, stream: str) -> tuple[int, int]:
        """Return what the last `Advanced` said: (boundary, highest event time), of a stream that has no units."""
        state = self._streams.get(stream)
        return (NO_BOUNDARY, NO_WATERMARK) if state is None else (state.boundary_us, state.event_time_max_us)

    def stream_bucket_end(self, stream: str) -> int | None:
        """Return the end of the buckets that are complete, None before the first boundary."""
        boundary_us = self.boundary_us(stream)
        return None if boundary_us == NO_BOUNDARY else boundary_us // self.bucket_width_us

    def event_time_max_us(self, stream: str) -> int:
        """Return the highest event time logged in a stream."""
        state = self._streams.get(stream)
        return NO_WATERMARK if state is None else state.event_time_max_us

    def unit(self, stage: str, shard: int) -> Unit | None:
        """Return how far a unit is committed, None before its first commit."""
        state = self._streams.get(stage)
        return None if state is None else state.units.get(shard)

    def units(self, stage: str) -> dict[int, Unit]:
        """Return the committed units of a stage."""
        state = self._streams.get(stage)
        return {} if state is None else dict(state.units)

    def snapshots(self, stage: str, shard: int) -> list[SnapshotVerified]:
        """Return the last verified snapshots of a unit, the newest last."""
        state = self._streams.get(stage)
        return [] if state is None else list(state.snapshots.get(shard, ()))

    def snapshot_shards(self, stage: str) -> list[int]:
        """Return the shards that have a verified snapshot."""
        state = self._streams.get(stage)
        return [] if state is None else list(state.snapshots)

    def batch_last(self, stream: str, writer: str) -> tuple[int, int] | None:
        """Return (epoch, sequence) of the last batch of a writer."""
        state = self._streams.get(stream)
        return None if state is None else state.batches.get(writer)

    def batches(self, stream: str) -> dict[str, tuple[int, int]]:
        """Return, per writer, (epoch, sequence) of its last batch."""
        state = self._streams.get(stream)
        return {} if state is None else dict(state.batches)

    def files(self, stream: str) -> dict[str, FileLogged]:
        """Return, per path, the last rows of a source file that are in the stream."""
        state = self._streams.get(stream)
        return {} if state is None else dict(state.files)

    def file(self, stream: str, path: str) -> FileLogged | None:
        """Return the last rows of one source file that are in the stream."""
        state = self._streams.get(stream)
        return None if state is None else state.files.get(path)

    def digests(self, stream: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (data rows, digest) per (shard, bucket) that was not trimmed."""
        state = self._streams.get(stream)
        if state is None:
            return {}
        shards = list(state.digests.items())
        return {(shard, bucket): value for shard, digests in shards for bucket, value in digests.items()}

    def digests_folded(self, stream: str) -> dict[int, tuple[int, int]]:
        """Return (data rows, sum of digests modulo 2**64) per shard of what was trimmed."""
        state = self._streams.get(stream)
        return {} if state is None else dict(state.digests_folded)

    def ended(self, stage: str) -> int | None:
        """Return the last bucket end at which a stage's windows all close, None if there was none."""
        endings = self.endings(stage)
        return endings[-1] if endings else None

    def endings(self, stage: str) -> list[int]:
        """Return every bucket end at which a stage's windows all close, ascending."""
        state = self._streams.get(stage)
        return [] if state is None else list(state.endings)

    def begun(self, stage: str) -> StageBegun | None:
        """Return where a stage began that came to a pipeline which had run before, None for one that was there."""
        state = self._streams.get(stage)
        return None if state is None else state.begun

    def trimmed_before(self, stream: str) -> int | None:
        """Return the first bucket that is kept whole, None if nothing was ever trimmed."""
        state = self._streams.get(stream)
        return None if state is None else state.trimmed_before

    def size_bytes(self, stream: str) -> int:
        """Return the bytes of a stream's frames."""
        state = self._streams.get(stream)
        return 0 if state is None else state.bytes

    def segment_uses(self, stream: str, trimmed_before: int | None = None) -> dict[str, SegmentUse]:
        """Return what each segment of a stream is used for; frames that such a trim would drop do not count."""
        state = self._streams.get(stream)
        uses: dict[str, SegmentUse] = {}
        for _, table in sorted(state.shards.items()) if state is not None else ():
            for path, use in table.uses(trimmed_before).items():
                uses[path] = uses[path] + use if path in uses else use
        return uses

    def segment_last(self, stream: str) -> dict[str, str]:
        """Return, per folder of segments, the name of the newest one that a committed frame was in."""
        state = self._streams.get(stream)
        return {} if state is None else dict(state.segment_last)

    @property
    def sinks(self) -> dict[str, SinkPosition]:
        """Per sink: how far it is, and what it intends."""
        return dict(self._sinks)

    @property
    def reports(self) -> list[Reported]:
        """The last reports, the newest last."""
        return list(self._reports)


def _damaged(journal: str, found: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"the journal {journal} is damaged: expected a head that this version knows, found {found}; restore the file "
        "from a copy of the store"
    )


def _position(position: SinkPosition) -> tuple[int, int]:
    """Order the positions of a sink: done first, then what is intended beyond it."""
    done = NO_WATERMARK if position.bucket_end is None else position.bucket_end
    return done, NO_WATERMARK if position.intended is None else position.intended.bucket_end


_APPLY: Final[dict[type, Callable[..., None]]] = {
    Published: Ledger._published,
    Advanced: Ledger._advanced,
    BatchLogged: Ledger._batch_logged,
    FileLogged: Ledger._file_logged,
    UnitCommitted: Ledger._unit_committed,
    SnapshotVerified: Ledger._snapshot_verified,
    SinkIntended: Ledger._sink_intended,
    SinkDone: Ledger._sink_done,
    Ended: Ledger._ended,
    Reported: Ledger._reported,
    Moved: Ledger._moved,
    Trimmed: Ledger._trimmed,
    StageBegun: Ledger._stage_begun,
    SinkBegun: Ledger._sink_begun,
}
