"""Which buckets a wave takes, and which frames it has to read for them.

Invariants:
    * A range ends where a bucket ends; a frame that reaches into a range is read by it.
    * The first bucket with rows is always taken, however many rows it has: a budget delays work, it never stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model import Published
from holdfast.node.messages import FrameOfInput, ProcessWork

FramesOf = Callable[[str, int, int], Iterable[Published]]
"""From (stream, bucket_from, bucket_to) to the frames with rows in that range, in the order they were committed."""


def frames_between(inputs: Sequence[str], frames_of: FramesOf, bucket_from: int, bucket_to: int) -> list[FrameOfInput]:
    """Return the frames of all inputs with rows in `[bucket_from, bucket_to)`, input by input, in commit order."""
    return [
        FrameOfInput(
            number,
            frame.frame,
            frame.shard,
            frame.bucket_start,
            frame.bucket_end,
            frame.rows,
            frame.stamp_us,
            frame.event_time_max_us,
        )
        for number, stream in enumerate(inputs)
        for frame in frames_of(stream, bucket_from, bucket_to)
    ]


def bucket_to_within(frames: list[FrameOfInput], bucket_from: int, bucket_to: int, rows_max: int) -> int:
    """Return the end of the longest range from `bucket_from` that holds at most about `rows_max` rows."""
    rows = 0
    taken_end = bucket_from
    for frame in sorted(frames, key=lambda frame: frame.bucket_start):
        if rows and rows + frame.rows > rows_max and frame.bucket_start >= taken_end:
            return max(bucket_from + 1, frame.bucket_start)
        rows += frame.rows
        span = max(1, frame.bucket_end - frame.bucket_start)
        # A frame that spans many buckets may be taken in pieces; the budget then decides where to cut it.
        if span > 1 and rows > rows_max:
            share = max(1, span * rows_max // rows)
            return min(bucket_to, max(bucket_from, frame.bucket_start) + share)
        taken_end = max(taken_end, frame.bucket_end)
    return bucket_to


def of_bucket(work: ProcessWork, bucket: int) -> ProcessWork:
    """Return the part of the work that is one bucket."""
    frames = [frame for frame in work.frames if frame.bucket_start <= bucket < frame.bucket_end]
    return msgspec.structs.replace(work, bucket_from=bucket, bucket_to=bucket + 1, frames=frames)


def buckets_of(frame: FrameOfInput, table: Sequence[tuple[int, int]]) -> list[int]:
    """Return the buckets that have rows in a frame; `table` is the one in its header."""
    return [bucket for bucket, _ in table] if table and frame.stamp_us is None else [frame.bucket_start]
