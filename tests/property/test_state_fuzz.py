"""Damage to what a state file says about itself: it is refused, or what it says cannot end the process.

Kernels follow page numbers without checking bounds, so a test that fails here fails as a dead process.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.unit.state.driver import IDENTITY, LAYOUT, Model, contents, crash, create, pop, update

from holdfast.errors import StateAbsent
from holdfast.state import UnitState
from holdfast.state.layout import PAGE_BYTES, TABLE_HEAD, free_offset, page_sets, table_offset

ROWS = [((number, b"key"), 1, number % 50, b"text %d" % number) for number in range(2_000)]
KEYS = [row[0] for row in ROWS]
HEADER = range(2 * PAGE_BYTES)
TABLES = [table_offset(page_set.number) for page_set in page_sets(LAYOUT)]
PLACES = st.one_of(
    st.sampled_from(HEADER),
    st.builds(lambda start, at: start + at, st.sampled_from(TABLES), st.integers(0, TABLE_HEAD * 4 + 400)),
    st.builds(lambda at: free_offset() + at, st.integers(0, 400)),
)
BYTES = st.one_of(st.binary(min_size=1, max_size=16), st.just(b"\xff" * 8), st.integers(1, 600).map(bytes))


def filled(folder: str, interrupted: bool) -> UnitState:
    state = create(folder)
    model: Model = {}
    for bucket in range(3):
        state.begin(bucket)
        update(state, model, ROWS)
        pop(state, model, bucket * 5)
        state.finish(bucket + 1, b"meta")
        state.end()
    if interrupted:
        state.begin(3)
        update(state, model, ROWS[:700], "changed")
    crash(state)
    return state


def work_on(path: str) -> None:
    state = UnitState.open(path, IDENTITY, LAYOUT)
    try:
        state.begin(3)
        contents(state, KEYS)
        state.rollback()
        state.end()
        state.prepare().release()
    finally:
        state.close()


@settings(max_examples=100, deadline=None)
@given(place=PLACES, data=BYTES, interrupted=st.booleans())
def test_a_state_file_that_was_written_over_is_refused_or_harmless(place: int, data: bytes, interrupted: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-test-") as folder:
        path = filled(folder, interrupted).file.path
        with open(path, "r+b") as file:
            file.seek(place)
            file.write(data)
        try:
            work_on(path)
        except StateAbsent as error:
            assert path in str(error)


@pytest.mark.parametrize("start", [0, PAGE_BYTES, table_offset(0), table_offset(2)])
def test_a_state_file_with_a_page_of_zeros_is_refused(tmp_path: Path, start: int) -> None:
    path = filled(str(tmp_path), interrupted=False).file.path
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(PAGE_BYTES))
    with pytest.raises(StateAbsent, match="rebuild the unit"):
        work_on(path)


@pytest.mark.parametrize("pages", [0, 1, 1000, -1])
def test_a_state_file_that_was_cut_is_refused(tmp_path: Path, pages: int) -> None:
    path = filled(str(tmp_path), interrupted=False).file.path
    os.truncate(path, pages * PAGE_BYTES if pages >= 0 else os.path.getsize(path) - PAGE_BYTES)
    with pytest.raises(StateAbsent, match="rebuild the unit"):
        work_on(path)
