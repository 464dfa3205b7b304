"""What seeds have found, as short stories: each was a bug once, and the name says what must not happen again."""

from __future__ import annotations

from typing import Final

import pytest

from holdfast.errors import Fenced
from holdfast.log.journal import JournalWriter
from holdfast.log.stream_log import LogOptions, StreamLog
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import standing, take, term_path
from holdfast.model import Advanced
from holdfast.testing.faulty_store import Crashed, FaultyStore, How
from holdfast.testing.simulator import simulate

OPTIONS: Final = LogOptions(commit_thread=False)


def opened(store: FaultyStore, owner: str = "node", stream: str = "s") -> StreamLog:
    return StreamLog.open(store, [stream], owner, shards=1, bucket_width_us=1000, options=OPTIONS)


def advanced(log: StreamLog, boundary_us: int, stream: str = "s") -> BaseException | None:
    future = log.commit([Advanced(stream, boundary_us)])
    log.flush()
    return future.exception()


def boundary_read(store: FaultyStore, stream: str = "s") -> int:
    reader = StreamReader(store.process("reader"), stream)
    reader.poll()
    return reader.ledger.boundary_us(stream)


def test_a_writer_is_fenced_although_the_files_of_the_next_term_are_gone() -> None:
    """Clearing may leave a gap between terms: a crash brought an old one back, or its journal was still needed."""
    store = FaultyStore(lock=False)
    zombie = opened(store)
    reader = StreamReader(store.process("reader"), "s")
    for life in range(1, 3):
        last = opened(store.process(f"life {life}"))
    for name in (term_path("s", 1), f"{term_path('s', 1)}.sealing"):
        store.process("clearer").delete(name)
    assert standing(store, "s").numbers == [2]
    reader.poll()
    assert advanced(last, 7000) is None
    assert isinstance(advanced(zombie, 9000), Fenced)
    reader.poll()
    assert (reader.term, reader.ledger.boundary_us("s")) == (2, 7000)


def test_a_journal_never_lies_where_another_streams_lay() -> None:
    """Who clears an old term deletes its journal: under a name that came again that would be somebody else's."""
    store = FaultyStore()
    for life in range(4):
        north = opened(store.process(f"north {life}"), "same", "north")
        assert advanced(north, 1000 + life, "north") is None
        north.close()
    south = opened(store.process("south"), "same", "south")
    assert advanced(south, 5000, "south") is None
    assert south.term.journal != north.term.journal
    for life in range(4):
        with opened(store.process(f"north again {life}"), "same", "north"):
            pass
    assert boundary_read(store, "south") == 5000


def test_what_is_left_of_a_deleted_journal_is_never_gone_on_with() -> None:
    store = FaultyStore()
    first = opened(store)
    journal = first.term.journal
    advanced(first, 1000)
    first.close()
    left = journal.replace("000000", "000001")
    JournalWriter(store, left, 7, ["s"], b"what is left", 0).close()
    second = opened(store.process("second"))
    assert second.term.journal != left and second.ledger.boundary_us("s") == 1000


def test_a_head_that_a_successor_saw_and_power_took_is_nobodys_loss() -> None:
    """A successor may read a head that was never synced, and name it before its own head is on the disk."""
    store = FaultyStore(seed=1)
    first = opened(store)
    assert advanced(first, 1000) is None
    first.close()
    operations = len(store.operations)
    opened(store.process("probe")).close()
    of_head = next(n for n, each in enumerate(store.operations[operations:]) if ": sync journal/" in each)

    for seed in range(20):
        store = FaultyStore(seed=seed)
        first = opened(store)
        assert advanced(first, 1000) is None
        first.close()
        second = store.process("second")
        store.fail_at(operations + of_head, How.BEFORE, crash=True)
        with pytest.raises(Crashed):
            opened(second)
        take(store.process("third"), ["s"], "third", 1, 1000)
        store.crash()
        assert opened(store.process("last")).ledger.boundary_us("s") == 1000


def test_an_attempt_to_begin_a_file_that_failed_is_no_damage() -> None:
    """The next attempt succeeded, but its mark was lost: a reader then looks at the files before it."""
    store = FaultyStore()
    log = opened(store)
    assert advanced(log, 1000) is None
    store.fail_at(len(store.operations), How.BEFORE)
    assert advanced(log, 2000) is not None
    store.fail_at(len(store.operations), How.AFTER)
    with pytest.raises(Exception, match="failed"):
        log.reopen()
    # create, append, sync, and then the mark
    store.fail_at(len(store.operations) + 3, How.BEFORE)
    log.reopen()
    assert boundary_read(store) == 1000


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (7, "windows that an earlier run had closed were open again after a replay"),
        (26, "a run of what is there ended before the boundary of another input had passed the last rows"),
        (170, "a file that could not be begun was taken for a journal that had lost its head"),
        (174, "a run of what is there waited for ever for a boundary that nobody moved"),
        (340, "files were not read on because the rows of a bucket that only they could complete were too many"),
        (721, "the journal of a stream was deleted by somebody who cleared an old term of another stream"),
        (792, "a run of what is there waited for ever for an end of a stage whose input ended where it had before"),
        (824, "a producer that had been taken over deleted the segments of its successor"),
        (1523, "a unit that was replaying went on without the input that had been trimmed meanwhile"),
        (4495, "a node that had been taken over failed on what its successor had trimmed"),
        (100871, "a node that had been taken over deleted copies that its successor had made"),
        (101123, "a state that a node left behind after it had been taken over was gone on with"),
    ],
)
def test_a_seed_that_once_failed(seed: int, why: str) -> None:
    assert why
    simulate(seed)
