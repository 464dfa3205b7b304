"""Every write, sync, create, rename and delete of a log's life is failed in turn: before, after, half-way."""

from __future__ import annotations

import contextlib

import pytest
from tests.unit.log.log_session import SCHEMA, Session, append_frame, batch_of, items_of, open_log

from holdfast.errors import StoreUnavailable
from holdfast.log.reconcile import segment_paths
from holdfast.log.rewrite import rewrite
from holdfast.log.segment import SegmentWriter, read_batch
from holdfast.log.stream_log import StreamLog, StreamReader
from holdfast.model import JournalItem, Trimmed
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


class Keeper:
    """A life that commits frames, trims some of them, moves others and deletes what nothing names any more."""

    def __init__(self, store: FaultyStore) -> None:
        self.kept: set[int] = set()
        self.unsure: set[int] = set()
        self._next = 0
        self._reader = StreamReader(store.process("reader"), "north")

    def run(self, store: FaultyStore) -> None:
        for _ in range(4):
            try:
                log = open_log(store)
                break
            except StoreUnavailable:
                continue
        with log:
            writer = log.segment_writer("north", 0, log.term.numbers["north"])
            self._next = max((frame.bucket_end for frame in log.ledger.all_frames("north")), default=self._next)
            for _ in range(6):
                self._commit_frame(log, writer)
            self._reader.poll()
            self._keep_house(store, log)
            self._commit_frame(log, writer)

    def _commit_frame(self, log: StreamLog, writer: SegmentWriter) -> None:
        number = self._next
        with contextlib.suppress(StoreUnavailable):
            ref = append_frame(writer, number)
            if self._committed(log, items_of(number, ref)[:2]):
                self.kept.add(number)
                self._next += 1

    def _keep_house(self, store: FaultyStore, log: StreamLog) -> None:
        with contextlib.suppress(StoreUnavailable):
            before = self._next - 4
            gone = {number for number in self.kept if number + 1 <= before}
            self.unsure |= gone
            if self._committed(log, [Trimmed("north", before)]):
                self.kept -= gone
            first = log.ledger.all_frames("north")[0].frame.segment
            moved = rewrite(store, log.ledger, "north", [first], log.copies_folder("north")).moved
            if self._committed(log, list(moved)):
                named = {frame.frame.segment for frame in log.ledger.all_frames("north")}
                for path in [path for path in segment_paths(store, "north") if path not in named]:
                    store.delete(path)

    @staticmethod
    def _committed(log: StreamLog, items: list[JournalItem]) -> bool:
        future = log.commit(items)
        log.flush()
        while log.failure is not None:
            with contextlib.suppress(StoreUnavailable):
                log.reopen()
        return future.exception() is None

    def check(self, store: FaultyStore) -> None:
        with open_log(store) as log:
            frames = log.ledger.all_frames("north")
            numbers = [frame.bucket_start for frame in frames]
            assert len(set(numbers)) == len(numbers), "nothing is there twice"
            assert self.kept - self.unsure <= set(numbers), "nothing committed is lost, unless it was trimmed"
            for number, frame in zip(numbers, frames, strict=True):
                assert read_batch(store, frame.frame, SCHEMA).equals(batch_of(number))
            fresh = StreamReader(store.process("fresh"), "north")
            fresh.poll()
            assert fresh.ledger == log.ledger.about("north")


def operations_of_keeping_house() -> int:
    store = FaultyStore(seed=1)
    keeper = Keeper(store)
    keeper.run(store)
    operations = list(store.operations)
    keeper.check(store.process("last"))
    assert any("/rewritten/" in operation for operation in operations), "the script moves frames"
    assert any("delete streams/" in operation for operation in operations), "the script deletes segments"
    return len(operations)


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("ending", ["error", "killed", "power"])
def test_no_operation_of_keeping_house_can_lose_a_frame(how: How, ending: str) -> None:
    for number in range(operations_of_keeping_house()):
        store = FaultyStore(seed=number)
        keeper = Keeper(store)
        store.fail_at(number, how, crash=ending != "error")
        try:
            keeper.run(store)
        except Crashed:
            if ending == "power":
                store.crash()
                keeper = _after_power(keeper, store)
            keeper.run(store.process("again"))
        keeper.check(store.process("last"))
        store.crash()
        keeper.check(store.process("after a crash"))


def _after_power(keeper: Keeper, store: FaultyStore) -> Keeper:
    """The reader's machine is gone too; what was promised is still promised."""
    again = Keeper(store)
    again.kept, again.unsure, again._next = keeper.kept, keeper.unsure, keeper._next
    return again


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
