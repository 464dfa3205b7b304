"""The words of holdfast as types: time, buckets, frames, and what the journal says.

Everything here is plain data. Nothing does I/O and nothing decides.

Invariants:
    * Times are whole microseconds since 1970 (UTC). A bucket is `time // bucket_width_us`.
    * Ends are exclusive: a range of buckets is `[bucket_start, bucket_end)`.
    * What is stored or sent is MessagePack of these types, never pickle. A field is only ever added at the end,
      with a default; a retired tag is never used again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

FORMAT_VERSION: Final = 1
"""Of everything in a store. A store with a higher number is refused, by name."""

MANY_SHARDS: Final = -1
"""In place of a shard: the frame holds rows of all shards, in shard order, with offsets in its header."""

NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises where bytes are not what they should be: whoever knows whose bytes they are says so."""

NO_BUCKET: Final = -(2**63)
"""In place of a bucket: the frame was written before its bucket was known; its commit's stamp says which."""

NO_WATERMARK: Final = -(2**63)
"""The watermark (or highest event time) of an input that has not yet shown an event time."""

FIRST_BUCKET: Final = -(2**62)
"""Below every bucket: where a unit, a sink or a consumer is that has seen nothing."""

END_OF_TIME: Final = 2**62
"""The boundary and watermark of an input that has ended."""


class FrameKind(IntEnum):
    """What a frame holds. All are reserved from the first version; a reader skips what it does not ask for."""

    DATA = 1
    OPEN = 2
    CHECK = 3
    CLOSE = 4
    TENTATIVE = 5
    UNDO = 6
    REC_DONE = 7


class FrameRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a frame is: a segment's path below the pipeline's folder, and the bytes in it.

    `crc` is that of the frame's header, which holds that of the payload: it says which bytes are meant.
    """

    segment: str
    offset: int
    length: int
    crc: int = 0


class Published(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="frame"):
    """A frame that has become part of a stream.

    `stamp_us` is the tuple_time of every row, for a source that is stamped on arrival; then the bucket range is that
    one bucket. It is None where the frame's own header says which rows are in which bucket.
    """

    stream: str
    shard: int
    bucket_start: int
    bucket_end: int
    rows: int
    frame: FrameRef
    stamp_us: int | None = None
    kind: int = FrameKind.DATA
    event_time_max_us: int = NO_WATERMARK


class Advanced(msgspec.Struct, frozen=True, array_like=True, tag="boundary"):
    """No tuple of `stream` will come with a tuple_time below `boundary_us`.

    `event_time_max_us` is the highest event time of all rows logged so far; a stage takes its delay off to get the
    input's watermark. Neither number ever goes back.
    """

    stream: str
    boundary_us: int
    event_time_max_us: int = NO_WATERMARK


class BatchLogged(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Who sent the rows published in the same entry; a repeat of (writer, epoch, sequence) is dropped."""

    stream: str
    writer: str
    epoch: int
    sequence: int


class FileLogged(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """Rows `[row_start, row_end)` of a source file are in the stream. `last` says that the file is done.

    Of a text file it is bytes that are counted, not rows: they are what a file can be cut and resumed at.
    """

    stream: str
    path: str
    size_bytes: int
    modified_ns: int
    row_start: int
    row_end: int
    last: bool


class UnitCommitted(msgspec.Struct, frozen=True, array_like=True, tag="unit"):
    """A unit has processed all input of the buckets before `bucket_end`, and its output is published.

    `digests` holds (bucket, data rows, digest) for each bucket with data rows, of the stage's output stream.
    """

    stage: str
    shard: int
    generation: int
    bucket_start: int
    bucket_end: int
    digests: list[tuple[int, int, int]] = []
    rows_in: int = 0
    rows_late: int = 0


class SnapshotVerified(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The snapshot of a unit as of `bucket_end` was written and synced: replay may start there."""

    stage: str
    shard: int
    bucket_end: int
    path: str


class SinkIntended(msgspec.Struct, frozen=True, array_like=True, tag="sink_intent"):
    """A sink is about to put rows of `[bucket_start, bucket_end)` out under `name`; it does so again after a crash."""

    sink: str
    stream: str
    bucket_start: int
    bucket_end: int
    name: str


class SinkDone(msgspec.Struct, frozen=True, array_like=True, tag="sink_done"):
    """Everything of `stream` before `bucket_end` is out in `sink`."""

    sink: str
    stream: str
    bucket_end: int
    rows: int


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Every window of `stage` that is still open closes in the bucket before `bucket_end`: its input has ended."""

    stage: str
    bucket_end: int


class Reported(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """Something a person should know and that must outlive the process: a gap, a retired input, an error."""

    subject: str
    message: str
    at_us: int


class Moved(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """A committed frame now lives at `new`, byte for byte; `old` may be deleted."""

    stream: str
    old: FrameRef
    new: FrameRef


class Trimmed(msgspec.Struct, frozen=True, array_like=True, tag="trimmed"):
    """Nobody needs the frames of `stream` that end at or before `before_bucket`; they are no longer part of it."""

    stream: str
    before_bucket: int


class StageBegun(msgspec.Struct, frozen=True, array_like=True, tag="stage_begun"):
    """`stage` came to a pipeline that had run before: its units are empty as of `bucket_start`.

    Rows of its inputs before that were gone. It puts nothing into side streams for buckets before `sides_from`, as
    others who fill them have completed those.
    """

    stage: str
    bucket_start: int
    sides_from: int


class SinkBegun(msgspec.Struct, frozen=True, array_like=True, tag="sink_begun"):
    """`sink` puts out nothing of `stream` before `bucket_start`: those rows were gone, or were not asked for."""

    sink: str
    stream: str
    bucket_start: int


JournalItem = (
    Published
    | Advanced
    | BatchLogged
    | FileLogged
    | UnitCommitted
    | SnapshotVerified
    | SinkIntended
    | SinkDone
    | Ended
    | Reported
    | Moved
    | Trimmed
    | StageBegun
    | SinkBegun
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One record of a journal: all of its items became true together, or none did."""

    number: int
    items: list[JournalItem]


def bucket_of(time_us: int, bucket_width_us: int) -> int:
    """Return the bucket that `time_us` lies in."""
    return time_us // bucket_width_us


def bucket_start_us(bucket: int, bucket_width_us: int) -> int:
    """Return the first tuple_time of `bucket`."""
    return bucket * bucket_width_us


def stamped(frame: Published, stamp_us: int, bucket_width_us: int) -> Published:
    """Return a frame whose rows all have the tuple_time that its commit gives them."""
    bucket = bucket_of(stamp_us, bucket_width_us)
    return msgspec.structs.replace(frame, bucket_start=bucket, bucket_end=bucket + 1, stamp_us=stamp_us)
