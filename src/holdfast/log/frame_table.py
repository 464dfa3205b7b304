"""The frames of one shard of a stream, in the order of their commits, in less than a hundred bytes each.

A stream of tiny waves has hundreds of thousands of frames within the time that it retains: as objects they would fill
the memory of every process that follows it, and dropping or counting them would stop the node.

Invariants:
    * One thread appends; any thread may ask. What changes frames that are there returns a new table.
    * `ends` never decreases: the highest `bucket_end` up to each frame, so that it can be searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from holdfast.log.columns import Columns, Numbers, pack, unpack
from holdfast.model import FrameRef, Published

_NO_STAMP: Final = -(2**63)
_AT_ONCE: Final = 4096
_STORED: Final = 10
_START, _END, _ROWS, _SEGMENT, _OFFSET, _LENGTH, _CRC, _STAMP, _KIND, _EVENT_TIME = range(_STORED)
_HIGHEST_END: Final = _STORED


class SegmentUse(msgspec.Struct, frozen=True):
    """What frames use of a segment: how many there are, their bytes, where the last one ends, and their last bucket."""

    frames: int
    live_bytes: int
    end: int
    bucket_end: int

    def __add__(self, other: SegmentUse) -> SegmentUse:
        return SegmentUse(
            self.frames + other.frames,
            self.live_bytes + other.live_bytes,
            max(self.end, other.end),
            max(self.bucket_end, other.bucket_end),
        )


class FrameTable:
    """What was published of one shard."""

    def __init__(self, stream: str, shard: int) -> None:
        self._stream = stream
        self._shard = shard
        self._columns = Columns(_STORED + 1)
        self._segments: list[str] = []
        self._numbers: dict[str, int] = {}
        self._start_last = self._end_last = _NO_STAMP
        self._in_order = True

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameTable) and self.all() == other.all()

    __hash__ = None  # type: ignore[assignment]

    # What is stored.
    def stored(self) -> tuple[str, int, list[str], list[bytes]]:
        """Return the table as a journal's head has it."""
        return self._stream, self._shard, self._segments, pack(self._columns.view()[:_STORED])

    @classmethod
    def restored(cls, stored: object) -> FrameTable:
        """Return the table that `stored` gave; `ValueError` where it cannot have."""
        stream, shard, segments, packed = msgspec.convert(stored, tuple[str, int, list[str], list[bytes]])
        numbers = unpack(packed, _STORED)
        used = numbers[_SEGMENT]
        if len(used) and (used.min() < 0 or used.max() >= len(segments)):
            raise ValueError(f"frames in segment {used.max()} of {len(segments)}")
        return cls(stream, shard)._filled(segments, numbers)

    # What changes it.
    def append(self, frame: Published) -> bool:
        """Add the frame that was committed last; return whether it is the first one in its segment."""
        start, end, ref = frame.bucket_start, frame.bucket_end, frame.frame
        number = self._numbers.get(ref.segment)
        is_first = number is None
        if number is None:
            number = self._numbers[ref.segment] = len(self._segments)
            self._segments.append(ref.segment)
        self._in_order = self._in_order and self._start_last <= start
        self._start_last, self._end_last = start, max(self._end_last, end)
        stamp_us = _NO_STAMP if frame.stamp_us is None else frame.stamp_us
        self._columns.append(
            (
                start,
                end,
                frame.rows,
                number,
                ref.offset,
                ref.length,
                ref.crc,
                stamp_us,
                frame.kind,
                frame.event_time_max_us,
                self._end_last,
            )
        )
        return is_first

    def without(self, before_bucket: int) -> FrameTable:
        """Return the frames that end after `before_bucket`: this very table where all do."""
        numbers = self._columns.view()
        kept = numbers[_END] > before_bucket
        return self if kept.all() else self._with(numbers[:_STORED, kept])

    def moved(self, refs: Mapping[FrameRef, FrameRef]) -> FrameTable:
        """Return the table in which the frames at old places are at their new ones: this very table where none is."""
        numbers = self._columns.view()
        sources = [self._numbers[segment] for segment in {ref.segment for ref in refs} if segment in self._numbers]
        rows = np.flatnonzero(np.isin(numbers[_SEGMENT], sources)).tolist()
        found = {row: new for row in rows if (new := refs.get(self._ref(numbers, row))) is not None}
        if not found:
            return self
        segments = list(dict.fromkeys([*self._segments, *(ref.segment for ref in found.values())]))
        places = {segment: number for number, segment in enumerate(segments)}
        changed = numbers[:_STORED].copy()
        for row, ref in found.items():
            changed[_SEGMENT : _CRC + 1, row] = places[ref.segment], ref.offset, ref.length, ref.crc
        return FrameTable(self._stream, self._shard)._filled(segments, changed)

    # What it knows.
    def all(self) -> list[Published]:
        """Return every frame."""
        return self._frames(self._columns.view(), slice(None))

    def each(self) -> Iterator[Published]:
        """Yield every frame, a few at a time: there may be more than would fit as objects."""
        numbers = self._columns.view()
        for first in range(0, numbers.shape[1], _AT_ONCE):
            yield from self._frames(numbers, slice(first, first + _AT_ONCE))

    def last(self) -> Published | None:
        """Return the frame that was committed last."""
        frames = self._frames(self._columns.view(), slice(-1, None))
        return frames[0] if frames else None

    def between(self, bucket_from: int, bucket_to: int) -> list[Published]:
        """Return the frames that have buckets in `[bucket_from, bucket_to)`."""
        numbers = self._columns.view()
        # Asked after the view: it says no before a row that is out of order can be seen.
        in_order = self._in_order
        first = int(np.searchsorted(numbers[_HIGHEST_END], bucket_from, "right"))
        stop = numbers.shape[1]
        if in_order:
            stop = first + int(np.searchsorted(numbers[_START, first:], bucket_to, "left"))
        window = numbers[:, first:stop]
        wanted = (window[_END] > bucket_from) & (window[_START] < bucket_to)
        return self._frames(window, slice(None) if wanted.all() else np.flatnonzero(wanted))

    def size_bytes(self) -> int:
        """Return the bytes of all frames."""
        return int(self._columns.view()[_LENGTH].sum())

    def uses(self, trimmed_before: int | None = None) -> dict[str, SegmentUse]:
        """Return what each segment is used for; frames that a trim before that bucket drops do not count."""
        numbers = self._columns.view()
        if trimmed_before is not None:
            numbers = numbers[:, numbers[_END] > trimmed_before]
        segment, length = numbers[_SEGMENT], numbers[_LENGTH]
        known = len(self._segments)
        counts = np.bincount(segment, minlength=known)
        # Not as weights of a count: those are floating, and bytes are exact.
        sizes, ends = np.zeros(known, np.int64), np.zeros(known, np.int64)
        buckets = np.full(known, _NO_STAMP, np.int64)
        np.add.at(sizes, segment, length)
        np.maximum.at(ends, segment, numbers[_OFFSET] + length)
        np.maximum.at(buckets, segment, numbers[_END])
        used = np.flatnonzero(counts)
        columns = (column[used].tolist() for column in (counts, sizes, ends, buckets))
        found = zip(used.tolist(), *columns, strict=True)
        return {self._segments[number]: SegmentUse(*use) for number, *use in found}

    def _with(self, numbers: Numbers) -> FrameTable:
        """Return a table of some of the rows, which names only the segments that they are in."""
        used, renumbered = np.unique(numbers[_SEGMENT], return_inverse=True)
        numbers[_SEGMENT] = renumbered
        segments = [self._segments[number] for number in used.tolist()]
        return FrameTable(self._stream, self._shard)._filled(segments, numbers)

    def _filled(self, segments: Sequence[str], numbers: Numbers) -> FrameTable:
        highest = np.maximum.accumulate(numbers[_END])[np.newaxis]
        self._columns = Columns(_STORED + 1, np.concatenate([numbers, highest]))
        self._segments = list(segments)
        self._numbers = {segment: number for number, segment in enumerate(segments)}
        if len(self._columns):
            self._start_last, self._end_last = int(numbers[_START, -1]), int(highest[0, -1])
            self._in_order = bool((numbers[_START, 1:] >= numbers[_START, :-1]).all())
        return self

    def _ref(self, numbers: Numbers, row: int) -> FrameRef:
        segment, offset, length, crc = numbers[_SEGMENT : _CRC + 1, row].tolist()
        return FrameRef(self._segments[segment], offset, length, crc)

    def _frames(self, numbers: Numbers, rows: slice | Numbers) -> list[Published]:
        segments = self._segments
        return [
            Published(
                self._stream,
                self._shard,
                start,
                end,
                count,
                FrameRef(segments[segment], offset, length, crc),
                None if stamp_us == _NO_STAMP else stamp_us,
                kind,
                event_time_max_us,
            )
            for start, end, count, segment, offset, length, crc, stamp_us, kind, event_time_max_us in zip(
                *(column.tolist() for column in numbers[:_STORED, rows]), strict=True
            )
        ]
