"""Why a node gave up reaches whoever reads the store later."""

from __future__ import annotations

import pyarrow as pa

from holdfast.log.ledger import Ledger
from holdfast.model import Reported
from holdfast.node import events
from holdfast.node.decider import NodeDecider
from holdfast.node.messages import Failed, Receipt
from holdfast.node.options import NodeOptions
from holdfast.plan import ProducerSource, Source, Stage, StageInput, Topology

SCHEMA = pa.schema([("item", pa.string())]).serialize().to_pybytes()
STAGE = Stage("averages", [StageInput("north", SCHEMA, [])], SCHEMA, None, [], SCHEMA)
TOPOLOGY = Topology("retail", 1, 200_000, [Source("north", SCHEMA, ProducerSource(), ["item"])], [STAGE], [])


def test_a_final_failure_is_reported_on_a_stream_that_readers_follow() -> None:
    decider = NodeDecider(TOPOLOGY, Ledger(1, 200_000), "node-host-1-1", 0, NodeOptions(), now_us=1)
    (order,) = [
        command.order
        for command in decider.handle(events.SlotsChanged([0]), 2)
        if isinstance(command, events.StartWave)
    ]
    failed = Failed(0, "BadRow", "row 3 cannot be read", retry=False)
    receipt = Receipt(order.wave, 0, "node-host-1-1", "host", 1, [failed])
    commands = decider.handle(events.ReceiptArrived(receipt), 3)
    (reported,) = [item for command in commands if isinstance(command, events.Commit) for item in command.items]
    assert isinstance(reported, Reported) and "row 3 cannot be read" in reported.message
    ledger = Ledger(1, 200_000)
    ledger.apply(reported)
    assert ledger.about("averages").reports == [reported]
    assert [command.error for command in commands if isinstance(command, events.Finish)] == ["BadRow"]
