"""What the node says to a slot, and what a slot answers.

An order is JSON in a job's local property; a receipt is MessagePack in an accumulator update. Neither names anything
of the driver's memory, so a slot may be a thread, a process of this machine or a task on another one.

Invariants:
    * An order is complete: a slot that has never seen the pipeline can carry it out.
    * A receipt answers every piece of work of its order, in order. What failed has left nothing that anybody reads.
    * Doing an order again is always safe: state checks its bucket, segments are new, names are fixed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.model import FIRST_BUCKET, FrameRef, Published


class FrameOfInput(msgspec.Struct, frozen=True, array_like=True):
    """A frame that a stage has to read. `input` is its place among the stage's inputs."""

    input: int
    frame: FrameRef
    shard: int
    bucket_start: int
    bucket_end: int
    rows: int
    stamp_us: int | None
    event_time_max_us: int


class UnitWork(msgspec.Struct, frozen=True, array_like=True):
    """One unit in a wave. `snapshot` asks for a snapshot of its state as the wave leaves it.

    Late rows and rejects of buckets before `sides_from` are not kept: others have completed those buckets.
    """

    shard: int
    generation: int
    bucket_memory: int
    publish_from: int
    snapshot: bool = False
    sides_from: int = FIRST_BUCKET


class ProcessWork(msgspec.Struct, frozen=True, tag="process"):
    """Run units of a stage over the buckets `[bucket_from, bucket_to)`.

    Each unit's state must be as of `UnitWork.bucket_memory`, at or before `bucket_from`; no frame lies between. Rows of
    buckets below `publish_from` are out already: they are computed again and not written.
    """

    stage: str
    units: list[UnitWork]
    bucket_from: int
    bucket_to: int
    frames: list[FrameOfInput]
    ended: bool = False


class AttachWork(msgspec.Struct, frozen=True, tag="attach"):
    """Bring a unit's state to this slot: what is in memory if its header fits, else a snapshot, else empty.

    `snapshots` are (bucket, path), the newest first. State must not be beyond `bucket_committed`, and not before
    `bucket_replay`, the first bucket from which the inputs are still kept; a new unit starts empty as of `bucket_empty`
    if `empty_allowed`. A state in memory of a generation before `generation_committed` was left behind by a node that
    had been taken over: it may have gone on without what its successor decided.
    """

    stage: str
    shard: int
    generation: int
    bucket_committed: int
    bucket_replay: int
    snapshots: list[tuple[int, str]]
    empty_allowed: bool
    generation_committed: int = 0
    bucket_empty: int = FIRST_BUCKET


class ForgetWork(msgspec.Struct, frozen=True, tag="forget"):
    """Delete what this host still holds of a unit that lives elsewhere now, in its life `generation`."""

    stage: str
    shard: int
    generation: int


class IngestWork(msgspec.Struct, frozen=True, tag="ingest"):
    """Read a piece of a source's files and write it to the source's stream. `chunk` is `connect.files.FileChunk`."""

    source: str
    number: int
    chunk: msgspec.Raw


class DeliverWork(msgspec.Struct, frozen=True, tag="deliver"):
    """Put rows of a stream out to a sink under a name that stays the same when it is done again."""

    sink: str
    stream: str
    bucket_from: int
    bucket_to: int
    name: str
    frames: list[Published]


Work = ProcessWork | AttachWork | IngestWork | DeliverWork | ForgetWork


class Order(msgspec.Struct, frozen=True):
    """Everything one slot does in one wave."""

    wave: int
    slot: int
    node: str
    works: list[Work]


class UnitProcessed(msgspec.Struct, frozen=True, array_like=True):
    """What became of one unit: its frames are synced, its state in memory is as of `bucket_to`.

    `state_rows` and `state_bytes` are how much that is now, None where nothing has changed it. `watermark_us` is where
    event time stands; it is the same for all units of a wave, and the first of them says it.
    """

    shard: int
    published: list[Published]
    digests: list[tuple[int, int, int]]
    rows_in: int
    rows_late: int
    rows_rejected: int = 0
    snapshot: str | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    watermark_us: int | None = None


class Processed(msgspec.Struct, frozen=True, tag="processed"):
    """A `ProcessWork` is done. `seconds` is the slot's own time for it, by phase."""

    stage: str
    units: list[UnitProcessed]
    bucket_from: int
    bucket_to: int
    seconds: dict[str, float] = {}


class Attached(msgspec.Struct, frozen=True, tag="attached"):
    """A unit's state is in memory as of `bucket_memory`. `origin` says where it came from."""

    stage: str
    shard: int
    bucket_memory: int
    origin: Literal["memory", "snapshot", "empty"]
    warnings: list[str] = []
    state_rows: int = 0
    state_bytes: int = 0


class Ingested(msgspec.Struct, frozen=True, tag="ingested"):
    """A chunk is in the stream's segment. `published` still lacks the stamp; that is the node's to give."""

    source: str
    number: int
    published: list[Published]
    path: str
    size_bytes: int
    modified_ns: int
    row_start: int
    row_end: int
    last: bool
    tuple_time_min_us: int | None
    tuple_time_max_us: int | None
    rejects: int
    seconds: dict[str, float] = {}


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """A `DeliverWork` is done; what it put out survives a crash."""

    sink: str
    stream: str
    bucket_to: int
    rows: int


class StateAbsent(msgspec.Struct, frozen=True, tag="state_absent"):
    """The unit's state is not here as of the bucket it was said to be; it has to be attached again."""

    stage: str
    shard: int
    reason: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A piece of work failed. `error` is the class in `errors`; `retry` says that the same work may succeed later."""

    work: int
    error: str
    message: str
    retry: bool


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """Nothing older than the life that was named is held here, unless a process of that life is still at work."""

    stage: str
    shard: int


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """Not begun, because a piece of work before it in the same order failed."""

    work: int


Result = Processed | Attached | Ingested | Delivered | Forgotten | StateAbsent | Failed | Skipped


class Receipt(msgspec.Struct, frozen=True):
    """A slot's answer to an order. `seconds` is the task's own time."""

    wave: int
    slot: int
    node: str
    host: str
    pid: int
    results: list[Result]
    seconds: float = 0.0


ORDER_DECODER = msgspec.json.Decoder(Order)
RECEIPT_DECODER = msgspec.msgpack.Decoder(Receipt)


def encode_order(order: Order) -> str:
    """Return the order as text for a local property."""
    return msgspec.json.encode(order).decode()


def encode_receipt(receipt: Receipt) -> bytes:
    return msgspec.msgpack.encode(receipt)
