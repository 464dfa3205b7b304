"""What is the matter with a pipeline, in sentences: what somebody who was woken up wants to know first.

Pure: from what was read of the store. A sentence names the object, what was found and the next step.
"""

from __future__ import annotations

import msgspec

from holdfast.cli.output import time_text
from holdfast.cli.pipeline_status import PipelineStatus, State, StreamStatus, UnitsStatus
from holdfast.connect.query_state import QueryState

LAG_SAID_S = 3.0
"""A lag below it is nothing to speak of: an idle boundary moves about once a second."""
FREE_BYTES_SAID = 1 << 30
LATE_SAID = 0.01
"""A few late rows are what watermarks are for; more of them than this share are results that somebody misses."""


class Verdict(msgspec.Struct, frozen=True):
    """The state, and what somebody should do something about."""

    state: State
    problems: list[str]


def verdict_of(status: PipelineStatus) -> Verdict:
    """Return the state of a pipeline and what is wrong with it."""
    state = _state(status)
    problems = [f"{each.name} cannot be read: {each.problem}" for each in status.streams if each.problem is not None]
    damaged = bool(problems)
    if state == "failed":
        failure = status.failure
        assert failure is not None, "only a report says that a pipeline failed"
        problems.append(f"{failure.message.rstrip('.')}. Nothing committed is lost: mend the cause and start it again")
    if state == "stopped" and not damaged:
        problems.append("no node runs: it was stopped or killed. Nothing committed is lost: start it again")
    problems += [each.message for each in status.troubles if state == "failing"]
    if state in ("running", "failing"):
        problems += [
            f"the query of {each.name} {query_text(each.query)}"
            for each in status.streams
            if each.query is not None and each.query.is_down
        ]
        problems += _held_up(status)
    problems += [_left_out(each.name, each.units) for each in status.streams if each.units and _is_late(each.units)]
    problems += [
        f"the consumer {each.name!r} of {each.stream} was not seen for so long that its place is kept no more"
        for each in status.consumers
        if each.expired
    ]
    if status.disk_free_bytes is not None and status.disk_free_bytes < FREE_BYTES_SAID:
        problems.append(
            f"the disk of the store has {status.disk_free_bytes >> 20} MB left. When it is full the pipeline "
            "waits, and goes on when there is room"
        )
    return Verdict(state, problems)


def _is_late(units: UnitsStatus) -> bool:
    return units.rows_late > LATE_SAID * units.rows_in


def _left_out(stage: str, units: UnitsStatus) -> str:
    return (
        f"{stage} left {units.rows_late:,} of {units.rows_in:,} rows out: they came when their windows had closed. A "
        'longer delay in withWatermark waits for such rows, late="side" of the source keeps them'
    )


def _state(status: PipelineStatus) -> State:
    stages = [each for each in status.streams if each.kind == "stage"]
    if status.alive:
        return "failing" if status.troubles else "running"
    if status.alive is None or any(each.problem is not None and each.writer is None for each in stages):
        return "unknown"
    if all(each.writer is None for each in stages):
        return "never started"
    if status.failure is not None:
        return "failed"
    return "finished" if stages and all(each.ended for each in stages) else "stopped"


def _held_up(status: PipelineStatus) -> list[str]:
    """Say of each stage that is behind the clock which input holds it up, or that it is behind its inputs."""
    streams = {each.name: each for each in status.streams}
    found = []
    for stage in (each for each in status.streams if each.kind == "stage"):
        behind = [streams[name] for name in stage.inputs if _lags(streams[name])]
        if behind:
            slowest = max(behind, key=lambda each: float("inf") if each.lag_s is None else each.lag_s)
            found.append(f"{stage.name} waits for {_reason(slowest)}{_said(status, slowest)}")
        elif stage.lag_s is not None and stage.lag_s > LAG_SAID_S:
            found.append(f"{stage.name} is {stage.lag_s:.1f} s behind its input and has work to do")
    return found


def _lags(source: StreamStatus) -> bool:
    return not source.ended and (source.lag_s is None or source.lag_s > LAG_SAID_S)


def query_text(query: QueryState) -> str:
    """Return since when a query is down, why, and when it is tried again."""
    times = "" if query.deaths < 2 else f", {query.deaths} times in a row"
    again = "is being started again" if query.next_try_us is None else f"next try at {time_text(query.next_try_us)}"
    return (
        f"is down since {time_text(query.since_us)}: it died{times} of: {query.cause or 'nobody knows what'}; {again}"
    )


def _reason(source: StreamStatus) -> str:
    writer = source.writer
    if source.query is not None and writer is not None and writer.alive is not False:
        lag = (
            "which has promised nothing yet"
            if source.lag_s is None
            else f"whose boundary is {source.lag_s:.1f} s behind"
        )
        if source.query.is_down:
            return f"{source.name}, {lag}: its query is down"
        return f"{source.name}, {lag}: its query runs, and has not looked at its source for so long"
    if writer is None:
        return f"{source.name}, to which nobody has sent anything yet"
    lag = "which has promised nothing yet" if source.lag_s is None else f"whose boundary is {source.lag_s:.1f} s behind"
    who = f"{writer.name} (process {writer.pid} on {writer.host})"
    return f"{source.name}, {lag}: " + (
        f"{who} is gone; start it again" if writer.alive is False else f"{who} writes it"
    )


def _said(status: PipelineStatus, source: StreamStatus) -> str:
    """Return what the source's present writer last reported of it; of a query its state says more."""
    if source.query is not None:
        return ""
    since_us = None if source.writer is None else source.writer.since_us
    reports = [each for each in status.reports if each.subject == source.name and each.at_us >= (since_us or 0)]
    return f". It was reported: {reports[-1].message}" if reports else ""
