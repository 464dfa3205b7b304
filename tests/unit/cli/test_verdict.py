"""What is wrong with a pipeline is the first thing that somebody who was woken up reads."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.cli.pipeline_status import (
    ConsumerStatus,
    PipelineStatus,
    StreamStatus,
    WriterStatus,
    failure_in,
    troubles_in,
)
from holdfast.cli.verdict import verdict_of
from holdfast.connect.query_state import QueryState
from holdfast.model import Reported
from holdfast.node.trouble import REPORTED_AFTER, Troubles

NODE = WriterStatus("node-host-7-1", "host", 7, 0, True, 1)
TILL = WriterStatus("producer-till", "host", 8, 0, True, 1)


def status(alive: bool | None = True, **changes: object) -> PipelineStatus:
    """Return a pipeline that runs and keeps up."""
    streams = [
        StreamStatus("north", "source", TILL, 5, 0.1, False, 9, 9),
        StreamStatus("averages", "stage", msgspec.structs.replace(NODE, alive=alive), 5, 0.2, False, 9, 9, ["north"]),
    ]
    whole = PipelineStatus("retail", "id", "file:///x", alive, 9, 2, 200_000, 1 << 40, streams, [], [], [])
    return msgspec.structs.replace(whole, **changes)


def with_stream(found: PipelineStatus, name: str, **changes: object) -> PipelineStatus:
    streams = [msgspec.structs.replace(each, **changes) if each.name == name else each for each in found.streams]
    return msgspec.structs.replace(found, streams=streams)


def test_a_pipeline_that_keeps_up_has_no_problem() -> None:
    verdict = verdict_of(status())
    assert (verdict.state, verdict.problems) == ("running", [])


def test_an_input_whose_producer_is_gone_is_named() -> None:
    gone = msgspec.structs.replace(TILL, alive=False)
    verdict = verdict_of(with_stream(status(), "north", writer=gone, lag_s=60.0))
    assert verdict.problems == [
        "averages waits for north, whose boundary is 60.0 s behind: producer 'till' (process 8 on host) is gone; "
        "start it again"
    ]


def test_an_input_that_nobody_ever_sent_to_is_named() -> None:
    (problem,) = verdict_of(with_stream(status(), "north", writer=None, lag_s=None)).problems
    assert problem == "averages waits for north, to which nobody has sent anything yet"


def test_why_an_input_stands_still_is_said_where_its_writer_reported_it() -> None:
    report = Reported("north", "the query of source 'north' failed: no route to host", 5)
    (problem,) = verdict_of(with_stream(status(reports=[report]), "north", writer=NODE, lag_s=9.0)).problems
    assert problem.endswith("It was reported: the query of source 'north' failed: no route to host")


QUERY = msgspec.structs.replace(NODE, owner="query-host-7-1")
DEAD = QueryState("dead", 1_760_000_000_000_000, 3, "no route to host", 1_760_000_008_000_000)


def test_a_query_that_died_is_named_with_its_cause_since_when_and_the_next_try() -> None:
    died, waits = verdict_of(with_stream(status(), "north", writer=QUERY, lag_s=9.0, query=DEAD)).problems
    assert died == (
        "the query of north is down since 2025-10-09 08:53:20.000Z: it died, 3 times in a row of: no route to host; "
        "next try at 2025-10-09 08:53:28.000Z"
    )
    assert waits == "averages waits for north, whose boundary is 9.0 s behind: its query is down"
    trying = DEAD.started(DEAD.next_try_us or 0)
    said = verdict_of(with_stream(status(), "north", writer=QUERY, query=trying)).problems
    assert [problem.rpartition("; ")[2] for problem in said] == ["is being started again"]


def test_a_query_that_runs_and_does_not_look_is_told_from_one_that_died() -> None:
    hangs = with_stream(status(), "north", writer=QUERY, lag_s=9.0, query=QueryState("running", 5))
    assert verdict_of(hangs).problems == [
        "averages waits for north, whose boundary is 9.0 s behind: its query runs, and has not looked at its source "
        "for so long"
    ]
    assert verdict_of(with_stream(status(), "north", writer=QUERY, query=QueryState("starting", 5))).problems == []


def test_a_stage_that_is_behind_its_inputs_is_named() -> None:
    (problem,) = verdict_of(with_stream(status(), "averages", lag_s=12.0)).problems
    assert "averages is 12.0 s behind its input" in problem


def test_a_failure_is_said_with_its_reason_and_a_stop_with_the_next_step() -> None:
    failed = verdict_of(status(False, failure=Reported("averages", "BadRow: row 3 of x.csv", 5)))
    assert failed.state == "failed" and "BadRow: row 3 of x.csv" in failed.problems[0]
    stopped = verdict_of(status(False))
    assert stopped.state == "stopped" and "start it again" in stopped.problems[0]


def test_a_pipeline_whose_windows_are_all_closed_is_finished() -> None:
    verdict = verdict_of(with_stream(status(False), "averages", ended=True))
    assert (verdict.state, verdict.problems) == ("finished", [])


@pytest.mark.parametrize(("alive", "state"), [(None, "unknown"), (True, "running")])
def test_a_node_of_another_machine_is_not_called_dead(alive: bool | None, state: str) -> None:
    assert verdict_of(status(alive)).state == state


def test_a_damaged_pipeline_is_not_called_safe_to_start() -> None:
    verdict = verdict_of(with_stream(status(False), "averages", writer=None, problem="the journal is gone"))
    assert verdict.state == "unknown"
    assert verdict.problems == ["averages cannot be read: the journal is gone"]


def test_room_consumers_and_unreadable_streams_are_said() -> None:
    expired = ConsumerStatus("averages", "report", 1, 2, True)
    found = with_stream(status(disk_free_bytes=5 << 20, consumers=[expired]), "north", problem="it is damaged")
    said = "\n".join(verdict_of(found).problems)
    assert "5 MB left" in said and "'report' of averages" in said and "north cannot be read: it is damaged" in said


def reported(troubles: Troubles, times: int, at_us: int) -> Reported:
    """Return what the journal has after so many failures of a sink."""
    for _ in range(times):
        troubles.failed("sink top", "no room on the device", at_us)
    message = troubles.report("sink top")
    assert message is not None
    return Reported("averages", message, at_us)


def test_what_is_tried_in_vain_is_the_state_and_comes_first() -> None:
    trouble = reported(Troubles(), REPORTED_AFTER, 5)
    verdict = verdict_of(with_stream(status(troubles=[trouble]), "averages", lag_s=12.0))
    assert verdict.state == "failing"
    assert verdict.problems[0].startswith(
        "sink top fails at every try, 10 times in a row so far: no room on the device"
    )
    assert "averages is 12.0 s behind" in verdict.problems[1]


def test_a_trouble_lasts_until_its_end_is_reported_and_is_that_of_the_node_that_runs() -> None:
    troubles = Troubles()
    began = reported(troubles, REPORTED_AFTER, 5)
    again = troubles.succeeded("sink top")
    assert again is not None
    over = Reported("averages", again, 6)
    other = Reported("averages", "100 rows were skipped", 7)
    assert troubles_in([began, other], NODE) == [began]
    assert troubles_in([began, over, other], NODE) == []
    assert troubles_in([began, over, reported(troubles, REPORTED_AFTER, 8)], NODE) != []
    assert troubles_in([began], msgspec.structs.replace(NODE, since_us=6)) == [], "an older node's"


def test_a_node_that_was_killed_while_it_tried_has_not_given_up() -> None:
    gone = msgspec.structs.replace(NODE, alive=False)
    began = reported(Troubles(), REPORTED_AFTER, 5)
    gave_up = Reported("averages", "BadRow: row 3 of x.csv", 4)
    assert failure_in([began], ["averages"], gone) is None
    assert failure_in([gave_up, began], ["averages"], gone) == gave_up
