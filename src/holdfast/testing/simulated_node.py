"""A node's life: the real decider and the real log, run as `node.runner` runs them, on virtual time.

Guarantees:
    * Events reach the decider in the order in which they were put, each after a random while.
    * A node that is fenced stops by itself; one that is told that its commit contradicts what is committed is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.connect.catalog import load
from holdfast.errors import CommitRefused, Fenced, HoldfastError, StoreUnavailable, StreamTaken
from holdfast.log.ledger import Ledger
from holdfast.log.rewrite import rewrite
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import has_terms
from holdfast.model import FIRST_BUCKET, JournalItem, Moved, Published, Trimmed
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.messages import Order, Receipt
from holdfast.node.ranges import rows_in_order
from holdfast.node.trimming import StreamTrimmer
from holdfast.plan import FilesSource, ProducerSource
from holdfast.testing.faulty_disk import How
from holdfast.testing.simulated_slots import SlotProcess
from holdfast.testing.simulated_stage import SCHEMA, Row, rows_of
from holdfast.testing.timeline import Process, Timeline

if TYPE_CHECKING:
    from holdfast.testing.simulated_world import World

LOG_OPTIONS = LogOptions(segment_bytes=1500, journal_bytes=6000, commit_thread=False)


class EagerLog:
    """A log whose commits are written at once, for an errand that waits for them as a thread of its own would."""

    def __init__(self, log: StreamLog, timeline: Timeline) -> None:
        self._journal = log
        self._timeline = timeline

    @property
    def names(self) -> list[str]:
        return self._journal.names

    @property
    def ledger(self) -> Ledger:
        return self._journal.ledger

    @property
    def folders_closed(self) -> frozenset[str]:
        return self._journal.folders_closed

    def copies_folder(self, stream: str) -> str:
        return self._journal.copies_folder(stream)

    def commit(self, items: Sequence[JournalItem]) -> Future[int]:
        for kind in (Trimmed, Moved):
            if any(isinstance(item, kind) for item in items):
                self._timeline.count(f"frames were {kind.__name__.lower()}")
        future = self._journal.commit(items)
        self._journal.flush()
        return future


class NodeProcess(Process):
    """One life of a node."""

    def __init__(self, world: World, name: str, available_now: bool) -> None:
        super().__init__(world.timeline, name, world.disk.process(name))
        self.world = world
        self.options = msgspec.structs.replace(world.options, available_now=available_now)
        self.finished = False
        self.committed = False
        """Whether an entry of this life is in the journal: before that it is still starting."""
        self.decider: NodeDecider | None = None
        self._log: StreamLog | None = None
        self._readers: list[StreamReader] = []
        self._slots: dict[int, SlotProcess] = {}
        self._worker_number = 0
        self._put_us = 0
        self._wake_number = 0

    def open(self) -> None:
        """Take the terms over, and begin where the journal ends."""
        world = self.world
        if self.timeline.chance(world.rates.restart_killed):
            number = len(world.disk.operations) + self.timeline.random.randint(0, 25)
            world.disk.fail_at(number, self.timeline.random.choice(list(How)), crash=True)
        world.taking()
        overlapped = [node for node in world.living_nodes if node is not self and node.is_open]
        try:
            self._log = StreamLog.open(
                self.store,
                world.node_streams,
                self.name,
                shards=world.shards,
                bucket_width_us=world.width_us,
                options=LOG_OPTIONS,
            )
            self.decider = self._make_decider(self._log)
        except (StreamTaken, Fenced, StoreUnavailable) as error:
            self.timeline.count(f"a start failed: {type(error).__name__}")
            # Who holds a stream is told with a process number, which is not the seed's.
            self.die(f"cannot start: {'it is taken' if isinstance(error, StreamTaken) else error}")
            return
        self.timeline.tell(self.name, f"starts, term {max(self._log.term.numbers.values())}")
        retain_buckets = self.options.retain_us // world.width_us
        self._trimmer = StreamTrimmer(
            self.store,
            EagerLog(self._log, self.timeline),
            retain_buckets,
            lambda items: self.put(events.ItemsRead(items)),
        )
        world.took(self._log.term)
        if overlapped:
            self.timeline.count("a node was taken over while it lived")
        self.change_slots(world.slots)
        for reader in self._readers:
            self._follow(reader)

    def _make_decider(self, log: StreamLog) -> NodeDecider:
        ledger = Ledger.deserialize(log.ledger.serialize())
        unread: set[str] = set()
        for source in self.world.topology.sources:
            if isinstance(source.origin, ProducerSource):
                reader = StreamReader(self.store, source.name)
                reader.poll()
                if reader.started:
                    ledger.absorb(Ledger.deserialize(reader.ledger.serialize()))
                elif has_terms(self.store, source.name):
                    self.timeline.count("a stream could not be read at the start")
                    unread.add(source.name)
                self._readers.append(reader)
        term = max(log.term.numbers.values())
        return NodeDecider(
            self.world.topology,
            ledger,
            self.name,
            term,
            self.options,
            self.timeline.now_us,
            unread=frozenset(unread),
            added=frozenset(load(self.store).added),
        )

    @property
    def is_open(self) -> bool:
        return self._log is not None

    def died(self, reason: str) -> None:
        self.timeline.tell(self.name, f"ends: {reason}")
        if not self.committed:
            self.timeline.count("a node died in its start")
        for slot in self._slots.values():
            # Spark kills the tasks of a dead driver some time later; until then they write on.
            slot.on_gone = lambda reason: None
            slot.zombie = slot.zombie or slot.busy
            slot.soon(400_000, partial(slot.die, "its node is gone"))
        self.world.node_ended(self)

    # Events

    def put(self, event: events.Event) -> None:
        """Put an event into the node's queue."""
        self._put_us = max(self._put_us + 1, self.timeline.now_us + self.timeline.random.randint(1, 2_000))
        self.later(self._put_us - self.timeline.now_us, lambda: self._handle(event))

    def change_slots(self, slots: list[int]) -> None:
        # One that is still starting reads them when it has.
        if self.decider is not None:
            self.put(events.SlotsChanged(slots, {slot: f"host{self.world.host_of(slot)}" for slot in slots}))

    def _follow(self, reader: StreamReader) -> None:
        items = reader.poll()
        if items:
            self.put(events.ItemsRead(items))
        self.soon(20_000, lambda: self._follow(reader))

    def _handle(self, event: events.Event) -> None:
        assert self.decider is not None, "events come after the start"
        if self.finished:
            return
        self.timeline.count(f"event {type(event).__name__}")
        if isinstance(event, events.ReceiptArrived) and not self._is_awaited(event.receipt):
            self.timeline.count("a receipt came that nobody waited for")
        for command in self.decider.handle(event, self.timeline.now_us):
            self.timeline.count(f"command {type(command).__name__}")
            self._carry_out(command)
        self.world.looked_at(self.decider)

    def _is_awaited(self, receipt: Receipt) -> bool:
        assert self.decider is not None, "events come after the start"
        slot = self.decider.situation.slots.get(receipt.slot)
        return slot is not None and slot.order is not None and slot.order.wave == receipt.wave

    def request_stop(self) -> None:
        self.put(events.StopRequested())

    # Commands

    def _carry_out(self, command: events.Command) -> None:
        match command:
            case events.StartWave(order):
                self._send(order)
            case events.Commit(ticket, items):
                self._commit(ticket, items)
            case events.WakeAt(at_us):
                self._wake_number += 1
                self.later(at_us - self.timeline.now_us, partial(self._wake, self._wake_number))
            case events.LookForFiles(source):
                self.soon(10_000, lambda: self._look_for_files(source))
            case events.AbandonWave(wave, slot):
                self.timeline.tell(self.name, f"abandons wave {wave} on slot {slot}")
                if slot in self._slots:
                    self._slots[slot].zombie = self._slots[slot].busy
            case events.ReopenLog():
                self.soon(400_000, self._reopen)
            case events.LookForSnapshot():
                self.soon(20_000, lambda: self._look_for_snapshot(command))
            case events.DisplayRows():
                self.soon(20_000, lambda: self._display(command))
            case events.Trim(keep_from):
                self.soon(20_000, lambda: self._trim(keep_from))
            case events.Warn(message):
                self.timeline.tell(self.name, f"warns: {message[:150]}")
            case events.Finish(error, message):
                self._finish(error, message)
            case _:
                raise AssertionError(f"no way to carry out {command}")

    def _wake(self, number: int) -> None:
        if number == self._wake_number:
            self._handle(events.TimePassed())

    def _finish(self, error: str | None, message: str) -> None:
        assert self._log is not None, "it was open"
        if error is not None and not self._log.term.still_held():
            # Its successor has deleted what it needs: it fails on that before it notices that it is fenced.
            self.timeline.count("a node that was taken over gave up")
            self.die(f"gave up: {error}")
            return
        if error is not None:
            self.world.violated(f"{self.name} gave up: {error}: {message}")
        self.finished = True
        self.later(0, self._close)

    def _close(self) -> None:
        assert self._log is not None, "it was open"
        self._log.close()
        self.world.observe(self.world.node_streams)
        if self.options.available_now and self.decider is not None and not self.decider.stopping:
            self._check_ends()
        self.die("finished")

    def _check_ends(self) -> None:
        """Who reads a stream to its end must come to one."""
        for stage in self.world.topology.stages:
            ledger = self.world.ledger(stage.name)
            reached = {unit.bucket_end for unit in ledger.units(stage.name).values()}
            if reached and reached != {ledger.ended(stage.name)}:
                self.world.violated(f"{stage.name} is over at {ledger.ended(stage.name)}, its units are at {reached}")

    # Slots

    def _send(self, order: Order) -> None:
        worker = self._slots.get(order.slot)
        if worker is None or not worker.alive or worker.busy:
            # An abandoned task still has its process: Spark starts another one.
            worker = self._slots[order.slot] = self._new_worker(order.slot)
        worker.busy = True
        worker.on_gone = lambda reason: self._lost(order, reason)
        worker.soon(2_000, lambda: worker.start(order, lambda receipt: self._receipt(order, receipt)))
        works = ", ".join(_summary(work) for work in order.works)
        self.timeline.tell(self.name, f"wave {order.wave} to slot {order.slot} ({worker.name}): {works}")

    def _new_worker(self, slot: int) -> SlotProcess:
        self._worker_number += 1
        name = f"{self.name}.{slot}.{self._worker_number}"
        world = self.world
        worker = SlotProcess(self.timeline, name, world.disk, self.name, world.memory_of(slot))
        worker.world = world
        world.workers.append(worker)
        return worker

    def _receipt(self, order: Order, receipt: Receipt) -> None:
        world = self.world
        repeated = self.timeline.chance(world.rates.repeated)
        if repeated:
            self.timeline.count("a receipt was repeated")
        for _ in range(2 if repeated else 1):
            if self.timeline.chance(world.rates.receipt_lost):
                self.timeline.count("a receipt was lost")
                self._lost(order, "its receipt was lost")
                continue
            late = self.timeline.chance(world.rates.late)
            if late:
                self.timeline.count("a receipt was late")
            self.soon(800_000 if late else 1_000, lambda: self.put(events.ReceiptArrived(receipt)))

    def _lost(self, order: Order, reason: str) -> None:
        self.soon(50_000, lambda: self.put(events.WaveLost(order.wave, order.slot, reason)))

    def kill_worker(self, slot: int, reason: str) -> None:
        worker = self._slots.get(slot)
        if worker is not None:
            worker.die(reason)

    # The journal

    def _commit(self, ticket: int, items: list[JournalItem]) -> None:
        assert self._log is not None, "it was open"

        def answer(future: Future[int]) -> None:
            error = future.exception()
            if error is None:
                self.committed = True
                self.world.confirmed += items
                self.put(events.Committed(ticket, items))
            elif isinstance(error, StoreUnavailable):
                self.put(events.CommitFailed(ticket, str(error)))
            elif isinstance(error, CommitRefused):
                self.later(0, lambda: self.world.violated(f"{self.name}: {error}"))
            else:
                self.timeline.count("a node was fenced")
                self.later(0, lambda: self.die(f"fenced: {error}"))

        self._log.commit(items).add_done_callback(answer)
        self.soon(3_000, self._flush)

    def _flush(self) -> None:
        assert self._log is not None, "it was open"
        self._log.flush()
        self.world.observe(self.world.node_streams)

    def _reopen(self) -> None:
        assert self._log is not None, "it was open"
        try:
            self._log.reopen()
        except StoreUnavailable:
            self.put(events.ReopenFailed())
            return
        except Fenced as error:
            self.timeline.count("a node was fenced")
            self.die(f"fenced: {error}")
            return
        self.world.observe(self.world.node_streams)
        self.put(events.LogReopened())

    # Errands

    def _look_for_files(self, source: str) -> None:
        assert self._log is not None and isinstance(self.world.sources[source].origin, FilesSource)
        chunks, settled = self.world.files[source].look(self._log.ledger.files(source), self.timeline.now_us)
        found = [
            events.ChunkFound(f"{c.path}:{c.start}", c.end - c.start, msgspec.Raw(msgspec.json.encode(c)))
            for c in chunks
        ]
        self.put(events.FilesLooked(source, self.timeline.now_us, found, settled))

    def _look_for_snapshot(self, wanted: events.LookForSnapshot) -> None:
        failed = "its writer gave up" if self.store.exists(f"{wanted.path}/failed") else None
        if failed is not None or self.store.exists(f"{wanted.path}/manifest"):
            self.put(events.SnapshotFound(wanted.stage, wanted.shard, wanted.bucket_end, wanted.path, failed))

    def _display(self, wanted: events.DisplayRows) -> None:
        """As in `node.housekeeping`: a frame that has moved is read where it is now; one that is gone ends the node."""
        assert self._log is not None, "it was open"
        try:
            try:
                rows = self._rows_of(wanted, wanted.frames)
            except FileNotFoundError:
                frames = self._log.ledger.frames(wanted.stream, wanted.bucket_from, wanted.bucket_to)
                rows = self._rows_of(wanted, frames)
        except FileNotFoundError as error:
            if self is self.world.nodes[-1]:
                raise
            # A successor has moved it, of which this node, which was paused, does not know.
            self.timeline.count("a node met what its successor had moved")
            self.die(f"a file is gone: {error}")
            return
        name = f"{wanted.bucket_from}-{wanted.bucket_to}"
        self.put(
            events.Displayed(wanted.sink, wanted.stream, wanted.bucket_to, self.world.put_out(wanted.sink, name, rows))
        )

    def _rows_of(self, wanted: events.DisplayRows, frames: list[Published]) -> list[Row]:
        batches = rows_in_order(self.store, frames, SCHEMA, wanted.bucket_from, wanted.bucket_to)
        return [row for batch in batches for row in rows_of(batch)]

    def _trim(self, keep_from: dict[str, int]) -> None:
        assert self._log is not None, "it was open"
        world = self.world
        try:
            self._trimmer.trim(keep_from, self.timeline.now_us)
            self._trim_snapshots(self._log.ledger)
            if self.timeline.chance(world.rewriting):
                self._rewrite_some(self._log.ledger)
        except (HoldfastError, FileNotFoundError) as error:
            # A successor may have deleted it: as in `node.housekeeping` the errand fails, not the node.
            self.timeline.tell(self.name, f"could not trim: {error}")
        self.world.observe(self.world.node_streams)

    def _rewrite_some(self, ledger: Ledger) -> None:
        """Move frames although nobody needs the room: worlds are too small to have segments worth it."""
        stream = self.timeline.random.choice(self.world.node_streams)
        segments = sorted({frame.frame.segment for frame in ledger.all_frames(stream)})
        if segments:
            assert self._log is not None, "it was open"
            folder = self._log.copies_folder(stream)
            moved = rewrite(self.store, ledger, stream, [self.timeline.random.choice(segments)], folder).moved
            EagerLog(self._log, self.timeline).commit(moved).result()
            self.put(events.ItemsRead([*moved]))

    def _trim_snapshots(self, ledger: Ledger) -> None:
        for stage in self.world.topology.stages:
            for shard in range(self.world.shards):
                kept = ledger.snapshots(stage.name, shard)
                newest = max((snapshot.bucket_end for snapshot in kept), default=FIRST_BUCKET)
                folder = f"snapshots/{stage.name}/{shard}"
                for name in self.store.list(folder):
                    old = int(name[1:].rpartition("-")[0]) < newest
                    if old and f"{folder}/{name}" not in [snapshot.path for snapshot in kept]:
                        self.timeline.count("a snapshot was deleted")
                        self.store.delete(f"{folder}/{name}")


def _summary(work: object) -> str:
    """Return a piece of work in a few words."""
    fields = {
        name: value
        for name in ("stage", "shard", "bucket_from", "bucket_to", "bucket_committed", "bucket_replay", "ended", "name")
        if (value := getattr(work, name, None)) is not None
    }
    units = [(unit.shard, unit.bucket_memory, unit.publish_from, unit.snapshot) for unit in getattr(work, "units", [])]
    text = " ".join(f"{name}={value}" for name, value in fields.items())
    return f"{type(work).__name__} {text} {units or ''}".strip()
