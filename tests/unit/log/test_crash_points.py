"""Every write, sync, create, rename and delete of a log's life is failed in turn: before, after, half-way."""

from __future__ import annotations

import pytest
from tests.unit.log.log_session import Session

from holdfast.testing.faulty_store import Crashed, FaultyStore, How

FRAMES = 9


def three_lives(session: Session, store: FaultyStore, *successors: FaultyStore) -> None:
    session.run(store, FRAMES)
    for successor in successors:
        session.run(successor, 2)


def operations_of_a_whole_life() -> int:
    store = FaultyStore(seed=1)
    session = Session(store)
    three_lives(session, store, store.process("second"), store.process("third"))
    operations = list(store.operations)
    session.check(store.process("last"))
    assert len(session.acknowledged) == FRAMES + 4
    assert any("000001.log" in operation for operation in operations), "the script rolls the journal over"
    assert any("000002.seg" in operation for operation in operations), "the script rolls segments over"
    assert any("delete terms/" in operation for operation in operations), "the script deletes old terms"
    return len(operations)


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("ending", ["error", "killed", "power"])
def test_no_operation_can_break_a_promise(how: How, ending: str) -> None:
    for number in range(operations_of_a_whole_life()):
        store = FaultyStore(seed=number)
        store.fail_at(number, how, crash=ending != "error")
        session = Session(store)
        try:
            three_lives(session, store, store.process("second"), store.process("third"))
        except Crashed:
            if ending == "power":
                store.crash()
            three_lives(session, store.process("again"), store.process("again second"), store.process("again third"))
        if number % 2:
            store.crash()
        session.check(store.process("last"))
