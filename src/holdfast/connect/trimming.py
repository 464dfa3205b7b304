"""Let go of what a producer's stream holds and nobody needs: stages replay from snapshots, consumers have leases.

A source stream belongs to its producer, so the producer deletes; what is needed it reads from the journals of others.

Invariants:
    * A stage needs its input from the older of its two last snapshots on: the newer may turn out to be unreadable. As
      long as a unit lacks them, everything is kept; so is a stream that nobody reads.
    * What goes is first taken out of the journal (`Trimmed`), then deleted.
    * Who reads the stream is asked each time, and stays as it is until the trim is in the journal (`catalog.changing`):
      what a new stage finds when it is added to the pipeline is kept for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection

from holdfast.connect.catalog import Located, changing, load
from holdfast.connect.lease import leases
from holdfast.errors import HoldfastError
from holdfast.log.ledger import Ledger
from holdfast.log.reconcile import segment_paths
from holdfast.log.retention import Decision, Need, decide
from holdfast.log.stream_log import StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.model import FIRST_BUCKET, JournalItem
from holdfast.plan import Stage, Topology
from holdfast.ports import Store

RETAIN_US = 3_600_000_000
"""How long rows are kept that nobody needs, for whoever comes: as long as a node keeps those of its streams."""


class Trimmer:
    """Trims one stream. Any thread may ask; one trims at a time."""

    def __init__(self, located: Located, log: StreamLog) -> None:
        self._store = located.store
        self._stream = located.stream
        self._width_us = located.topology.bucket_width_us
        self._log = log
        self._stages: dict[str, Stage] = {}
        self._readers: list[StreamReader] = []
        self._readers_before: list[StreamReader] = []
        self._read_by(located.topology)
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def trim(
        self,
        open_folders: Collection[str],
        retain_us: int = RETAIN_US,
        is_left: Callable[[str], bool] = lambda folder: False,
    ) -> None:
        """Delete what nobody needs now.

        `open_folders` are those that somebody may be writing to at this moment; a segment there goes when the next one
        is begun. `is_left` knows more folders that nobody writes to any more, whether or not they ever got a frame.
        """
        with self._lock:
            if self._stopped.is_set():
                return
            with changing(self._store) as held:
                if not held:
                    return
                decisions = self._decide(open_folders, retain_us, is_left)
                trimmed: list[JournalItem] = [d.trimmed for d in decisions if d.trimmed is not None]
                if trimmed:
                    self._log.commit(trimmed).result()
            for decision in decisions:
                for path in decision.delete:
                    self._store.delete(path)

    def _decide(self, open_folders: Collection[str], retain_us: int, is_left: Callable[[str], bool]) -> list[Decision]:
        """Return what may go now."""
        self._read_by(load(self._store).topology)
        needs = self._needs(retain_us)
        if not needs or min(need.bucket for need in needs) == FIRST_BUCKET:
            return []
        paths = segment_paths(self._store, self._stream)
        sizes = {path: size for path in paths if (size := _size(self._store, path))}
        # A folder that neither was there at the start nor ever got a frame of this log may be a successor's.
        known = self._log.folders_closed | self._log.ledger.segment_last(self._stream).keys()
        known |= {folder for path in sizes if is_left(folder := path.rpartition("/")[0])}
        # Open folders may be known by a rule alone: they are asked one by one.
        closed = {folder for folder in known if folder not in open_folders}
        return decide(self._log.ledger, {self._stream: needs}, {self._stream: sizes}, closed_folders=closed)

    def _read_by(self, topology: Topology) -> None:
        """Follow the stages that read the stream now."""
        now = {stage.name: stage for stage in topology.stages if any(i.stream == self._stream for i in stage.inputs)}
        if now.keys() != self._stages.keys():
            # Closed at the end: whoever closes this may be waking them at this moment.
            self._readers_before += self._readers
            self._readers = [StreamReader(self._store, name) for name in now]
        self._stages = now

    def wait(self, timeout_s: float) -> None:
        """Wait until a stage has committed something, or the time is over."""
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=max(timeout_s, 0.0)):
            return
        try:
            left_s = max(deadline - time.monotonic(), 0.0)
            if self._readers:
                self._readers[0].wait(left_s)
            else:
                self._stopped.wait(left_s)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Stop waiting, and give the descriptors back."""
        self._stopped.set()
        for reader in self._readers:
            reader.wake()
        with self._lock:
            for reader in [*self._readers, *self._readers_before]:
                reader.close()
            self._readers.clear()
            self._readers_before.clear()

    def _needs(self, retain_us: int) -> list[Need]:
        """Return who needs the stream from which bucket on; nobody where no stage and no consumer reads it."""
        needs = []
        for reader in self._readers:
            reader.poll()
            needs.append(Need(reader.stream, replay_from(reader.ledger, self._stages[reader.stream])))
        now_us = time.time_ns() // 1000
        # An unreadable lease may be one that holds: nothing is deleted then.
        try:
            held = [lease for lease in leases(self._store, self._stream) if lease.holds(now_us)]
        except HoldfastError:
            return [Need("a consumer", FIRST_BUCKET)]
        needs += [Need(f"consumer {lease.name}", lease.bucket) for lease in held]
        complete = self._log.ledger.stream_bucket_end(self._stream)
        if needs and retain_us and complete is not None:
            needs.append(Need("the time to retain", complete - retain_us // self._width_us))
        return needs


def replay_from(ledger: Ledger, stage: Stage) -> int:
    """Return the oldest bucket of its inputs that a stage may have to read again."""
    return min(_unit_replay_from(ledger, stage, shard) for shard in range(ledger.shards))


def _unit_replay_from(ledger: Ledger, stage: Stage, shard: int) -> int:
    if stage.aggregation is None:
        # What keeps no state has nothing to rebuild.
        unit = ledger.unit(stage.name, shard)
        return _begins(ledger, stage) if unit is None else unit.bucket_end
    kept = [snapshot.bucket_end for snapshot in ledger.snapshots(stage.name, shard)]
    return kept[0] if len(kept) > 1 else _begins(ledger, stage)


def _begins(ledger: Ledger, stage: Stage) -> int:
    """Return the bucket as of which a unit of the stage may be empty."""
    begun = ledger.begun(stage.name)
    return FIRST_BUCKET if begun is None else begun.bucket_start


def _size(store: Store, path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return store.size(path)
    return 0
