"""Stages and sinks that come to a pipeline which has run before: where they begin, and how they share the time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest
from tests.unit.node.stages import SCHEMA, stage_of

from holdfast.log.ledger import Ledger
from holdfast.model import (
    FIRST_BUCKET,
    MANY_SHARDS,
    Advanced,
    FrameRef,
    JournalItem,
    Published,
    SinkBegun,
    SinkDone,
    SinkIntended,
    StageBegun,
    Trimmed,
    UnitCommitted,
)
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.messages import (
    Attached,
    AttachWork,
    Delivered,
    DeliverWork,
    Order,
    Processed,
    ProcessWork,
    Receipt,
    Result,
    UnitProcessed,
)
from holdfast.node.options import NodeOptions
from holdfast.plan import ParquetSink, ProducerSource, Sink, Source, Topology

WIDTH_US = 100_000
SHARDS = 2
OLD = msgspec.structs.replace(stage_of("running"), name="old")
NEW = msgspec.structs.replace(OLD, name="new")
PRESENT = 1_000
START_US = PRESENT * WIDTH_US
ROWS = 10_000


def frame(bucket: int, stream: str = "north", rows: int = ROWS, shard: int = MANY_SHARDS) -> Published:
    ref = FrameRef(f"streams/{stream}/n/0-000000/000000.seg", bucket * 64, 64)
    stamp_us = bucket * WIDTH_US if shard == MANY_SHARDS else None
    return Published(stream, shard, bucket, bucket + 1, rows, ref, stamp_us)


def ledger_of(old_at: int = PRESENT, frames_from: int = 0) -> Ledger:
    """Return what the journal says of a pipeline in which `old` has run up to a bucket."""
    ledger = Ledger(SHARDS, WIDTH_US)
    for bucket in range(frames_from, PRESENT):
        ledger.apply(frame(bucket))
    ledger.apply(Advanced("north", START_US))
    for shard in range(SHARDS):
        ledger.apply(UnitCommitted("old", shard, 1, 0, old_at))
    return ledger


class Run:
    """A node whose slots do everything at once, and take as long for it as they are told."""

    def __init__(
        self,
        ledger: Ledger,
        stages: Sequence[object] = (OLD, NEW),
        sinks: Sequence[Sink] = (),
        options: NodeOptions | None = None,
        unread: frozenset[str] = frozenset(),
    ) -> None:
        source = Source("north", SCHEMA.serialize().to_pybytes(), ProducerSource(), ["item"])
        topology = Topology("test", SHARDS, WIDTH_US, [source], list(stages), list(sinks))  # type: ignore[arg-type]
        self.now_us = START_US
        options = options or NodeOptions()
        added = frozenset({"new"})
        self.node = NodeDecider(topology, ledger, "node", 1, options, START_US, unread=unread, added=added)
        self.items: list[JournalItem] = []
        self.warnings: list[str] = []
        self.orders: list[Order] = []
        self.done: list[Order] = []
        self.finished: events.Finish | None = None

    def tell(self, event: events.Event) -> None:
        todo = self.node.handle(event, self.now_us)
        while todo:
            match todo.pop(0):
                case events.Commit(ticket, items):
                    self.items += items
                    todo += self.node.handle(events.Committed(ticket, items), self.now_us)
                case events.StartWave(order):
                    self.orders.append(order)
                case events.Warn(message):
                    self.warnings.append(message)
                case events.Finish() as finish:
                    self.finished = finish

    def answer(self) -> Order:
        """Let the slot be done with its order."""
        order = self.orders.pop(0)
        self.done.append(order)
        results: list[Result] = []
        for work in order.works:
            match work:
                case AttachWork():
                    bucket = work.bucket_committed if work.bucket_committed > FIRST_BUCKET else work.bucket_empty
                    results.append(Attached(work.stage, work.shard, bucket, "memory"))
                case ProcessWork():
                    units = [UnitProcessed(unit.shard, [], [], 0, 0) for unit in work.units]
                    results.append(Processed(work.stage, units, work.bucket_from, work.bucket_to))
                case DeliverWork():
                    results.append(Delivered(work.sink, work.stream, work.bucket_to, sum(f.rows for f in work.frames)))
        self.tell(events.ReceiptArrived(Receipt(order.wave, order.slot, order.node, "host", 1, results)))
        return order


def attached(run: Run) -> dict[str, AttachWork]:
    return {work.stage: work for order in run.orders for work in order.works if isinstance(work, AttachWork)}


def test_a_new_stage_begins_with_what_is_kept_and_says_so() -> None:
    ledger = ledger_of()
    ledger.apply(Trimmed("north", 400))
    run = Run(ledger)
    run.tell(events.SlotsChanged([0]))
    assert run.items[0] == StageBegun("new", 400, FIRST_BUCKET), (
        "it is in the journal before anything else of the stage"
    )
    work = attached(run)["new"]
    assert work.empty_allowed and (work.bucket_committed, work.bucket_replay, work.bucket_empty) == (400, 400, 400)
    assert not attached(run)["old"].empty_allowed, "what was there before is not begun anew"
    (told,) = run.warnings
    assert "the stage 'new' is new and catches up with 'north' from 1970-01-01 00:00:40.000000 UTC on" in told
    again = Run(ledger)
    again.tell(events.SlotsChanged([0]))
    assert not again.warnings and attached(again)["new"].bucket_empty == 400, "that was decided once"


def test_what_a_new_stage_reads_is_kept_for_it() -> None:
    run = Run(ledger_of())
    run.tell(events.SlotsChanged([0]))
    run.now_us += NodeOptions().trim_every_us
    commands = run.node.handle(events.TimePassed(), run.now_us)
    (keep_from,) = [command.keep_from for command in commands if isinstance(command, events.Trim)]
    assert keep_from["north"] == FIRST_BUCKET


def test_a_new_stage_waits_until_its_inputs_can_be_read() -> None:
    run = Run(ledger_of(frames_from=PRESENT), unread=frozenset({"north"}))
    run.tell(events.SlotsChanged([0]))
    assert set(attached(run)) == {"old"} and run.items == []
    run.tell(events.ItemsRead([Trimmed("north", 700), Advanced("north", START_US)]))
    assert run.items[0] == StageBegun("new", 700, FIRST_BUCKET)
    run.answer()
    assert attached(run)["new"].bucket_empty == 700


def test_a_stage_that_was_there_from_the_first_script_on_does_not_begin() -> None:
    """Its input may never have come, and its first rows while no node ran."""
    run = Run(ledger_of(), stages=[OLD, msgspec.structs.replace(NEW, name="first")])
    run.tell(events.SlotsChanged([0]))
    assert not run.warnings and not run.items and set(attached(run)) == {"old", "first"}


def test_a_stage_that_was_away_for_too_long_is_refused() -> None:
    ledger = ledger_of(frames_from=900)
    ledger.apply(Trimmed("north", 900))
    for shard in range(SHARDS):
        ledger.apply(UnitCommitted("new", shard, 1, 0, 300))
    run = Run(ledger)
    run.tell(events.SlotsChanged([0]))
    assert run.finished is not None and run.finished.error == "StoreUnfit"
    assert run.finished.message is not None and "'new' was not part of the pipeline for a while" in run.finished.message


def test_a_new_stage_leaves_side_streams_as_others_have_completed_them() -> None:
    read = msgspec.structs.replace(NEW.inputs[0], late="side")
    old, new = (msgspec.structs.replace(stage, inputs=[read]) for stage in (OLD, NEW))
    run = Run(ledger_of(old_at=PRESENT - 5), stages=[old, new])
    run.tell(events.SlotsChanged([0]))
    assert run.items[0] == StageBegun("new", FIRST_BUCKET, PRESENT - 5)
    for _ in range(4):
        run.answer()
    works = [work for order in run.done for work in order.works if isinstance(work, ProcessWork)]
    found = {(work.stage, unit.sides_from) for work in works for unit in work.units}
    assert found == {("old", FIRST_BUCKET), ("new", PRESENT - 5)}


@pytest.mark.parametrize("stages", [[OLD, NEW], [NEW, OLD]], ids=["behind", "before"])
def test_neither_who_catches_up_nor_who_goes_on_takes_all_the_time(stages: list[object]) -> None:
    """There is always more to do for both: each gets about half of the time, whichever comes first in the script."""
    run = Run(ledger_of(), stages)
    run.tell(events.SlotsChanged([0]))
    used = {"old": 0, "new": 0}
    bucket = PRESENT
    for _ in range(120):
        for _ in range(8):
            run.tell(events.ItemsRead([frame(bucket), Advanced("north", (bucket + 1) * WIDTH_US)]))
            bucket += 1
        run.now_us += 80_000
        order = run.answer()
        for work in order.works:
            if isinstance(work, ProcessWork):
                used[work.stage] += 1
    assert min(used.values()) > 0.4 * sum(used.values()), used


def test_who_catches_up_has_all_that_the_others_leave_and_becomes_one_of_them() -> None:
    run = Run(ledger_of())
    run.tell(events.SlotsChanged([0]))
    waves = 0
    while run.orders:
        run.now_us += 80_000
        waves += 1
        run.answer()
    new = [work for order in run.done for work in order.works if isinstance(work, ProcessWork)]
    assert {work.stage for work in new} == {"new"} and new[-1].bucket_to == PRESENT
    assert all(later.bucket_from == work.bucket_to for work, later in pairwise(new))
    run.tell(events.ItemsRead([frame(PRESENT), Advanced("north", (PRESENT + 1) * WIDTH_US)]))
    assert run.node.situation.catching_up == set()


def outputs(ledger: Ledger, first: int, last: int) -> Ledger:
    for bucket in range(first, last):
        ledger.apply(frame(bucket, "old", 10, shard=0))
    return ledger


def test_a_new_sink_gets_its_rows_in_ranges_one_after_the_other() -> None:
    sink = Sink("out", "old", ParquetSink("out", 10_000_000))
    options = NodeOptions(sink_rows_max=250)
    run = Run(outputs(ledger_of(frames_from=PRESENT), 100, 200), [OLD], [sink], options)
    run.tell(events.SlotsChanged([0]))
    while run.orders:
        run.now_us += 1_000
        run.answer()
    ranges = [(item.bucket_start, item.bucket_end) for item in run.items if isinstance(item, SinkIntended)]
    assert ranges == [(100, 125), (125, 150), (150, 175), (175, PRESENT)]
    assert [item.rows for item in run.items if isinstance(item, SinkDone)] == [250] * 4


def test_where_a_sink_begins_that_cannot_or_shall_not_have_everything() -> None:
    trimmed = outputs(ledger_of(), 100, 200)
    trimmed.apply(Trimmed("old", 150))
    earliest, latest = Sink("a", "old", ParquetSink("a")), Sink("b", "old", ParquetSink("b"), "latest")
    run = Run(trimmed, [OLD], [earliest, latest])
    run.tell(events.SlotsChanged([0]))
    assert run.items[:2] == [SinkBegun("a", "old", 150), SinkBegun("b", "old", PRESENT)]
    assert [message.partition(" has ")[0] for message in run.warnings] == ["the sink 'a'", "the sink 'b'"]
    again = Run(trimmed, [OLD], [earliest, latest])
    again.tell(events.SlotsChanged([0]))
    assert not again.warnings and not [item for item in again.items if isinstance(item, SinkBegun)]


def test_a_sink_that_comes_back_never_puts_out_a_row_twice() -> None:
    ledger = outputs(ledger_of(), 100, 200)
    ledger.apply(SinkDone("out", "old", 110, 100))
    ledger.apply(SinkIntended("out", "old", 110, 170, "old-110-170"))
    ledger.apply(Trimmed("old", 150))
    run = Run(ledger, [OLD], [Sink("out", "old", ParquetSink("out"))])
    run.tell(events.SlotsChanged([0]))
    # Whether the file of the intent is there is not known: its rows may be out.
    assert run.items[0] == SinkBegun("out", "old", 170)
