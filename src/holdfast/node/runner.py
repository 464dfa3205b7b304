"""Run a node: bring events to the decider, and carry out what it says. Nothing here decides.

One thread calls the decider; the others only put events into its queue:

    journal's commit thread     Committed, CommitFailed
    one per producer's stream   ItemsRead
    files thread                FilesLooked
    housekeeping thread         SnapshotFound, Displayed, what was trimmed
    Spark's accumulator thread  ReceiptArrived

Guarantees:
    * Commands are carried out in the order in which they were given.
    * When the loop ends, for whatever reason, the handle is told, the log is closed and no thread is left.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from holdfast.connect.files import FileFinder
from holdfast.errors import CommitRefused, Fenced, HoldfastError, PipelineFailed, StoreUnavailable
from holdfast.log.ledger import Ledger
from holdfast.log.stream_log import StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.model import JournalItem
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.handle import PipelineHandle, error_of
from holdfast.node.housekeeping import Housekeeping, chunk_found
from holdfast.node.messages import Order, Receipt
from holdfast.node.options import NodeOptions
from holdfast.node.progress import ProgressMeter
from holdfast.plan import FilesSource, ProducerSource, Topology
from holdfast.ports import Store

_log = logging.getLogger("holdfast")
LOST_CHECK_S = 0.05


class Waves(Protocol):
    """Whoever runs orders: Spark, or a test."""

    def slots(self) -> list[int]: ...
    def send(self, order: Order) -> None: ...
    def lost(self) -> list[tuple[int, int, str]]: ...
    def abandon(self, wave: int, slot: int) -> None: ...


class NodeRunner:
    """The loop of one node."""

    def __init__(
        self,
        topology: Topology,
        pipeline_id: str,
        store: Store,
        log: StreamLog,
        waves_of: Callable[[Callable[[Receipt], None]], Waves],
        options: NodeOptions,
    ) -> None:
        self._topology = topology
        self._store = store
        self._log = log
        self._options = options
        self._queue: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._readers: list[StreamReader] = []
        self._threads: list[threading.Thread] = []
        self._files = ThreadPoolExecutor(1, thread_name_prefix="holdfast-files")
        self._finders = {
            source.name: FileFinder(source.origin)
            for source in topology.sources
            if isinstance(source.origin, FilesSource)
        }
        self._housekeeping = Housekeeping(topology, store, log, options, self._queue.put)
        self._busy: dict[int, float] = {}
        self._failure: HoldfastError | None = None
        self._finished = False
        self.handle = PipelineHandle(pipeline_id, topology.name, self.request_stop)
        self._decider = self._make_decider()
        self._meter = ProgressMeter(self._decider.situation, pipeline_id)
        self._waves = waves_of(lambda receipt: self._queue.put(events.ReceiptArrived(receipt)))

    def _make_decider(self) -> NodeDecider:
        ledger = Ledger.deserialize(self._log.ledger.serialize())
        for source in self._topology.sources:
            if isinstance(source.origin, ProducerSource) and source.name not in self._log.names:
                reader = StreamReader(self._store, source.name)
                reader.poll()
                if reader.started:
                    ledger.absorb(Ledger.deserialize(reader.ledger.serialize()))
                self._readers.append(reader)
        term = max(self._log.term.numbers.values())
        producers = {source.name for source in self._topology.sources if isinstance(source.origin, ProducerSource)}
        adopted = frozenset(producers & set(self._log.names))
        return NodeDecider(self._topology, ledger, self._log.term.owner, term, self._options, _now_us(), adopted)

    def start(self) -> PipelineHandle:
        """Start the loop on a thread of its own, and return the handle."""
        threading.Thread(target=self._run, name="holdfast-node", daemon=True).start()
        return self.handle

    def request_stop(self) -> None:
        """Ask the loop to stop after the waves under way. From any thread, also from a signal handler."""
        self._queue.put(events.StopRequested())

    # The loop

    def _run(self) -> None:
        error: HoldfastError | None = None
        try:
            self._follow_producers()
            self._queue.put(events.SlotsChanged(self._waves.slots()))
            self._loop()
            error = self._failure
        except HoldfastError as raised:
            error = raised
        except Exception as raised:
            _log.exception("the node failed")
            error = PipelineFailed(f"the node failed: {raised!r}. Nothing committed is lost; start it again")
        finally:
            self._close()
            self.handle.ended(error)

    def _loop(self) -> None:
        wake_us = 0
        while not self._finished:
            event = self._next_event(wake_us)
            now_us = _now_us()
            self._note(event)
            for command in self._decider.handle(event, now_us):
                if isinstance(command, events.WakeAt):
                    wake_us = command.at_us
                else:
                    self._carry_out(command)
            progress = self._meter.report(now_us)
            if progress is not None:
                self.handle.progressed(progress)

    def _next_event(self, wake_us: int) -> events.Event:
        """Wait for the next event, for the time asked for, or until a wave may have been lost."""
        while True:
            left_s = max(0.0, (wake_us - _now_us()) / 1e6)
            try:
                return self._queue.get(timeout=min(left_s, LOST_CHECK_S) if self._busy else left_s)
            except queue.Empty:
                self._check_lost()
                if _now_us() >= wake_us and self._queue.empty():
                    return events.TimePassed()

    def _check_lost(self) -> None:
        """Look for jobs that ended without a receipt; a wave that is not yet due an answer is not looked at."""
        if any(time.monotonic() - started > LOST_CHECK_S for started in self._busy.values()):
            for wave, slot, reason in self._waves.lost():
                self._queue.put(events.WaveLost(wave, slot, reason))

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.ReceiptArrived):
            self._busy.pop(event.receipt.wave, None)
            self._meter.receipt(event.receipt)
        elif isinstance(event, events.WaveLost):
            self._busy.pop(event.wave, None)
        elif isinstance(event, events.Committed):
            self._meter.committed(event.items)

    # Commands

    def _carry_out(self, command: events.Command) -> None:
        match command:
            case events.StartWave(order):
                self._busy[order.wave] = time.monotonic()
                self._waves.send(order)
            case events.Commit(ticket, items):
                self._log.commit(items).add_done_callback(self._answer(ticket, items))
            case events.LookForFiles(source):
                self._files.submit(self._guarded, self._look_for_files, source)
            case events.AbandonWave(wave, slot):
                self._busy.pop(wave, None)
                self._waves.abandon(wave, slot)
            case events.ReopenLog():
                self._files.submit(self._guarded, self._reopen)
            case events.LookForSnapshot() | events.DisplayRows() | events.Trim():
                self._housekeeping.submit(command)
            case events.Warn(message):
                _log.warning("%s", message)
                self._meter.warned(message)
            case events.Finish(error, message):
                self._failure = None if error is None else error_of(error, message)
                self._finished = True
            case _:
                raise AssertionError(f"no way to carry out {command}")

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
        self._failure = error_of(kind, str(error))
        self._finished = True
        self._queue.put(events.TimePassed())

    def _reopen(self) -> None:
        try:
            self._log.reopen()
        except StoreUnavailable:
            return
        self._queue.put(events.LogReopened())

    def _look_for_files(self, name: str) -> None:
        at_us = _now_us()
        look = self._finders[name].look(self._log.ledger.files(name))
        for message in look.changed:
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
            self._fail_with(PipelineFailed(f"{error!r}"))

    def _fail_with(self, error: HoldfastError) -> None:
        self._failure = error
        self._finished = True
        self._queue.put(events.TimePassed())

    # Producers' streams

    def _follow_producers(self) -> None:
        for reader in self._readers:
            thread = threading.Thread(target=self._follow, args=(reader,), name=f"holdfast-{reader.stream}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow(self, reader: StreamReader) -> None:
        try:
            while not self._stopping.is_set():
                items = reader.poll()
                if items:
                    self._queue.put(events.ItemsRead(items))
                elif not self._stopping.is_set():
                    reader.wait(1.0)
        except HoldfastError as error:
            self._fail_with(error)
        finally:
            reader.close()

    def _close(self) -> None:
        self._stopping.set()
        for reader in self._readers:
            reader.wake()
        for thread in self._threads:
            thread.join()
        self._files.shutdown(wait=True, cancel_futures=True)
        self._housekeeping.close()
        self._log.close()


def _now_us() -> int:
    return time.time_ns() // 1000
