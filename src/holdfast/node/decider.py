"""The node's decisions: events in, commands out. No I/O, no clock, no threads.

Invariants:
    * A unit's next wave starts only when its last one is committed: its wave log holds one wave.
    * What a slot put out becomes true in one entry with the unit's new position. A receipt of a wave that the node does
      not wait for is dropped, so a late task changes nothing.
    * A commit that failed is said again when the journal is open again: its frames are synced, nothing is computed
      twice.
    * The same events give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.connect.following import range_end
from holdfast.errors import BadRow, StoreUnfit
from holdfast.log.ledger import Ledger, stream_of
from holdfast.model import FIRST_BUCKET, JournalItem, Published, Reported, SnapshotVerified, UnitCommitted
from holdfast.node import events
from holdfast.node.beginning import Beginning
from holdfast.node.delivery import Delivery, DeliveryPhase, DeliveryStep
from holdfast.node.ending import Ending
from holdfast.node.intake import Intake
from holdfast.node.messages import (
    Attached,
    AttachWork,
    Delivered,
    DeliverWork,
    Failed,
    ForgetWork,
    Forgotten,
    Ingested,
    IngestWork,
    Order,
    Processed,
    ProcessWork,
    Result,
    Skipped,
    StateAbsent,
    UnitProcessed,
    UnitWork,
    Work,
)
from holdfast.node.options import NodeOptions
from holdfast.node.placement import Placed, place
from holdfast.node.scheduling import Scheduler
from holdfast.node.situation import JOBS_SLOT, Situation, SlotState, Ticket
from holdfast.node.trouble import HOPELESS_AFTER, subject_of
from holdfast.node.units import Phase, Step, Unit
from holdfast.plan import REJECTS, ConsoleSink, FilesSource, Stage, Topology

BACKOFF_FIRST_US = 50_000
BACKOFF_MAX_US = 2_000_000


class NodeDecider:
    """One node of one pipeline."""

    def __init__(
        self,
        topology: Topology,
        ledger: Ledger,
        node: str,
        term: int,
        options: NodeOptions,
        now_us: int,
        adopted: frozenset[str] = frozenset(),
        unread: frozenset[str] = frozenset(),
        added: frozenset[str] = frozenset(),
    ) -> None:
        self.node = node
        self.situation = Situation(topology, ledger, options, now_us, adopted)
        self.log_open = True
        self.stopping = False
        self.finished = False
        self._scheduler = Scheduler(self.situation, term << 20)
        self._commands: list[events.Command] = []
        self._wave = 0
        self._ticket = 0
        self._looking: set[str] = set()
        self._looked_us: dict[str, int] = {}
        self._idle_committed_us: dict[str, int] = {}
        self._opened_us = now_us
        self._slotless_us: int | None = now_us
        self._trimmed_us = now_us
        self._reopen_us: int | None = None
        self._reopening = False
        self._began = False
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.SlotsChanged: self._slots_changed,
            events.ItemsRead: self._items_read,
            events.FilesLooked: self._files_looked,
            events.ReceiptArrived: self._receipt_arrived,
            events.WaveLost: self._wave_lost,
            events.Committed: self._committed,
            events.CommitFailed: self._commit_failed,
            events.LogReopened: self._log_reopened,
            events.ReopenFailed: self._reopen_failed,
            events.SnapshotFound: self._snapshot_found,
            events.Displayed: self._displayed,
            events.TimePassed: lambda event: None,
            events.StopRequested: self._stop_requested,
        }
        self._open()
        self._ending = Ending(self.situation, unread)
        self._beginning = Beginning(self.situation, added)
        self._begin_sinks()

    def handle(self, event: events.Event, now_us: int) -> list[events.Command]:
        """Take an event; return what is to be done now."""
        self.situation.now_us = max(self.situation.now_us, now_us)
        if not self.finished:
            self._handlers[type(event)](event)
        if not self.finished and not self._began:
            self._begin_stages()
        if not self.finished:
            self._go_on()
        commands, self._commands = self._commands, []
        return commands

    # At the start

    def _open(self) -> None:
        """Go on where the ledger ends."""
        here = self.situation
        here.stages = {stage.name: stage for stage in here.topology.stages}
        for source in here.topology.sources:
            if isinstance(source.origin, FilesSource) or source.name in here.adopted:
                boundary_us = here.ledger.boundary_us(source.name)
                newest_us = here.ledger.event_time_max_us(source.name)
                here.intakes[source.name] = Intake(source, here.topology.bucket_width_us, boundary_us, newest_us)
        stages_begun = ((name, here.ledger.begun(name)) for name in here.stages)
        here.begun = {name: begun for name, begun in stages_begun if begun is not None}
        count = len(here.stages) * here.topology.shards
        for stage in here.topology.stages:
            for shard in range(here.topology.shards):
                unit = self._open_unit(stage.name, shard)
                unit.snapshot_due_us = here.now_us + (stage.checkpoint_every_us or 0) * (len(here.units) + 1) // count
                here.units[unit.key] = unit
                if stage.transform is not None:
                    here.slots.setdefault(JOBS_SLOT, SlotState(JOBS_SLOT))
                    unit.slot = JOBS_SLOT
        for sink in here.topology.sinks:
            position = here.ledger.sinks.get(sink.name)
            done = None if position is None else position.bucket_end
            delivery = Delivery(sink, FIRST_BUCKET if done is None else done)
            if position is not None and position.intended is not None:
                delivery.resume(position.intended)
            here.deliveries[sink.name] = delivery

    def _open_unit(self, stage: str, shard: int) -> Unit:
        progress = self.situation.ledger.unit(stage, shard)
        bucket = self.situation.begins(stage) if progress is None else progress.bucket_end
        return Unit(stage, shard, bucket_committed=bucket, bucket_memory=bucket)

    def _begin_sinks(self) -> None:
        items, messages = self._beginning.begin_sinks()
        self._commit(items)
        for message in messages:
            self._warn(message)

    def _begin_stages(self) -> None:
        """Let new stages begin, as soon as their inputs can be read; see who has to catch up."""
        items, messages = self._beginning.begin(self._ending.unread)
        self._commit(items)
        for message in messages:
            self._warn(message)
        if not self.situation.waiting and not self._began:
            self._began = True
            try:
                self._beginning.check_returned()
            except StoreUnfit as error:
                self._finish_with("StoreUnfit", str(error))
            self._scheduler.note_who_is_behind()

    # Events

    def _slots_changed(self, event: events.SlotsChanged) -> None:
        here = self.situation
        for number in [number for number in here.slots if number not in (*event.slots, JOBS_SLOT)]:
            self._take_back(here.slots.pop(number))
            here.troubles.slot_gone(number)
        for number in event.slots:
            here.slots.setdefault(number, SlotState(number))
        come = {*event.hosts.values()} - {*here.hosts.values()}
        here.hosts = dict(event.hosts)
        self._slotless_us = None if event.slots else here.now_us
        for host in come:
            # It may have been away while units it holds went on elsewhere.
            for unit in here.units.values():
                if unit.host not in (None, host):
                    self._leave_behind(unit, host)
        if event.slots:
            self._place(sorted(event.slots))

    def _place(self, slots: list[int]) -> None:
        """Spread the units over the slots there are; those of jobs stay where they are."""
        here = self.situation
        load = dict.fromkeys(slots, 0)
        for stage in [name for name, each in here.stages.items() if each.transform is None]:
            placed = [
                Placed(unit.shard, unit.slot if unit.slot in here.slots else None, unit.host)
                for unit in here.units_of(stage)
            ]
            for shard, slot in place(placed, slots, here.hosts, load).items():
                load[slot] += 1
                unit = here.units[stage, shard]
                if unit.slot != slot:
                    self._move(unit, slot)

    def _move(self, unit: Unit, slot: int) -> None:
        """Give the unit another slot. One that is at work finishes first: `moved` sends it on after that."""
        if unit.phase in (Phase.ATTACHING, Phase.RUNNING, Phase.COMMITTING):
            unit.moved = True
        elif unit.phase is Phase.READY:
            unit.step(Step.STATE_LOST)
        unit.slot = slot

    def _items_read(self, event: events.ItemsRead) -> None:
        for item in event.items:
            self.situation.ledger.apply(item)
        self._ending.note_read(map(stream_of, event.items))

    def _files_looked(self, event: events.FilesLooked) -> None:
        here = self.situation
        self._looking.discard(event.source)
        self._looked_us[event.source] = here.now_us
        intake = here.intakes[event.source]
        if not self._seen_enough(event.source):
            self._commit(intake.looked(event.at_us, event.chunks, event.settled))

    def _seen_enough(self, source: str) -> bool:
        intake = self.situation.intakes[source]
        return self.situation.options.available_now and intake.looks > 0 and intake.settled

    def _receipt_arrived(self, event: events.ReceiptArrived) -> None:
        receipt = event.receipt
        slot = self.situation.slots.get(receipt.slot)
        if slot is None or slot.order is None or slot.order.wave != receipt.wave or receipt.node != self.node:
            return
        order, slot.order = slot.order, None
        self._scheduler.note_time(slot)
        for work, result in zip(order.works, receipt.results, strict=True):
            if not self.finished:
                self._result(slot, work, result)

    def _wave_lost(self, event: events.WaveLost) -> None:
        slot = self.situation.slots.get(event.slot)
        if slot is None or slot.order is None or slot.order.wave != event.wave:
            return
        what = "a job" if slot.number == JOBS_SLOT else f"a task on slot {slot.number}"
        self._failed_once(slot, slot.order.works, f"{what} ended without a receipt: {event.reason}")
        self._take_back(slot)

    def _committed(self, event: events.Committed) -> None:
        here = self.situation
        ticket = here.tickets.pop(event.ticket)
        for item in event.items:
            here.ledger.apply(item)
        for key, bucket_memory, bucket_committed in ticket.units:
            here.units[key].bucket_committed = bucket_committed
            self._wave_done(here.units[key], bucket_memory)
        for name in ticket.intended:
            here.deliveries[name].step(DeliveryStep.INTENT_COMMITTED)
        for name in ticket.concluded:
            here.deliveries[name].concluded()

    def _commit_failed(self, event: events.CommitFailed) -> None:
        if self.log_open:
            self._warn(f"the journal takes no more entries: {event.reason}. Nothing committed is lost; trying again")
        self.log_open = False
        self._reopen_us = self.situation.now_us + self.situation.options.reopen_every_us

    def _log_reopened(self, event: events.LogReopened) -> None:
        self._reopening = False
        self.log_open = True
        self._reopen_us = None
        self._warn("the journal takes entries again")
        for number, ticket in sorted(self.situation.tickets.items()):
            self._commands.append(events.Commit(number, ticket.items))

    def _reopen_failed(self, event: events.ReopenFailed) -> None:
        self._reopening = False

    def _snapshot_found(self, event: events.SnapshotFound) -> None:
        unit = self.situation.units[event.stage, event.shard]
        if unit.snapshot_pending is None or unit.snapshot_pending[1] != event.path:
            return
        if event.failed is not None:
            unit.snapshot_pending = None
            self._warn(f"the snapshot {event.path} was not written: {event.failed}. The one before it still serves")
        elif event.bucket_end <= unit.bucket_committed:
            # One of a wave that the journal does not name yet would be ahead of the truth: it is looked for again.
            unit.snapshot_pending = None
            self._commit([SnapshotVerified(event.stage, event.shard, event.bucket_end, event.path)])

    def _displayed(self, event: events.Displayed) -> None:
        self._conclude(event.sink, event.rows)

    def _stop_requested(self, event: events.StopRequested) -> None:
        self.stopping = True

    # Results of a slot's work

    def _result(self, slot: SlotState, work: Work, result: Result) -> None:
        if not isinstance(result, Failed | StateAbsent | Skipped):
            slot.failures = 0
            self._report(work, self.situation.troubles.succeeded(subject_of(work, slot.number)))
        match work, result:
            case ProcessWork(), Processed():
                self._processed(work, result)
            case AttachWork(), Attached():
                self._attached(slot, work, result)
            case IngestWork(), Ingested():
                self._ingested(result)
            case DeliverWork(), Delivered():
                self._conclude(work.sink, result.rows)
            case ForgetWork(), Forgotten():
                pass
            case _, StateAbsent():
                self._state_absent(work, result)
            case _, Failed():
                self._failed(slot, work, result)
            case _, Skipped():
                self._work_back(work)
            case _:
                raise AssertionError(f"{type(result).__name__} does not answer {type(work).__name__}")

    def _processed(self, work: ProcessWork, result: Processed) -> None:
        ticket = Ticket([])
        for ordered, done in zip(work.units, result.units, strict=True):
            unit = self.situation.units[work.stage, ordered.shard]
            unit.step(Step.PROCESSED)
            ticket.units.append((unit.key, work.bucket_to, max(unit.bucket_committed, work.bucket_to)))
            if done.snapshot is not None:
                unit.snapshot_pending = (work.bucket_to, done.snapshot, self.situation.now_us)
            if work.bucket_to > unit.bucket_committed:
                ticket.items += [*done.published, self._position(work, unit, ordered, done)]
        rows = sum(done.rows_in for done in result.units)
        self._scheduler.learn_rate(work.stage, rows, result.seconds.get("total", 0.0))
        if self._rejects_too_many(ticket.items):
            return
        if ticket.items:
            self._commit(ticket.items, ticket)
            return
        # What was computed again is in the journal already: there is nothing to commit.
        for key, bucket_memory, _ in ticket.units:
            self._wave_done(self.situation.units[key], bucket_memory)

    def _position(self, work: ProcessWork, unit: Unit, ordered: UnitWork, done: UnitProcessed) -> UnitCommitted:
        digests = [digest for digest in done.digests if digest[0] >= ordered.publish_from]
        return UnitCommitted(
            unit.stage,
            unit.shard,
            ordered.generation,
            unit.bucket_committed,
            work.bucket_to,
            digests,
            done.rows_in,
            done.rows_late,
        )

    def _wave_done(self, unit: Unit, bucket_memory: int) -> None:
        unit.step(Step.COMMITTED)
        unit.bucket_memory = bucket_memory
        self._send_on(unit)

    def _attached(self, slot: SlotState, work: AttachWork, result: Attached) -> None:
        unit = self.situation.units[work.stage, work.shard]
        unit.step(Step.ATTACHED)
        here = self.situation
        unit.generation = work.generation
        if slot.number != JOBS_SLOT:
            unit.host = here.hosts.get(slot.number, "")
            # An earlier node may have had it anywhere.
            for host in {*here.hosts.values()} - {unit.host}:
                self._leave_behind(unit, host)
        unit.bucket_memory = result.bucket_memory
        for warning in result.warnings:
            self._warn(warning)
        self._send_on(unit)

    def _leave_behind(self, unit: Unit, host: str) -> None:
        """A host may delete what it holds of the unit: it lives elsewhere."""
        waiting = self.situation.leavings.setdefault(host, [])
        waiting[:] = [work for work in waiting if (work.stage, work.shard) != unit.key]
        waiting.append(ForgetWork(unit.stage, unit.shard, unit.generation))

    def _ingested(self, result: Ingested) -> None:
        try:
            items = self.situation.intakes[result.source].arrived(result, self.situation.now_us)
        except BadRow as error:
            self._finish_with("BadRow", str(error))
            return
        if not self._rejects_too_many(items):
            self._commit(items)

    def _rejects_too_many(self, items: Sequence[JournalItem]) -> bool:
        """Count the rejected rows; where a source has more than it may, end before these are committed."""
        for item in items:
            if not isinstance(item, Published) or not item.stream.endswith(REJECTS):
                continue
            name = item.stream.removesuffix(REJECTS)
            count = self.situation.rejected[name] = self.situation.rejected.get(name, 0) + item.rows
            limit = next((each.rejects_max for each in self.situation.topology.sources if each.name == name), count)
            if count > limit:
                self._finish_with(
                    "BadRow",
                    f"{count:,} rows of source {name!r} were rejected, at most {limit:,} are allowed. The first of "
                    f"them are in the stream {item.stream!r} with their reasons. Nothing is lost: mend the rows or the "
                    "steps, or raise rejects_max, and start again",
                )
                return True
        return False

    def _state_absent(self, work: Work, result: StateAbsent) -> None:
        """One unit's state is not there; nothing of the work was done, so its other units are ready as before."""
        self._work_back(work)
        unit = self.situation.units[result.stage, result.shard]
        if unit.phase is not Phase.ABSENT:
            unit.step(Step.STATE_LOST)

    def _failed(self, slot: SlotState, work: Work, result: Failed) -> None:
        if not result.retry:
            self._finish_with(result.error, result.message)
            return
        self._failed_once(slot, [work], result.message)
        self._work_back(work)

    def _failed_once(self, slot: SlotState, works: Sequence[Work], message: str) -> None:
        """Leave the slot alone for a while, longer each time; say it, and report what lasts."""
        here = self.situation
        slot.failures += 1
        pause_us = min(BACKOFF_MAX_US, BACKOFF_FIRST_US << min(slot.failures - 1, 16))
        slot.blocked_until_us = here.now_us + pause_us
        subject = subject_of(works[0], slot.number)
        if here.troubles.failed(subject, message, here.now_us):
            self._warn(f"{message}. Trying again", here.stage_of(works[0]))
        self._report(works[0], here.troubles.report(subject) if self.log_open else None)
        if here.troubles.is_hopeless(subject):
            hint = "what it names has to be importable by workers too, or be defined in the script itself"
            self._finish_with("PipelineFailed", f"{message}. It failed so {HOPELESS_AFTER} times: {hint}")

    def _report(self, work: Work, message: str | None) -> None:
        if message is not None:
            self._commit([Reported(self.situation.stage_of(work), message, self.situation.now_us)])

    def _take_back(self, slot: SlotState) -> None:
        """The slot will not answer for its order any more."""
        order, slot.order = slot.order, None
        self._scheduler.note_time(slot)
        for work in order.works if order is not None else []:
            self._work_back(work)

    def _work_back(self, work: Work) -> None:
        here = self.situation
        match work:
            case ProcessWork():
                for ordered in work.units:
                    unit = here.units[work.stage, ordered.shard]
                    unit.step(Step.WORK_LOST)
                    self._send_on(unit)
            case AttachWork():
                unit = here.units[work.stage, work.shard]
                unit.step(Step.WORK_LOST)
                unit.moved = False
            case IngestWork():
                here.intakes[work.source].lost(work.number)
            case DeliverWork():
                here.deliveries[work.sink].step(DeliveryStep.DELIVERY_LOST)
            case ForgetWork():
                # Room is all that it was about.
                pass

    def _send_on(self, unit: Unit) -> None:
        if unit.moved:
            unit.moved = False
            unit.step(Step.STATE_LOST)

    def _conclude(self, sink: str, rows: int) -> None:
        done = self.situation.deliveries[sink].delivered(rows)
        self._commit([done], Ticket([done], concluded=[sink]))

    # After every event

    def _go_on(self) -> None:
        """Give the idle something to do, and see whether it is over."""
        self._late_waves()
        self._say_that_slots_are_missing()
        if self._reopen_us is not None and self.situation.now_us >= self._reopen_us and not self._reopening:
            # One at a time: a second success would send entries again that are on their way already.
            self._reopening = True
            self._reopen_us = self.situation.now_us + self.situation.options.reopen_every_us
            self._commands.append(events.ReopenLog())
        if not self.stopping:
            self._look()
            if self.log_open:
                for items in self._ending.decide():
                    self._commit(items)
                self._deliver()
                for slot in self.situation.slots.values():
                    self._give(slot)
                self._commit_idle()
                self._trim()
        if self._is_over():
            self.finished = True
            self._commands.append(events.Finish())
        else:
            self._commands.append(events.WakeAt(self._next_time()))

    def _say_that_slots_are_missing(self) -> None:
        since_us = self._slotless_us
        if since_us is not None and self.situation.now_us - since_us >= self.situation.options.slotless_us:
            self._slotless_us = None
            self._warn(
                "there is no executor to work on: nothing is lost, and it goes on as soon as one comes. Are there "
                "workers with free cores, and memory enough? `holdfast doctor` looks at them"
            )

    def _late_waves(self) -> None:
        here = self.situation
        for slot in here.slots.values():
            if slot.order is not None and here.now_us - slot.started_us >= self._deadline_us(slot):
                self._commands.append(events.AbandonWave(slot.order.wave, slot.number))
                what = "a job did" if slot.number == JOBS_SLOT else f"slot {slot.number} did"
                self._failed_once(slot, slot.order.works, f"{what} not answer in time; its task is abandoned")
                self._take_back(slot)

    def _deadline_us(self, slot: SlotState) -> int:
        options = self.situation.options
        return options.job_deadline_us if slot.number == JOBS_SLOT else options.wave_deadline_us

    def _look(self) -> None:
        """Look for new files, and for snapshots that are complete."""
        here = self.situation
        for name, intake in here.intakes.items():
            if name in here.adopted:
                # Nobody sends to it any more: there is nothing to look for.
                intake.looks, intake.settled = 1, True
                continue
            last_us = self._looked_us.get(name)
            due = last_us is None or here.now_us - last_us >= here.options.look_every_us
            if due and name not in self._looking and not self._seen_enough(name):
                self._looking.add(name)
                self._commands.append(events.LookForFiles(name))
        for unit in here.units.values():
            if unit.snapshot_pending is None or here.now_us < unit.snapshot_look_us:
                continue
            bucket, path, asked_us = unit.snapshot_pending
            if here.now_us - asked_us > here.options.snapshot_deadline_us:
                unit.snapshot_pending = None
                continue
            unit.snapshot_look_us = here.now_us + here.options.snapshot_look_every_us
            self._commands.append(events.LookForSnapshot(unit.stage, unit.shard, bucket, path))

    def _give(self, slot: SlotState) -> None:
        if slot.order is not None or self.situation.now_us < slot.blocked_until_us:
            return
        if slot.number == JOBS_SLOT and len(self.situation.slots) == 1:
            # A job needs a core as well.
            return
        works = self._scheduler.works_for(slot)
        if works:
            self._wave += 1
            slot.order = Order(self._wave, slot.number, self.node, works)
            slot.started_us = self.situation.now_us
            self._commands.append(events.StartWave(slot.order))

    def _deliver(self) -> None:
        here = self.situation
        hurry = self._ending.all_processed()
        for name, delivery in here.deliveries.items():
            if isinstance(delivery.sink.target, ConsoleSink) and delivery.phase is DeliveryPhase.INTENDED:
                self._display(delivery)
            if not delivery.due(here.now_us, hurry):
                continue
            bucket_end = here.output_end(delivery.sink.stream)
            frames = here.ledger.frames(delivery.sink.stream, delivery.bucket_done, bucket_end)
            if not frames:
                continue
            present, bucket_end = bucket_end, range_end(frames, bucket_end, here.options.sink_rows_max)
            delivery.is_behind = bucket_end < present
            first = min(frame.bucket_start for frame in frames)
            intent = delivery.intend(max(delivery.bucket_done, first), bucket_end, here.now_us)
            self._commit([intent], Ticket([intent], intended=[name]))

    def _display(self, delivery: Delivery) -> None:
        delivery.step(DeliveryStep.DELIVERY_ORDERED)
        intent = delivery.intent
        assert intent is not None
        frames = self.situation.ledger.frames(intent.stream, intent.bucket_start, intent.bucket_end)
        self._commands.append(
            events.DisplayRows(intent.sink, intent.stream, intent.bucket_start, intent.bucket_end, frames)
        )

    def _commit_idle(self) -> None:
        """Units without rows to process pass their boundary on all the same, now and then.

        Where another stage reads them, every bucket of it waits for the slowest unit: they do so bucket by bucket.
        """
        here = self.situation
        items: list[JournalItem] = []
        for stage in here.stages.values():
            if here.now_us < self._idle_commit_due_us(stage.name) and not self._ending.is_decided:
                continue
            target = here.processable(stage)
            for unit in self._idle_units(stage, target):
                items.append(UnitCommitted(stage.name, unit.shard, unit.generation, unit.bucket_committed, target))
                # Entries keep their order, so the unit's next one may already start from here.
                unit.bucket_committed = target
                self._idle_committed_us[stage.name] = here.now_us
        self._commit(items)

    def _idle_commit_due_us(self, stage: str) -> int:
        here = self.situation
        every_us = here.options.idle_commit_every_us
        if here.is_read(stage):
            every_us = min(every_us, here.topology.bucket_width_us)
        return self._idle_committed_us.get(stage, self._opened_us) + every_us

    def _idle_units(self, stage: Stage, target: int) -> list[Unit]:
        """Return the units that have nothing to do up to `target` but to say so."""
        here = self.situation
        behind = [
            unit for unit in here.units_of(stage.name) if unit.phase is Phase.READY and unit.bucket_committed < target
        ]
        if not behind:
            return []
        ended = max(here.ledger.endings(stage.name), default=FIRST_BUCKET)
        # Most units are equally far: the ledger is asked once for all of them.
        places = {unit.bucket_memory for unit in behind if unit.bucket_memory >= ended}
        idle = {place for place in places if not here.has_rows(stage, place, target)}
        return [unit for unit in behind if unit.bucket_memory in idle]

    def _trim(self) -> None:
        here = self.situation
        if here.now_us - self._trimmed_us < here.options.trim_every_us:
            return
        self._trimmed_us = here.now_us
        keep_from: dict[str, int] = {}
        for stage in here.stages.values():
            needed = min(here.replay_from(unit) for unit in here.units_of(stage.name))
            for read in stage.inputs:
                keep_from[read.stream] = min(needed, keep_from.get(read.stream, needed))
        for delivery in here.deliveries.values():
            stream = delivery.sink.stream
            needed = delivery.bucket_done if delivery.intent is None else delivery.intent.bucket_start
            keep_from[stream] = min(needed, keep_from.get(stream, needed))
        self._commands.append(events.Trim(self._unread() | keep_from))

    def _unread(self) -> dict[str, int]:
        """Return how long to keep what only consumers read: outputs without a sink, late rows, rejects."""
        here = self.situation
        retained = here.options.retain_unread_us // here.topology.bucket_width_us
        keep_from: dict[str, int] = {}
        for stage in here.stages.values():
            bucket_end = here.output_end(stage.name)
            if bucket_end == FIRST_BUCKET:
                continue
            sides = [f"{read.stream}.{kind}" for read in stage.inputs for kind in ("late", "rejects")]
            for stream in (stage.name, f"{stage.name}.rejects", *sides):
                keep_from[stream] = min(bucket_end - retained, keep_from.get(stream, bucket_end))
        return keep_from

    def _is_over(self) -> bool:
        here = self.situation
        busy = bool(here.tickets) or any(slot.order is not None for slot in here.slots.values())
        if self.stopping:
            return not busy or not self.log_open
        if busy or not self._ending.all_processed():
            return False
        return all(here.is_delivered(delivery) for delivery in here.deliveries.values())

    def _next_time(self) -> int:
        """Return when something has to be looked at although nothing happened."""
        here = self.situation
        options = here.options
        times = [self._trimmed_us + options.trim_every_us, *map(self._idle_commit_due_us, here.stages)]
        times += [us + options.look_every_us for name, us in self._looked_us.items() if name not in self._looking]
        times += [unit.snapshot_look_us for unit in here.units.values() if unit.snapshot_pending is not None]
        times += [slot.blocked_until_us for slot in here.slots.values() if slot.order is None]
        times += [slot.started_us + self._deadline_us(slot) for slot in here.slots.values() if slot.order]
        times += [] if self._reopen_us is None else [self._reopen_us]
        times += [] if self._slotless_us is None else [self._slotless_us + options.slotless_us]
        times += [delivery.next_us for delivery in here.deliveries.values() if delivery.phase is DeliveryPhase.IDLE]
        later = [time for time in times if time > here.now_us]
        return min(later, default=here.now_us + options.idle_commit_every_us)

    # Saying

    def _commit(self, items: list[JournalItem], ticket: Ticket | None = None) -> None:
        if not items:
            return
        self._ticket += 1
        self.situation.tickets[self._ticket] = ticket or Ticket(items)
        if self.log_open:
            self._commands.append(events.Commit(self._ticket, items))

    def _warn(self, message: str, stage: str | None = None) -> None:
        self._commands.append(events.Warn(message, stage))

    def _finish_with(self, error: str, message: str) -> None:
        """Stop because of an error that going on would not mend; it is reported so that `status` still knows it."""
        self._ticket += 1
        # A report is about a stream, or no reader would be told of it.
        report = Reported(next(iter(self.situation.stages)), f"{error}: {message}", self.situation.now_us)
        self._commands += [events.Commit(self._ticket, [report]), events.Finish(error, message)]
        self.finished = True
