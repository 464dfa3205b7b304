"""What an idle slot does next: attach units, run them, deliver rows, read sources; in this order.

The jobs slot runs its units and does nothing else.

Invariants:
    * Every piece of work that is handed out is marked as handed out. A unit whose input is not there any more from
      where its state is is marked as without state; nothing else changes.
    * State comes before results, results before sinks, sinks before new input: so what is in flight stays bounded. Of
      results those of later stages come first, as they use up what the stages before them have made. A sink that has
      waited for `delivery_wait_us` comes before results: slots that never come to rest must not keep it waiting.
    * Stages and sinks that catch up share each slot's time with the others: neither kind has more than half of it while
      the other has something to do, and each has all that the other leaves.
"""

from __future__ import annotations

from holdfast.model import FIRST_BUCKET
from holdfast.node.delivery import DeliveryPhase, DeliveryStep
from holdfast.node.messages import AttachWork, DeliverWork, ProcessWork, UnitWork, Work
from holdfast.node.planning import bucket_to_within, frames_between
from holdfast.node.situation import JOBS_SLOT, Situation, SlotState
from holdfast.node.units import Phase, Step, Unit
from holdfast.plan import ConsoleSink, Stage

ATTACH_AT_ONCE = 16
KEEPS_UP_US = 2_000_000
"""Who is no further behind is not catching up."""
CREDIT_US_MAX = 1_000_000
"""What one kind of work did long ago is no reason to stop it now."""


