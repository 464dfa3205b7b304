"""Without locks, a paused writer may wake up at any moment of a take-over: nothing of it is read after the seal."""

from __future__ import annotations

import pytest
from tests.unit.log.log_session import WIDTH_US, append_frame, items_of, open_log

from holdfast.errors import Fenced, StreamTaken
from holdfast.log.stream_log import StreamReader
from holdfast.log.terms import standing
from holdfast.model import Published
from holdfast.testing.faulty_store import Crashed, FaultyStore, How


class Zombie:
    """A writer that commits whenever it is asked to."""

    def __init__(self, store: FaultyStore) -> None:
        self.log = open_log(store, "zombie")
        self.writer = self.log.segment_writer("north", 0, 1)
        self.acknowledged: list[int] = []
        self.number = 0
        self.fenced = False

    def commit(self) -> None:
        future = self.log.commit(items_of(self.number, append_frame(self.writer, self.number)))
        self.log.flush()
        error = future.exception()
        if error is None:
            self.acknowledged.append(self.number)
            self.number += 1
        else:
            assert isinstance(error, Fenced)
            self.fenced = True


def numbers_of(items: list[object]) -> list[int]:
    return [item.stamp_us // WIDTH_US for item in items if isinstance(item, Published) and item.stamp_us is not None]


def operations_of_a_take_over() -> range:
    store = FaultyStore(lock=False)
    Zombie(store).commit()
    first = len(store.operations)
    open_log(store.process("successor"))
    return range(first, len(store.operations))


def test_a_zombie_that_wakes_at_any_step_of_a_take_over_is_fenced_or_kept() -> None:
    fenced_at = []
    for number in operations_of_a_take_over():
        store = FaultyStore(lock=False)
        zombie = Zombie(store)
        zombie.commit()
        reader = StreamReader(store.process("reader"), "north")
        seen: list[int] = []

        def wake(zombie: Zombie = zombie, reader: StreamReader = reader, seen: list[int] = seen) -> None:
            zombie.commit()
            seen += numbers_of(list(reader.poll()))

        store.interrupt_at(number, wake)
        successor = open_log(store.process("successor"), "successor")
        zombie.commit() if not zombie.fenced else None
        assert zombie.fenced, "after the take-over a commit always fails"
        kept = numbers_of(list(successor.ledger.all_frames("north")))
        seen += numbers_of(list(reader.poll()))
        assert set(zombie.acknowledged) <= set(kept)
        assert seen == kept == sorted(set(kept))
        fenced_at.append(len(zombie.acknowledged))
    assert {1, 2} <= set(fenced_at), "some wake before the seal, some after"


def test_a_take_over_that_dies_at_any_step_can_be_begun_again() -> None:
    for number in operations_of_a_take_over():
        for how in How:
            store = FaultyStore(seed=number, lock=False)
            zombie = Zombie(store)
            zombie.commit()
            reader = StreamReader(store.process("reader"), "north")
            store.fail_at(number, how, crash=True)
            try:
                open_log(store.process("successor"), "successor")
            except Crashed:
                if number % 2:
                    store.crash()
            last = open_log(store.process("last"), "last")
            assert numbers_of(list(last.ledger.all_frames("north"))) == zombie.acknowledged
            if not number % 2:
                assert numbers_of(list(reader.poll())) == zombie.acknowledged


def test_a_second_writer_of_a_stream_is_told_who_the_first_is() -> None:
    store = FaultyStore()
    first = open_log(store, "first")
    with pytest.raises(StreamTaken, match=r"stream 'averages' .* written by 'first' \(process \d+ on .*\), term 0"):
        open_log(store.process("other"), "second")
    first.close()
    second = open_log(store.process("other"), "second")
    assert second.term.numbers == {"north": 1, "averages": 1}
    assert second.term.still_held()


def test_old_terms_and_journals_are_deleted_and_the_last_two_stay() -> None:
    store = FaultyStore()
    for life in range(5):
        process = store.process(f"life {life}")
        with open_log(process):
            pass
    assert standing(process, "north").numbers == [3, 4]
    assert process.list("journal/averages") == ["node-000003", "node-000004"]
