"""A thousand seeds, each a pipeline whose disk, processes and network fail: every promise is kept in all of them.

What is counted on the way shows that the faults really came: a simulator that has become harmless fails here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, get_args

import pytest

from holdfast.node.events import Command, Event
from holdfast.testing.faults import OPERATIONS
from holdfast.testing.faulty_disk import How
from holdfast.testing.simulator import Outcome, outcomes_of

SEEDS: Final = range(1000)
OFTEN: Final = 100
SELDOM: Final = 20

HAPPENS_OFTEN: Final = [
    "a job was done",
    "a lease could not be written",
    "a node died in its start",
    "a node is asked to stop",
    "a node is killed",
    "a node is paused",
    "a node was fenced",
    "a node was taken over while it lived",
    "a producer is killed",
    "a producer is paused",
    "a producer was fenced",
    "a producer's log was reopened",
    "a reader follows a new term",
    "a reader is killed",
    "a receipt came that nobody waited for",
    "a receipt was late",
    "a receipt was lost",
    "a receipt was repeated",
    "a slot is paused",
    "a snapshot was deleted",
    "a snapshot was written",
    "a start failed: StoreUnavailable",
    "a start failed: StreamTaken",
    "a state was absent",
    "a state was attached empty",
    "a state was attached from a snapshot",
    "a state was attached from memory",
    "a state was to be rolled back",
    "a stream could not be read at the start",
    "a worker becomes slower or faster",
    "a worker is killed at work",
    "a zombie finished its order",
    "a zombie wrote a frame",
    "all slots go",
    "another node starts",
    "another producer starts",
    "an idle worker is killed",
    "bytes lost",
    "disk full",
    "frames were moved",
    "frames were trimmed",
    "interleaved",
    "memory is lost",
    "name came back",
    "name lost",
    "power is cut",
    "slots change",
    "the disk fills up",
    "work failed: StoreUnavailable",
]
HAPPENS: Final = [
    "a batch was sent again and known",
    "a snapshot could not be read",
    "a snapshot is damaged",
    "a snapshot was given up",
    "a state in memory was overtaken",
    "work failed: StateBusy",
    *(f"event {kind.__name__}" for kind in get_args(Event)),
    *(f"command {kind.__name__}" for kind in get_args(Command)),
    *(f"{name} {what}, {how.value}" for name in OPERATIONS for what in ("failed", "died in") for how in How),
]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[Outcome]]:
    yield list(outcomes_of(SEEDS))


def test_no_seed_breaks_a_promise(outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.failure]
    for outcome in failed:
        print(f"seed {outcome.seed}: {outcome.failure}\n")
    assert not [outcome.seed for outcome in failed], "each is printed above with the command that replays it"


def test_every_kind_of_fault_and_decision_happens(outcomes: list[Outcome]) -> None:
    tally: Counter[str] = Counter()
    for outcome in outcomes:
        tally.update(outcome.tally)
    too_few = {what: tally[what] for what in HAPPENS_OFTEN if tally[what] < OFTEN}
    too_few |= {what: tally[what] for what in HAPPENS if tally[what] < SELDOM}
    assert not too_few, "the simulator does not do what it is there for"
    assert sum(outcome.events for outcome in outcomes) > 500 * len(SEEDS)