class Scheduler:
    """Chooses work for slots, from a `Situation`."""

    def __init__(self, situation: Situation, generation: int) -> None:
        self._situation = situation
        self._generation = generation
        self._rows_per_second: dict[str, float] = {}

    def works_for(self, slot: SlotState) -> list[Work]:
        """Return what the slot does next; nothing if there is nothing to do."""
        self._give_up_stale(slot)
        works = self._attach_beside(slot) or self._attach(slot)
        if not works and slot.number != JOBS_SLOT:
            works = self._deliver(None, self._situation.now_us - self._situation.options.delivery_wait_us)
        if works:
            slot.catches_up = False
            return works
        behind_first = self._is_anybody_behind() and slot.credit_us > 0
        for catches_up in (True, False) if behind_first else (False, True):
            works = self._process(slot, catches_up)
            if slot.number != JOBS_SLOT:
                works = works or self._deliver(catches_up) or ([] if catches_up else self._ingest())
            if works:
                slot.catches_up = catches_up
                return works
        slot.catches_up = False
        return [] if slot.number == JOBS_SLOT else self._forget(slot)

    def note_who_is_behind(self) -> None:
        """At the start: see which stages are so far behind the foremost one that they have to catch up."""
        here = self._situation
        places = {name: min(unit.bucket_committed for unit in here.units_of(name)) for name in here.stages}
        behind = max(1, here.options.catch_up_from_us // here.topology.bucket_width_us)
        here.catching_up = {name for name, place in places.items() if place + behind < max(places.values())}

    def note_time(self, slot: SlotState) -> None:
        """A slot is done with its order, or has lost it: see whose time that was."""
        used_us = self._situation.now_us - slot.started_us
        used_us = -used_us if slot.catches_up else used_us
        slot.credit_us = max(-CREDIT_US_MAX, min(CREDIT_US_MAX, slot.credit_us + used_us))

    def _is_anybody_behind(self) -> bool:
        """Return whether anything catches up; a stage does so until it has reached its inputs, and they theirs."""
        here = self._situation
        near = max(1, here.options.caught_up_us // here.topology.bucket_width_us)
        for name in [name for name in here.stages if name in here.catching_up]:
            stage = here.stages[name]
            if any(read.stream in here.catching_up for read in stage.inputs):
                continue
            if min(unit.bucket_memory for unit in here.units_of(name)) + near >= here.processable(stage):
                here.catching_up.discard(name)
        return bool(here.catching_up) or any(delivery.is_behind for delivery in here.deliveries.values())

    def learn_rate(self, stage: str, rows: int, seconds: float) -> None:
        """Take note of how fast a slot was, so that a wave takes about its budget of time."""
        if rows < 1000 or seconds <= 0.0:
            return
        known = self._rows_per_second.get(stage)
        measured = rows / seconds
        self._rows_per_second[stage] = measured if known is None else 0.7 * known + 0.3 * measured

    def _give_up_stale(self, slot: SlotState) -> None:
        """A unit that came from an old state, and whose next input was trimmed since, has to begin with a newer one."""
        here = self._situation
        kept_from = {name: here.kept_from(stage) for name, stage in here.stages.items()}
        for unit in here.units.values():
            if unit.slot == slot.number and unit.phase is Phase.READY and unit.bucket_memory < kept_from[unit.stage]:
                unit.step(Step.STATE_LOST)

    def _attach_beside(self, slot: SlotState) -> list[Work]:
        """Attach one unit behind the work of others, where those keep up with their input: they never wait for long.

        So it is when units come from a slot that was lost; at a start all of them are behind, and state comes first.
        """
        here = self._situation
        keeps_up = any(
            unit.slot == slot.number
            and unit.phase is Phase.READY
            and (here.processable(here.stages[unit.stage]) - unit.bucket_memory) * here.topology.bucket_width_us
            <= KEEPS_UP_US
            for unit in here.units.values()
        )
        if not keeps_up:
            return []
        attach = self._attach(slot, 1)
        return [*self._process(slot, False), *attach] if attach else []

    def _attach(self, slot: SlotState, at_once: int = ATTACH_AT_ONCE) -> list[Work]:
        absent = [
            unit
            for unit in self._situation.units.values()
            if unit.slot == slot.number and unit.phase is Phase.ABSENT and unit.stage not in self._situation.waiting
        ]
        works: list[Work] = []
        for unit in absent[:at_once]:
            unit.step(Step.ATTACH_ORDERED)
            works.append(self._attach_work(unit))
        return works

    def _attach_work(self, unit: Unit) -> AttachWork:
        self._generation += 1
        ledger = self._situation.ledger
        kept_from = self._situation.kept_from(self._situation.stages[unit.stage])
        snapshots = [(kept.bucket_end, kept.path) for kept in reversed(ledger.snapshots(unit.stage, unit.shard))]
        committed = ledger.unit(unit.stage, unit.shard)
        return AttachWork(
            unit.stage,
            unit.shard,
            self._generation,
            unit.bucket_committed,
            kept_from,
            snapshots,
            kept_from <= self._situation.begins(unit.stage),
            0 if committed is None else committed.generation,
            self._situation.begins(unit.stage),
        )

    def _process(self, slot: SlotState, catches_up: bool) -> list[Work]:
        """Take the units that are furthest behind, up to where the next ones are, so that all come to go together."""
        for stage in reversed(self._situation.stages.values()):
            if (stage.name in self._situation.catching_up) is not catches_up:
                continue
            ready = [
                unit
                for unit in self._situation.units_of(stage.name)
                if unit.slot == slot.number and unit.phase is Phase.READY
            ]
            behind = min((unit.bucket_memory for unit in ready), default=None)
            if behind is None:
                continue
            group = [unit for unit in ready if unit.bucket_memory == behind]
            limit = min((unit.bucket_memory for unit in ready if unit.bucket_memory > behind), default=None)
            work = self._process_work(stage, group, limit)
            if work is not None:
                return [work]
        return []

    def _process_work(self, stage: Stage, group: list[Unit], limit: int | None) -> ProcessWork | None:
        ledger = self._situation.ledger
        bucket_from = group[0].bucket_memory
        target = self._situation.processable(stage)
        ended = next((bucket for bucket in ledger.endings(stage.name) if bucket_from < bucket <= target), None)
        ending = ended is not None
        if ended is not None:
            target = ended
        if limit is not None and limit < target:
            target, ending = limit, False
        if bucket_from >= target:
            return None
        frames = frames_between([read.stream for read in stage.inputs], ledger.frames, bucket_from, target)
        if not frames and not ending and limit is None:
            return None
        bucket_to = bucket_to_within(frames, bucket_from, target, self._rows_max(stage, len(group)))
        frames = [frame for frame in frames if frame.bucket_start < bucket_to]
        units = [self._unit_work(stage, unit) for unit in group]
        return ProcessWork(stage.name, units, bucket_from, bucket_to, frames, ending and bucket_to == target)

    def _unit_work(self, stage: Stage, unit: Unit) -> UnitWork:
        unit.step(Step.WAVE_ORDERED)
        every_us = stage.checkpoint_every_us
        now_us = self._situation.now_us
        snapshot = (
            every_us is not None
            and now_us >= unit.snapshot_due_us
            and unit.snapshot_pending is None
            and not self._situation.has_rows(stage, unit.bucket_memory, unit.bucket_committed)
        )
        if snapshot and every_us is not None:
            unit.snapshot_due_us = now_us + every_us
        begun = self._situation.begun.get(stage.name)
        sides_from = FIRST_BUCKET if begun is None else begun.sides_from
        return UnitWork(unit.shard, unit.generation, unit.bucket_memory, unit.bucket_committed, snapshot, sides_from)

    def _rows_max(self, stage: Stage, units: int) -> int:
        """Return how many rows of the whole stream a wave may read for so many of its units."""
        options = self._situation.options
        in_jobs = stage.transform is not None
        catching_up = self._situation.catching_up
        shares = stage.name in catching_up and len(catching_up) < len(self._situation.stages)
        budget_us = options.job_budget_us if in_jobs else options.wave_budget_us
        budget_us = min(budget_us, options.catch_up_budget_us) if shares else budget_us
        rows = int(self._rows_per_second.get(stage.name, 0.0) * budget_us / 1e6)
        rows = min(options.wave_rows_max, max(options.job_rows_min if in_jobs else options.wave_rows_min, rows))
        return rows * self._situation.topology.shards // units

    def _deliver(self, catches_up: bool | None, intended_before_us: int | None = None) -> list[Work]:
        """Return a delivery that is due: of sinks that catch up, or that do not, or of any (None)."""
        for delivery in self._situation.deliveries.values():
            if catches_up is not None and delivery.is_behind is not catches_up:
                continue
            if intended_before_us is not None and delivery.started_us > intended_before_us:
                continue
            if delivery.phase is DeliveryPhase.INTENDED and not isinstance(delivery.sink.target, ConsoleSink):
                intent = delivery.intent
                assert intent is not None
                delivery.step(DeliveryStep.DELIVERY_ORDERED)
                frames = self._situation.ledger.frames(intent.stream, intent.bucket_start, intent.bucket_end)
                return [
                    DeliverWork(intent.sink, intent.stream, intent.bucket_start, intent.bucket_end, intent.name, frames)
                ]
        return []

    def _forget(self, slot: SlotState) -> list[Work]:
        """Let a host that has nothing better to do delete what it holds of units that have left it."""
        host = self._situation.hosts.get(slot.number, "")
        works = self._situation.leavings.get(host, [])
        chosen, self._situation.leavings[host] = works[:ATTACH_AT_ONCE], works[ATTACH_AT_ONCE:]
        return list(chosen)

    def _ingest(self) -> list[Work]:
        here = self._situation
        waiting = [intake for name, intake in here.intakes.items() if intake.waiting and here.may_ingest(name)]
        if not waiting:
            return []
        # The source that has read least comes first, so that none of them holds the others' buckets up.
        intake = min(waiting, key=lambda intake: intake.next_commit)
        work = intake.next_work()
        return [] if work is None else [work]
