"""Why a node gave up, and what it tries in vain, reaches whoever reads the store later."""

from __future__ import annotations

import pyarrow as pa

from holdfast.log.ledger import Ledger
from holdfast.model import FIRST_BUCKET, JournalItem, Reported
from holdfast.node import events
from holdfast.node.decider import BACKOFF_MAX_US, NodeDecider
from holdfast.node.messages import Attached, Failed, Receipt, Result
from holdfast.node.options import NodeOptions
from holdfast.node.trouble import (
    HOPELESS_AFTER,
    PYTHON_RAISED,
    REPORTED_AFTER,
    SAID_EVERY,
    STATE_AFTER,
    is_failing,
    is_passing,
    subject_of_report,
)
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


class Tries:
    """A node of one slot, whose every try is answered by the test."""

    def __init__(self) -> None:
        self.decider = NodeDecider(TOPOLOGY, Ledger(1, 200_000), "node-host-1-1", 0, NodeOptions(), now_us=1)
        self.now_us = 2
        self.items: list[JournalItem] = []
        self.warnings: list[str] = []
        self.commands = self._take(self.decider.handle(events.SlotsChanged([0]), self.now_us))

    def answer(self, result: Result) -> None:
        """Answer the order under way, and go on to the next one, however long that is paused."""
        (order,) = [command.order for command in self.commands if isinstance(command, events.StartWave)]
        receipt = Receipt(order.wave, 0, "node-host-1-1", "host", 1, [result])
        self._take(self.decider.handle(events.ReceiptArrived(receipt), self.now_us))
        self.now_us += BACKOFF_MAX_US
        self.commands = self._take(self.decider.handle(events.TimePassed(), self.now_us))

    def _take(self, commands: list[events.Command]) -> list[events.Command]:
        self.items += [item for command in commands if isinstance(command, events.Commit) for item in command.items]
        self.warnings += [command.message for command in commands if isinstance(command, events.Warn)]
        return commands


FULL = Failed(0, "StoreUnavailable", "no room on the device", retry=True)


def test_work_that_fails_at_every_try_becomes_the_nodes_state_and_is_reported_once() -> None:
    tries = Tries()
    troubles = tries.decider.situation.troubles
    for _ in range(2):
        tries.answer(FULL)
    assert troubles.worst() is None, "a try or two may fail"
    for _ in range(REPORTED_AFTER * 3):
        tries.answer(FULL)
    trouble = troubles.worst()
    assert trouble is not None
    assert (trouble.subject, trouble.times, trouble.since_us) == ("stage averages on slot 0", REPORTED_AFTER * 3 + 2, 2)
    (reported,) = [item for item in tries.items if isinstance(item, Reported)]
    assert reported.subject == "averages" and is_failing(reported.message)
    assert "no room on the device" in reported.message and f"{REPORTED_AFTER} times" in reported.message
    assert len(tries.warnings) == 1 + (REPORTED_AFTER * 3 + 2) // SAID_EVERY


def test_the_end_of_a_trouble_is_reported_if_the_trouble_was() -> None:
    tries = Tries()
    for _ in range(REPORTED_AFTER):
        tries.answer(FULL)
    tries.answer(Attached("averages", 0, FIRST_BUCKET, "empty"))
    began, ended = [item.message for item in tries.items if isinstance(item, Reported)]
    assert is_failing(began) and not is_failing(ended) and is_passing(ended)
    assert subject_of_report(began) == subject_of_report(ended) == "stage averages on slot 0"
    assert tries.decider.situation.troubles.worst() is None


def test_a_slot_that_is_gone_takes_its_troubles_with_it() -> None:
    tries = Tries()
    for _ in range(STATE_AFTER):
        tries.answer(FULL)
    assert tries.decider.situation.troubles.worst() is not None
    tries.decider.handle(events.SlotsChanged([1]), tries.now_us)
    assert tries.decider.situation.troubles.worst() is None


def test_other_reports_are_not_about_a_trouble() -> None:
    for message in ("BadRow: row 3 fails at every try, says its reader", "the query of source north has ended"):
        assert subject_of_report(message) is None and not is_passing(message)


def test_what_python_cannot_even_load_ends_the_pipeline() -> None:
    """That is the same at every try; a process that dies, or anything else that may pass, is tried for ever."""
    for reason, ends in (
        (f"{PYTHON_RAISED}ModuleNotFoundError: No module named 'x'", True),
        (f"{PYTHON_RAISED}OSError: no room on the device", False),
        ("the worker died", False),
    ):
        tries = Tries()
        finished: list[events.Command] = []
        while not finished and tries.decider.situation.troubles.tries_failed < 2 * HOPELESS_AFTER:
            (order,) = [command.order for command in tries.commands if isinstance(command, events.StartWave)]
            commands = tries.decider.handle(events.WaveLost(order.wave, 0, reason), tries.now_us)
            finished = [command for command in commands if isinstance(command, events.Finish)]
            tries.now_us += BACKOFF_MAX_US
            tries.commands = tries.decider.handle(events.TimePassed(), tries.now_us)
        assert bool(finished) == ends
        assert tries.decider.situation.troubles.tries_failed == (HOPELESS_AFTER if ends else 2 * HOPELESS_AFTER)
