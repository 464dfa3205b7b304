"""A user's function that raises: `stop` names the row and goes on after the fix, `reject` goes on at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.chaos.arena import arena_in
from tests.chaos.feed import drop, piece
from tests.chaos.oracle import check_rows, counted, rows_in
from tests.chaos.pipeline_under_test import POISON

from holdfast.connect.consumer import Consumer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
PIECES = 6


def poisoned(seed: int, value: int) -> list[pa.Table]:
    """Return pieces of which one has a row with a value of its own."""
    tables = [piece(seed, 1, number) for number in range(PIECES)]
    values = tables[3].column("value").to_pylist()
    values[777] = value
    tables[3] = tables[3].set_column(2, "value", pa.array(values, pa.int64()))
    return tables


def drop_all(folder: Path, tables: list[pa.Table], first: int = 0) -> None:
    for number, table in enumerate(tables[first:], first):
        drop(folder, f"{number:06d}", table)


def test_stop_names_the_row_and_the_fix_goes_on(tmp_path: Path) -> None:
    with arena_in(tmp_path, 41) as arena:
        drop_all(tmp_path, poisoned(41, 5)[:2])
        arena.run_to_the_end("running", "--function", "strict")
        first = rows_in(tmp_path)
        drop_all(tmp_path, poisoned(41, POISON), first=2)
        for _ in range(2):
            stopped = arena.start("running", "--available-now", "--function", "strict")
            assert stopped.ended() == 1, stopped.said()
            assert f"what is {POISON}?" in stopped.said()
            assert str(POISON) in stopped.said().partition("UserFunctionFailed")[2], stopped.said()
        arena.run_to_the_end("running", "--function", "mended")
        rows = rows_in(tmp_path)
        assert not counted(first) - counted(rows), "what was out is out still"
        check_rows("running", rows, poisoned(41, 0))


def test_reject_leaves_the_row_out_and_keeps_it(tmp_path: Path) -> None:
    with arena_in(tmp_path, 42) as arena:
        tables = poisoned(42, POISON)
        drop_all(tmp_path, tables)
        arena.run_to_the_end("running", "--function", "strict", "--on-error", "reject")
        tables[3] = pa.concat_tables([tables[3].slice(0, 777), tables[3].slice(778)])
        check_rows("running", rows_in(tmp_path), tables)
        rejects: list[dict[str, Any]] = []
        with Consumer(arena.store, "dropped.rejects") as consumer:
            while (table := consumer.poll()) is not None:
                rejects += table.to_pylist()
        assert len(rejects) == 1
        assert str(POISON) in str(rejects[0])
