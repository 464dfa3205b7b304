"""The node's decisions, one event at a time."""

from __future__ import annotations

import msgspec
from tests.unit.node.stages import SCHEMA, stage_of

from holdfast.log.ledger import Ledger
from holdfast.model import UnitCommitted
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.options import NodeOptions
from holdfast.plan import ParquetSink, ProducerSource, Sink, Source, Stage, Topology

DAY_US = 86_400_000_000
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


def test_what_a_sink_has_not_put_out_is_kept_however_old_it_is() -> None:
    found = trimmed(decider([Sink("out", STAGE.name, ParquetSink("out"))]))
    assert found[STAGE.name] < 0
