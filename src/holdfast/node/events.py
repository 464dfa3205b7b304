"""What the decider hears (past tense) and what it asks for (imperative). Plain data, no I/O."""

from __future__ import annotations

import msgspec

from holdfast.model import JournalItem, Published
from holdfast.node.messages import Order, Receipt


class SlotsChanged(msgspec.Struct, frozen=True, tag=True):
    """These slots exist now; what ran on others is lost. `hosts` says where a slot is, if that matters."""

    slots: list[int]
    hosts: dict[int, str] = {}


class ItemsRead(msgspec.Struct, frozen=True, tag=True):
    """Another process (a producer) committed these items."""

    items: list[JournalItem]


class ChunkFound(msgspec.Struct, frozen=True):
    """A piece of a file to ingest. `key` is the same each time the piece is found; `chunk` is for the slot alone."""

    key: str
    rows: int
    chunk: msgspec.Raw


class FilesLooked(msgspec.Struct, frozen=True, tag=True):
    """Somebody looked for new files of a source at `at_us`, and found these, in the order they are to be read.

    `settled` says that no file is still waiting to be complete.
    """

    source: str
    at_us: int
    chunks: list[ChunkFound]
    settled: bool


class ReceiptArrived(msgspec.Struct, frozen=True, tag=True):
    receipt: Receipt


class WaveLost(msgspec.Struct, frozen=True, tag=True):
    """A wave's job ended on this slot and no receipt came."""

    wave: int
    slot: int
    reason: str


class Committed(msgspec.Struct, frozen=True, tag=True):
    """The items of this ticket are in the journal, synced."""

    ticket: int
    items: list[JournalItem]


class CommitFailed(msgspec.Struct, frozen=True, tag=True):
    """They are not, and the journal takes nothing until it is opened anew."""

    ticket: int
    reason: str


class LogReopened(msgspec.Struct, frozen=True, tag=True):
    """The journal takes commits again. What was committed is in the ledger; what failed has to be said again."""


class ReopenFailed(msgspec.Struct, frozen=True, tag=True):
    """The journal still takes nothing."""


class SnapshotFound(msgspec.Struct, frozen=True, tag=True):
    """A snapshot's manifest is complete and durable (or its writer gave up, with `failed` saying why)."""

    stage: str
    shard: int
    bucket_end: int
    path: str
    failed: str | None = None


class Displayed(msgspec.Struct, frozen=True, tag=True):
    """A `DisplayRows` is done."""

    sink: str
    stream: str
    bucket_to: int
    rows: int


class TimePassed(msgspec.Struct, frozen=True, tag=True):
    """A time asked for by `WakeAt` has come, or somebody just looked at the clock."""


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    """Finish the waves under way and start no more."""


Event = (
    SlotsChanged
    | ItemsRead
    | FilesLooked
    | ReceiptArrived
    | WaveLost
    | Committed
    | CommitFailed
    | LogReopened
    | ReopenFailed
    | SnapshotFound
    | Displayed
    | TimePassed
    | StopRequested
)


class StartWave(msgspec.Struct, frozen=True, tag=True):
    order: Order


class AbandonWave(msgspec.Struct, frozen=True, tag=True):
    """The wave is late: do not wait for it, and free its core if that can be done."""

    wave: int
    slot: int


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Append these items as one entry: all of them become true together."""

    ticket: int
    items: list[JournalItem]


class ReopenLog(msgspec.Struct, frozen=True, tag=True):
    """Try to open the journal anew; the answer is `LogReopened` or `ReopenFailed`."""


class LookForFiles(msgspec.Struct, frozen=True, tag=True):
    source: str


class LookForSnapshot(msgspec.Struct, frozen=True, tag=True):
    """See whether this snapshot is complete; answer only if it is, or if its writer has given up."""

    stage: str
    shard: int
    bucket_end: int
    path: str


class DisplayRows(msgspec.Struct, frozen=True, tag=True):
    """Print rows of a stream, for a console sink."""

    sink: str
    stream: str
    bucket_from: int
    bucket_to: int
    frames: list[Published]


class WakeAt(msgspec.Struct, frozen=True, tag=True):
    """Say `TimePassed` at this time, at the latest."""

    at_us: int


class Trim(msgspec.Struct, frozen=True, tag=True):
    """Delete what nobody needs: rows of each stream below its bucket, and snapshots that a newer one replaces."""

    keep_from: dict[str, int]


class Warn(msgspec.Struct, frozen=True, tag=True):
    """Tell the user now; what must outlive the process is `Reported` besides."""

    message: str
    stage: str | None = None


class Finish(msgspec.Struct, frozen=True, tag=True):
    """The node is done: with everything (`error` None), or because of an error that going on would not mend."""

    error: str | None = None
    message: str = ""


Command = (
    StartWave
    | AbandonWave
    | Commit
    | ReopenLog
    | LookForFiles
    | LookForSnapshot
    | DisplayRows
    | WakeAt
    | Trim
    | Warn
    | Finish
)
