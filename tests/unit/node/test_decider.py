"""The node's decisions, one event at a time."""

from __future__ import annotations

import msgspec
from tests.unit.node.stages import SCHEMA, stage_of

from holdfast.log.ledger import Ledger
from holdfast.model import FIRST_BUCKET, MANY_SHARDS, Advanced, FrameRef, Published, UnitCommitted
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.delivery import DeliveryStep
from holdfast.node.messages import (
    Attached,
    AttachWork,
    DeliverWork,
    Processed,
    ProcessWork,
    Receipt,
    Result,
    UnitProcessed,
)
from holdfast.node.options import NodeOptions
from holdfast.node.scheduling import Scheduler
from holdfast.node.situation import JOBS_SLOT, SlotState
from holdfast.node.units import Phase
from holdfast.plan import ParquetSink, ProducerSource, Sink, Source, Stage, StageInput, Topology, Transform

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
WIDTH_US = 100_000
DAYS = 10
STAGE = stage_of("running")


def decider(sinks: list[Sink], stage: Stage = STAGE) -> NodeDecider:
    """Return a node that is ten days into its stream, every unit at the same bucket."""
    source = Source("north", SCHEMA.serialize().to_pybytes(), ProducerSource(), ["item"])
    topology = Topology("test", 2, WIDTH_US, [source], [stage], sinks)
    ledger = Ledger(2, WIDTH_US)
    for shard in range(2):
        ledger.apply(UnitCommitted(STAGE.name, shard, 1, 0, DAYS * DAY_US // WIDTH_US))
    return NodeDecider(topology, ledger, "node", 1, NodeOptions(), DAYS * DAY_US)


def trimmed(node: NodeDecider) -> dict[str, int]:
    commands = node.handle(events.TimePassed(), DAYS * DAY_US + NodeOptions().trim_every_us)
    found = [command.keep_from for command in commands if isinstance(command, events.Trim)]
    assert len(found) == 1
    return found[0]


def test_what_only_consumers_read_is_kept_for_days_and_not_for_ever() -> None:
    week_ago = (DAYS - 7) * DAY_US // WIDTH_US
    found = trimmed(decider([]))
    assert {found[name] for name in (STAGE.name, f"{STAGE.name}.rejects", "north.late", "north.rejects")} == {week_ago}


def test_what_a_stage_without_state_has_read_need_not_stay() -> None:
    row_wise = msgspec.structs.replace(STAGE, aggregation=None)
    assert trimmed(decider([], row_wise))["north"] == DAYS * DAY_US // WIDTH_US
    assert trimmed(decider([]))["north"] < 0, "state without two snapshots is rebuilt from all of its input"


def test_buckets_without_rows_go_on_to_the_next_stage_one_by_one_and_to_readers_now_and_then() -> None:
    schema = SCHEMA.serialize().to_pybytes()
    behind = Stage("behind", [StageInput(STAGE.name, STAGE.schema, [])], schema, STAGE.aggregation, [], schema)
    source = Source("north", schema, ProducerSource(), ["item"])
    topology = Topology("test", 2, WIDTH_US, [source], [STAGE, behind], [])
    start_us = DAYS * DAY_US
    node = NodeDecider(topology, Ledger(2, WIDTH_US), "node", 1, NodeOptions(), start_us)
    commits: dict[str, list[int]] = {STAGE.name: [], "behind": []}
    attached = False
    for now_us in range(start_us, start_us + 3 * SECOND_US, WIDTH_US // 2):
        event = events.ItemsRead([Advanced("north", now_us)]) if attached else events.SlotsChanged([0])
        todo = node.handle(event, now_us)
        while todo:
            command = todo.pop(0)
            if isinstance(command, events.Commit):
                ends = {item.stage: item.bucket_end for item in command.items if isinstance(item, UnitCommitted)}
                for stage, end in ends.items():
                    commits[stage].append(end)
                todo += node.handle(events.Committed(command.ticket, command.items), now_us)
            elif isinstance(command, events.StartWave):
                order = command.order
                works = [work for work in order.works if isinstance(work, AttachWork)]
                results: list[Result] = [Attached(each.stage, each.shard, FIRST_BUCKET, "empty") for each in works]
                receipt = Receipt(order.wave, order.slot, order.node, "host", 1, results)
                todo += node.handle(events.ReceiptArrived(receipt), now_us)
                attached = True
    assert len(commits["behind"]) == 2, "what nobody waits for costs an entry a second"
    first, last = commits[STAGE.name][0], commits[STAGE.name][-1]
    assert commits[STAGE.name] == list(range(first, last + 1)) and last - first > 25


def test_what_a_sink_has_not_put_out_is_kept_however_old_it_is() -> None:
    found = trimmed(decider([Sink("out", STAGE.name, ParquetSink("out"))]))
    assert found[STAGE.name] < 0


def test_a_node_without_slots_says_so_once() -> None:
    node = decider([])
    start_us, patience_us = DAYS * DAY_US, NodeOptions().slotless_us

    def warnings(event: events.Event, after_us: int) -> list[str]:
        commands = node.handle(event, start_us + after_us)
        return [command.message for command in commands if isinstance(command, events.Warn)]

    assert not warnings(events.TimePassed(), patience_us - 1)
    (said,) = warnings(events.TimePassed(), patience_us)
    assert "no executor" in said
    assert not warnings(events.TimePassed(), 2 * patience_us)
    assert not warnings(events.SlotsChanged([0]), 3 * patience_us)
    assert not warnings(events.SlotsChanged([]), 3 * patience_us + 1)
    assert warnings(events.TimePassed(), 4 * patience_us + 1) == [said]


def test_the_units_of_a_transform_stay_on_the_jobs_slot_whatever_becomes_of_cores() -> None:
    made = msgspec.structs.replace(STAGE, name="made", aggregation=None, transform=Transform("f"))
    source = Source("north", SCHEMA.serialize().to_pybytes(), ProducerSource(), ["item"])
    topology = Topology("test", 2, WIDTH_US, [source], [STAGE, made], [])
    start_us = DAYS * DAY_US
    node = NodeDecider(topology, Ledger(2, WIDTH_US), "node", 1, NodeOptions(), start_us)
    published = Published(
        "north", MANY_SHARDS, start_us // WIDTH_US, start_us // WIDTH_US + 1, 9, FrameRef("a", 0, 64), start_us
    )
    given = [events.SlotsChanged([]), events.ItemsRead([published, Advanced("north", start_us + SECOND_US)])]
    given += [events.SlotsChanged([0, 1]), events.SlotsChanged([1])]
    done: list[UnitCommitted] = []
    ordered: set[tuple[str, int]] = set()
    for event in given:
        todo = node.handle(event, start_us + SECOND_US)
        while todo:
            command = todo.pop(0)
            if isinstance(command, events.Commit):
                done += [item for item in command.items if isinstance(item, UnitCommitted) and item.stage == "made"]
                todo += node.handle(events.Committed(command.ticket, command.items), start_us + SECOND_US)
            elif isinstance(command, events.StartWave):
                order = command.order
                ordered |= {(work.stage, order.slot) for work in order.works if isinstance(work, AttachWork)}
                if order.slot != JOBS_SLOT:
                    continue
                results = [answer(work) for work in order.works if isinstance(work, AttachWork | ProcessWork)]
                receipt = Receipt(order.wave, order.slot, order.node, "host", 1, results)
                todo += node.handle(events.ReceiptArrived(receipt), start_us + SECOND_US)
    assert ordered == {("made", JOBS_SLOT), (STAGE.name, 0), (STAGE.name, 1)}
    assert [(item.shard, item.rows_in) for item in done] == [(0, 4), (1, 4)], "all shards in one entry, once"


def answer(work: AttachWork | ProcessWork) -> Result:
    if isinstance(work, AttachWork):
        return Attached(work.stage, work.shard, work.bucket_committed, "empty")
    units = [UnitProcessed(unit.shard, [], [], 4, 0) for unit in work.units]
    return Processed(work.stage, units, work.bucket_from, work.bucket_to)


def test_a_sink_is_not_kept_waiting_by_slots_that_always_have_rows() -> None:
    """One slot, and rows for it at any time: what was intended goes out all the same, half a second later."""
    sink = Sink("out", STAGE.name, ParquetSink("out"))
    node = decider([sink])
    here = node.situation
    start = here.now_us
    bucket = start // WIDTH_US
    for number in range(20):
        ref = FrameRef(f"streams/north/p/0-000000/{number:06}.seg", 0, 64, 0)
        here.ledger.apply(
            Published("north", 0, bucket + number, bucket + number + 1, 5, ref, (bucket + number) * WIDTH_US)
        )
    here.ledger.apply(Advanced("north", (bucket + 20) * WIDTH_US))
    for unit in here.units.values():
        unit.slot, unit.phase = 0, Phase.READY
        unit.bucket_memory = unit.bucket_committed
    delivery = here.deliveries["out"]
    delivery.intend(bucket - 10, bucket, start)
    delivery.step(DeliveryStep.INTENT_COMMITTED)
    scheduler = Scheduler(here, 0)
    slot = SlotState(0)

    def next_kind() -> type:
        (work,) = scheduler.works_for(slot)
        for unit in here.units.values():
            unit.phase = Phase.READY
        return type(work)

    assert next_kind() is ProcessWork
    here.now_us = start + here.options.delivery_wait_us
    assert next_kind() is DeliverWork
    assert next_kind() is ProcessWork


def test_units_that_come_are_attached_one_by_one_where_others_keep_up() -> None:
    node = decider([])
    here = node.situation
    scheduler, slot = Scheduler(here, 0), SlotState(0)
    bucket = here.now_us // WIDTH_US
    here.ledger.apply(Advanced("north", (bucket + 3) * WIDTH_US))
    running, lost = here.units.values()
    running.slot, running.phase, running.bucket_memory = 0, Phase.READY, bucket
    lost.slot, lost.phase = 0, Phase.ABSENT
    ref = FrameRef("streams/north/p/0-000000/000000.seg", 0, 64, 0)
    here.ledger.apply(Published("north", 0, bucket, bucket + 1, 5, ref, bucket * WIDTH_US))
    assert [type(work) for work in scheduler.works_for(slot)] == [ProcessWork, AttachWork]
    # Far behind, as after a start: state comes first, and as much as fits.
    running.phase, lost.phase = Phase.READY, Phase.ABSENT
    here.ledger.apply(Advanced("north", (bucket + 1000) * WIDTH_US))
    assert [type(work) for work in scheduler.works_for(slot)] == [AttachWork]
