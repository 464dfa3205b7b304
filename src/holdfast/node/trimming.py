"""Delete what nobody needs any more of the streams that a node writes.

Guarantees:
    * Nothing is deleted that a unit's replay, a sink, a named consumer or the time to retain needs; what goes is taken
      out of the journal first.
    * Whatever became of the journal is told, even where a file could not be deleted afterwards: a node that did not
      know of it would order work on frames that are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Protocol

from holdfast.connect.lease import leases
from holdfast.log.ledger import Ledger
from holdfast.log.reconcile import segment_sizes
from holdfast.log.retention import Decision, Need, decide
from holdfast.log.rewrite import rewrite
from holdfast.model import FIRST_BUCKET, JournalItem
from holdfast.ports import Store


class Journal(Protocol):
    """What trimming needs of a `StreamLog`."""

    @property
    def names(self) -> list[str]: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def folders_closed(self) -> frozenset[str]: ...
    def copies_folder(self, stream: str) -> str: ...
    def commit(self, items: Sequence[JournalItem]) -> Future[int]: ...


class StreamTrimmer:
    """Trims the streams of one journal. For one thread."""

    def __init__(
        self, store: Store, journal: Journal, retain_buckets: int, told: Callable[[list[JournalItem]], None]
    ) -> None:
        self._store = store
        self._journal = journal
        self._retain_buckets = retain_buckets
        self._told = told

    def trim(self, keep_from: dict[str, int], now_us: int) -> None:
        """Drop the rows of each stream below its bucket, as far as nobody else needs them."""
        own = {stream: bucket for stream, bucket in keep_from.items() if stream in self._journal.names}
        needs = {stream: self._needs(stream, bucket, now_us) for stream, bucket in own.items()}
        needs = {stream: wanted for stream, wanted in needs.items() if min(n.bucket for n in wanted) > FIRST_BUCKET}
        sizes = {stream: segment_sizes(self._store, stream) for stream in needs}
        # A segment of an earlier life of the node is never written to again, whatever was committed in its folder.
        # Of its own copies none is being written now.
        closed = self._journal.folders_closed | {self._journal.copies_folder(stream) for stream in needs}
        for decision in decide(self._journal.ledger, needs, sizes, closed_folders=closed):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        if decision.trimmed is not None:
            self._commit([decision.trimmed])
        for path in decision.delete:
            self._store.delete(path)
        if decision.rewrite:
            folder = self._journal.copies_folder(decision.stream)
            moved = rewrite(self._store, self._journal.ledger, decision.stream, decision.rewrite, folder).moved
            self._commit(moved)

    def _commit(self, items: Collection[JournalItem]) -> None:
        """Make items part of the journal, then tell of them."""
        if items:
            self._journal.commit(list(items)).result()
            self._told(list(items))

    def _needs(self, stream: str, bucket: int, now_us: int) -> list[Need]:
        """Return who needs the stream from where on, the time to retain among them."""
        complete = self._journal.ledger.stream_bucket_end(stream)
        # A side stream has no boundary of its own; then the pipeline's word counts.
        kept = bucket if complete is None else complete - self._retain_buckets
        needs = [Need("the pipeline", bucket), Need("the time to retain", kept)]
        needs += [
            Need(f"consumer {held.name}", held.bucket) for held in leases(self._store, stream) if held.holds(now_us)
        ]
        return needs
