"""Whatever happens between waves, and however the rows of a bucket arrive, a unit gives the same rows.

What happens: a wave is given up half-way, one is done that the journal never hears of, the process ends and another
opens the state, or the state is gone and everything is processed again.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.test_windows import AGGREGATES, SCHEMA, batch_of, frames, placed, wave_ends
from tests.unit.operators.harness import Unit, aggregate, column, make_stage, stamped

from holdfast import plan
from holdfast.operators.stage import UnitOperator, layout_of
from holdfast.operators.union import InputRows
from holdfast.state.layout import Identity
from holdfast.state.unit_state import UnitState

MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WINDOWS: list[plan.CountWindow | plan.TimeWindow | None] = [
    plan.CountWindow(3, 3),
    plan.CountWindow(4, 2),
    plan.TimeWindow(column("at", SCHEMA), 10, 10),
    plan.TimeWindow(column("at", SCHEMA), 20, 7, 3),
    None,
]
ORDER_FREE = [each for each in AGGREGATES if each.function not in ("first", "last")] + [
    aggregate("least", "min", column("value", SCHEMA), "bigint")
]
events = st.lists(st.sampled_from(["nothing", "given up", "not heard of", "reopened", "gone"]), min_size=8, max_size=8)
Frames = list[tuple[int, list[Any]]]


class Survivor(Unit):
    """A unit to which things happen between its waves; its frames are kept, so that it can process them again."""

    def __init__(self, path: Path, stage: plan.Stage) -> None:
        super().__init__(path, stage)
        self.path = path
        self.stage = stage

    def give_up(self, runs: Sequence[Sequence[InputRows]], bucket_to: int, finish: bool) -> None:
        """Do a wave of which nothing is heard: half of it, or all."""
        assert self.state is not None
        self.state.begin(self.bucket)
        output = self.operator.process(runs, self.bucket, bucket_to)
        if finish:
            self.state.finish(bucket_to, output.meta)
        self.state.end()

    def reopen(self) -> None:
        """Go on in what might be another process, from what is in the file."""
        layout = layout_of(self.stage)
        assert self.state is not None and layout is not None
        self.state.close()
        self.state = UnitState.open(str(self.path / "unit.state"), Identity("p", "results", 0, 1), layout)
        self.operator = UnitOperator(self.stage, 0, 1, self.state, (), "UTC", 1000)

    def start_again(self, found: Frames) -> None:
        """Lose the state, and process everything up to here once more; it has to come out as before."""
        layout = layout_of(self.stage)
        assert self.state is not None and layout is not None
        self.state.close()
        self.state = UnitState.create(str(self.path / "unit.state"), Identity("p", "results", 0, 1), layout, 0)
        self.operator = UnitOperator(self.stage, 0, 1, self.state, (), "UTC", 1000)
        before, bucket = self.digests(), self.bucket
        self.outputs, self.bucket = [], 0
        if bucket:
            self.wave([frames_of(found, self.stage, 0, bucket)], bucket)
        assert self.digests() == before


def frames_of(found: Frames, stage: plan.Stage, bucket_from: int, bucket_to: int) -> list[InputRows]:
    event_time = stage.inputs[0].event_time
    return [
        stamped(batch_of(part), bucket, event_time)
        for bucket, part in found
        if part and bucket_from <= bucket < bucket_to
    ]


def stage_of(window: Any, aggregates: Any) -> plan.Stage:
    event_time = "at" if isinstance(window, plan.TimeWindow) else None
    return make_stage(SCHEMA, ["key", "place"], aggregates, window, event_time=event_time, delay_us=3)


def undisturbed(stage: plan.Stage, found: Frames, last: int) -> Unit:
    with tempfile.TemporaryDirectory() as folder:
        unit = Unit(Path(folder), stage)
        unit.wave([frames_of(found, stage, 0, last + 1)], last + 1, True)
        unit.close()
        return unit


@MANY
@given(frames, st.lists(st.booleans(), min_size=8, max_size=8), events, st.sampled_from(WINDOWS))
def test_crashes_between_and_within_waves(found: Any, chosen: list[bool], happens: list[str], window: Any) -> None:
    stage = stage_of(window, AGGREGATES)
    found = placed(found)
    last = found[-1][0]
    with tempfile.TemporaryDirectory() as folder:
        unit = Survivor(Path(folder), stage)
        for number, end in enumerate(wave_ends(last, chosen)):
            event = happens[number % len(happens)]
            runs = [frames_of(found, stage, unit.bucket, end)]
            if event in ("given up", "not heard of"):
                unit.give_up(runs, end, event == "not heard of")
                unit.reopen()
            elif event == "reopened":
                unit.reopen()
            elif event == "gone":
                unit.start_again(found)
            unit.wave(runs, end, end == last + 1)
        unit.close()
    expected = undisturbed(stage, found, last)
    assert unit.digests() == expected.digests()
    assert unit.rows() == expected.rows()


@MANY
@given(frames, st.integers(0, 2**32), st.sampled_from(WINDOWS))
def test_rows_of_one_moment_may_come_in_any_number_of_frames(found: Any, seed: int, window: Any) -> None:
    stage = stage_of(window, AGGREGATES)
    found, chooser = placed(found), random.Random(seed)
    pieces: Frames = []
    for bucket, part in found:
        while part:
            size = chooser.randrange(1, len(part) + 1)
            pieces.append((bucket, part[:size]))
            part = part[size:]
    last = found[-1][0]
    assert undisturbed(stage, pieces, last).digests() == undisturbed(stage, found, last).digests()


@MANY
@given(frames, st.integers(0, 2**32), st.sampled_from(WINDOWS[2:]))
def test_the_order_of_arrival_within_a_bucket_does_not_matter_to_what_has_no_order(
    found: Any, seed: int, window: Any
) -> None:
    stage = stage_of(window, ORDER_FREE)
    found = placed(found)
    last = found[-1][0]
    chooser = random.Random(seed)
    shuffled: Frames = []
    for bucket in range(last + 1):
        rows = [row for at, part in found if at == bucket for row in part]
        chooser.shuffle(rows)
        shuffled += [(bucket, rows[:3]), (bucket, rows[3:])]
    assert undisturbed(stage, shuffled, last).digests() == undisturbed(stage, found, last).digests()


def test_no_rows_at_all() -> None:
    for window in WINDOWS:
        unit = undisturbed(stage_of(window, AGGREGATES), [(0, [])], 3)
        assert unit.rows() == []
