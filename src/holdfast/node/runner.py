"""Run a node: bring events to the decider, and carry out what it says. Nothing here decides.

One thread calls the decider; the others only put events into its queue:

    journal's commit thread     Committed, CommitFailed
    one per producer's stream   ItemsRead
    files thread                FilesLooked
    housekeeping thread         SnapshotFound, Displayed, what was trimmed
    Spark's accumulator thread  ReceiptArrived, still as bytes

Guarantees:
    * Commands are carried out in the order in which they were given.
    * When the loop ends, for whatever reason, the handle is told, the log is closed and no thread is left.
    * A thread that fails ends the loop, with the error: a node never goes on with a part of it gone.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from holdfast.clock import WallClock
from holdfast.connect.catalog import load
from holdfast.connect.files import FileFinder
from holdfast.connect.foreign import ForeignStream
from holdfast.errors import CommitRefused, Fenced, HoldfastError, PipelineFailed, StoreUnavailable
from holdfast.log.ledger import Ledger
from holdfast.log.stream_log import StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import has_terms
from holdfast.model import JournalItem
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.handle import PipelineHandle, error_of
from holdfast.node.housekeeping import Housekeeping, chunk_found
from holdfast.node.listening import Listeners
from holdfast.node.messages import RECEIPT_DECODER, Order
from holdfast.node.options import NodeOptions
from holdfast.node.progress import ProgressMeter
from holdfast.plan import FilesSource, Topology
from holdfast.ports import Store

_log = logging.getLogger("holdfast")
LOST_CHECK_S = 0.05
ALIVE_CHECK_S = 1.0


class Waves(Protocol):
    """Whoever runs orders: Spark, or a test."""

    @property
    def look_every_s(self) -> float | None: ...
    def slots_changed(self) -> events.SlotsChanged | None: ...
    def send(self, order: Order) -> None: ...
    def received(self, wave: int, slot: int) -> None: ...
    def lost(self) -> list[tuple[int, int, str]]: ...
    def abandon(self, wave: int, slot: int) -> None: ...
    def close(self) -> None: ...


class Companion(Protocol):
    """Something that runs beside the node, in its process: a query that feeds a source."""

    def start(self, fail: Callable[[HoldfastError], None], warn: Callable[[str], None]) -> None: ...
    def close(self) -> None: ...


class NodeRunner:
    """The loop of one node."""

    def __init__(
        self,
        topology: Topology,
        pipeline_id: str,
        store: Store,
        log: StreamLog,
        waves_of: Callable[[Callable[[bytes], None]], Waves],
        options: NodeOptions,
        companions: Sequence[Companion] = (),
        listeners: Listeners | None = None,
    ) -> None:
        self._companions = companions
        self._topology = topology
        self._store = store
        self._log = log
        self._options = options
        self._clock = WallClock()
        self._queue: queue.SimpleQueue[events.Event | bytes] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._readers: list[StreamReader | ForeignStream] = []
        self._threads: list[threading.Thread] = []
        self._files = ThreadPoolExecutor(1, thread_name_prefix="holdfast-files")
        self._finders = {
            source.name: FileFinder(source.origin)
            for source in topology.sources
            if isinstance(source.origin, FilesSource)
        }
        self._housekeeping = Housekeeping(topology, store, log, options, self._queue.put, self._fail_with)
        self._busy: dict[int, float] = {}
        self._looked_for_lost_s = 0.0
        self._looked_for_slots_s = 0.0
        self._failure: HoldfastError | None = None
        self._finished = False
        self._decider = self._make_decider()
        self._meter = ProgressMeter(self._decider.situation, pipeline_id, log.term.owner)
        first = self._meter.statistics(self._clock.now_us())
        self.handle = PipelineHandle(first, self.request_stop, listeners)
        self._waves_of = waves_of
        self._waves: Waves | None = None

    def _make_decider(self) -> NodeDecider:
        ledger = Ledger.deserialize(self._log.ledger.serialize())
        unread: set[str] = set()
        for source in self._topology.sources:
            if source.is_foreign:
                foreign = ForeignStream(source, self._topology)
                ledger.apply_all(foreign.poll())
                self._readers.append(foreign)
            elif source.has_own_writer and source.name not in self._log.names:
                reader = StreamReader(self._store, source.name)
                reader.poll()
                if reader.started:
                    ledger.absorb(Ledger.deserialize(reader.ledger.serialize()))
                elif has_terms(self._store, source.name):
                    unread.add(source.name)
                self._readers.append(reader)
        term = max(self._log.term.numbers.values())
        producers = {source.name for source in self._topology.sources if source.has_own_writer}
        adopted = frozenset(producers & set(self._log.names))
        return NodeDecider(
            self._topology,
            ledger,
            self._log.term.owner,
            term,
            self._options,
            self._clock.now_us(),
            adopted,
            frozenset(unread),
            frozenset(load(self._store).added),
        )

    def start(self) -> PipelineHandle:
        """Start the loop on a thread of its own, and return the handle."""
        self.handle.started()
        threading.Thread(target=self._run, name="holdfast-node", daemon=True).start()
        return self.handle

    def request_stop(self) -> None:
        """Ask the loop to stop after the waves under way. From any thread, also from a signal handler."""
        self._queue.put(events.StopRequested())

    # The loop

    def _run(self) -> None:
        error: HoldfastError | None = None
        try:
            waves = self._waves = self._waves_of(self._queue.put)
            self._follow_producers()
            for companion in self._companions:
                companion.start(self._fail_with, self._warn)
            self._look_for_slots(waves)
            self._loop(waves)
            error = self._failure
        except HoldfastError as raised:
            error = raised
        except Exception as raised:
            _log.exception("the node failed")
            error = _bug(raised)
        finally:
            closed = self._close()
            self.handle.ended(error or closed)

    def _loop(self, waves: Waves) -> None:
        wake_us = 0
        while not self._finished:
            event = self._next_event(waves, wake_us)
            now_us = self._clock.now_us()
            self._note(waves, event)
            for command in self._decider.handle(event, now_us):
                if isinstance(command, events.WakeAt):
                    wake_us = command.at_us
                else:
                    self._carry_out(waves, command)
            if self._finished or self._meter.due(now_us):
                self.handle.progressed(self._meter.statistics(now_us))

    def _next_event(self, waves: Waves, wake_us: int) -> events.Event:
        """Wait for the next event, for the time asked for, or until a wave may have been lost."""
        while True:
            self._look_for_lost(waves)
            if waves.look_every_s is not None and time.monotonic() - self._looked_for_slots_s >= waves.look_every_s:
                self._look_for_slots(waves)
            left_s = max(0.0, (wake_us - self._clock.now_us()) / 1e6)
            patience_s = min(LOST_CHECK_S if self._busy else ALIVE_CHECK_S, waves.look_every_s or ALIVE_CHECK_S)
            try:
                found = self._queue.get(timeout=min(left_s, patience_s))
            except queue.Empty:
                if self._clock.now_us() >= wake_us:
                    return events.TimePassed()
            else:
                return events.ReceiptArrived(RECEIPT_DECODER.decode(found)) if isinstance(found, bytes) else found

    def _look_for_lost(self, waves: Waves) -> None:
        """Now and then look for jobs that ended without a receipt; waves not yet due an answer cost nothing.

        A node without waves looks too, more rarely: Spark may be gone.
        """
        now_s = time.monotonic()
        is_due = any(now_s - started_s > LOST_CHECK_S for started_s in self._busy.values())
        if now_s - self._looked_for_lost_s >= (LOST_CHECK_S if is_due else ALIVE_CHECK_S):
            self._looked_for_lost_s = now_s
            for wave, slot, reason in waves.lost():
                # Behind its receipt, if that is in the queue already: the decider then knows the wave no more.
                self._queue.put(events.WaveLost(wave, slot, reason))

    def _look_for_slots(self, waves: Waves) -> None:
        self._looked_for_slots_s = time.monotonic()
        changed = waves.slots_changed()
        if changed is not None:
            self._queue.put(changed)

    def _note(self, waves: Waves, event: events.Event) -> None:
        if isinstance(event, events.ReceiptArrived):
            waves.received(event.receipt.wave, event.receipt.slot)
            started_s = self._busy.pop(event.receipt.wave, None)
            self._meter.receipt(event.receipt, None if started_s is None else time.monotonic() - started_s)
        elif isinstance(event, events.WaveLost):
            self._busy.pop(event.wave, None)
        elif isinstance(event, events.Committed | events.ItemsRead):
            self._meter.committed(event.items)

    # Commands

    def _carry_out(self, waves: Waves, command: events.Command) -> None:
        match command:
            case events.StartWave(order):
                self._busy[order.wave] = time.monotonic()
                waves.send(order)
            case events.Commit(ticket, items):
                self._log.commit(items).add_done_callback(self._answer(ticket, items))
            case events.LookForFiles(source):
                self._files.submit(self._guarded, self._look_for_files, source)
            case events.AbandonWave(wave, slot):
                self._busy.pop(wave, None)
                waves.abandon(wave, slot)
            case events.ReopenLog():
                self._files.submit(self._guarded, self._reopen)
            case events.LookForSnapshot() | events.DisplayRows() | events.Trim():
                self._housekeeping.submit(command)
            case events.Warn(message, stage):
                self._warn(message, stage)
            case events.Finish(error, message):
                self._failure = self._failure or (None if error is None else error_of(error, message))
                self._finished = True
            case _:
                raise AssertionError(f"no way to carry out {command}")

    def _warn(self, message: str, stage: str | None = None) -> None:
        _log.warning("%s", message, extra={"stage": stage})
        self._meter.warned(message)

    def _answer(self, ticket: int, items: list[JournalItem]) -> Callable[[Future[int]], None]:
        def answer(future: Future[int]) -> None:
            error = future.exception()
            if error is None:
                self._queue.put(events.Committed(ticket, items))
            elif isinstance(error, StoreUnavailable):
                self._queue.put(events.CommitFailed(ticket, str(error)))
            else:
                self._fail(error)

        return answer

    def _fail(self, error: BaseException) -> None:
        """The journal refuses for good: another node has taken over, or there is a bug of ours."""
        kind = type(error).__name__ if isinstance(error, Fenced | CommitRefused) else "PipelineFailed"
        self._fail_with(error_of(kind, str(error)))

    def _reopen(self) -> None:
        try:
            self._log.reopen()
        except StoreUnavailable:
            self._queue.put(events.ReopenFailed())
            return
        self._queue.put(events.LogReopened())

    def _look_for_files(self, name: str) -> None:
        at_us = self._clock.now_us()
        look = self._finders[name].look(self._log.ledger.files(name))
        for message in look.warnings:
            _log.warning("%s", message)
        chunks = [chunk_found(chunk) for chunk in look.chunks]
        self._queue.put(events.FilesLooked(name, at_us, chunks, look.settled))

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except HoldfastError as error:
            self._fail_with(error)
        except Exception as error:
            _log.exception("a thread of the node failed")
            self._fail_with(_bug(error))

    def _fail_with(self, error: HoldfastError) -> None:
        """End the loop with an error; the first one counts. From any thread."""
        self._failure = self._failure or error
        self._finished = True
        self._queue.put(events.TimePassed())

    # Producers' streams

    def _follow_producers(self) -> None:
        for reader in self._readers:
            name = f"holdfast-{reader.stream}"
            thread = threading.Thread(target=self._guarded, args=(self._follow, reader), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self, reader: StreamReader | ForeignStream) -> None:
        while not self._stopping.is_set():
            items = reader.poll()
            if items:
                self._queue.put(events.ItemsRead(items))
            elif not self._stopping.is_set():
                reader.wait(1.0)

    # The end

    def _close(self) -> HoldfastError | None:
        """Let go of everything; return what went wrong in doing so."""
        self._stopping.set()
        for reader in self._readers:
            reader.wake()
        steps: list[Callable[[], None]] = [companion.close for companion in self._companions]
        steps += [] if self._waves is None else [self._waves.close]
        steps += [thread.join for thread in self._threads]
        steps += [reader.close for reader in self._readers]
        steps += [lambda: self._files.shutdown(wait=True, cancel_futures=True), self._housekeeping.close]
        steps += [self._log.close]
        failed: HoldfastError | None = None
        for step in steps:
            try:
                step()
            except Exception as raised:
                _log.exception("the node could not let go of everything")
                failed = failed or (raised if isinstance(raised, HoldfastError) else _bug(raised))
        return failed


def _bug(error: Exception) -> PipelineFailed:
    return PipelineFailed(f"the node failed: {error!r}. Nothing committed is lost; start it again")
