"""Listeners are told in order, each whatever the others do, and the node never waits for one."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import pytest

from holdfast.node.listening import (
    WAITING_MAX,
    Announcer,
    Listener,
    Listeners,
    QueryIdleEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

ID, RUN = uuid.uuid4(), uuid.uuid4()
STARTED = QueryStartedEvent(ID, RUN, "retail", "2026-11-19T20:40:01.352Z")
TERMINATED = QueryTerminatedEvent(ID, RUN, "row 3 cannot be read", "BadRow")


def idle(number: int) -> QueryIdleEvent:
    return QueryIdleEvent(ID, RUN, str(number))


class Notes(Listener):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self.told.append(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self.told.append(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.told.append(event)


def test_everybody_is_told_in_order_and_the_end_comes_last() -> None:
    notes = Notes()
    listeners = Listeners("retail")
    listeners.add(notes)
    listeners.add(notes)
    announcer = Announcer(listeners)
    events = [STARTED, idle(1), idle(2), TERMINATED]
    for event in events:
        announcer.announce(event)
    announcer.close()
    announcer.wait()
    assert notes.told == events


def test_who_is_removed_hears_no_more_and_who_hears_nothing_costs_no_thread() -> None:
    listeners = Listeners("retail")
    notes = Notes()
    listeners.add(notes)
    listeners.remove(notes)
    listeners.remove(notes)
    before = threading.active_count()
    announcer = Announcer(listeners)
    announcer.announce(STARTED)
    announcer.close()
    announcer.wait()
    assert notes.told == [] and threading.active_count() == before


def test_one_that_raises_is_logged_once_and_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(Notes):
        def onQueryIdle(self, event: QueryIdleEvent) -> None:
            super().onQueryIdle(event)
            raise ValueError("a listener's own affair")

    raises, notes = Raises(), Notes()
    listeners = Listeners("retail")
    listeners.add(raises)
    listeners.add(notes)
    for number in range(3):
        listeners.tell(idle(number))
    assert notes.told == raises.told == [idle(0), idle(1), idle(2)]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "a listener's own affair" in caplog.text and "retail" in record.message


def test_one_that_does_not_come_back_loses_the_oldest_and_hears_the_end(caplog: pytest.LogCaptureFixture) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(Notes):
        def onQueryStarted(self, event: QueryStartedEvent) -> None:
            inside.set()
            go_on.wait(60)

    slow = Slow()
    listeners = Listeners("retail")
    listeners.add(slow)
    announcer = Announcer(listeners)
    announcer.announce(STARTED)
    assert inside.wait(60)
    for number in range(WAITING_MAX + 10):
        announcer.announce(idle(number))
    announcer.announce(TERMINATED)
    announcer.close()
    go_on.set()
    announcer.wait()
    assert slow.told[-2:] == [idle(WAITING_MAX + 9), TERMINATED]
    assert len(slow.told) == WAITING_MAX - 1
    assert [record.message for record in caplog.records] == [
        "a listener of the pipeline retail is so slow that it is not told everything"
    ]


def test_what_is_no_listener_is_refused_by_the_method_that_it_lacks() -> None:
    with pytest.raises(TypeError, match=r"no onQueryStarted: derive from hf\.Listener"):
        Listeners("retail").add(print)
