"""Rows are shown whatever they hold and however wide the terminal is."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal

import pyarrow as pa
import pytest
from rich.console import Console

from holdfast.connect.console import show_rows

ROWS = pa.table(
    {
        "item": ["[red]apple[/red]", "\x1b[31mred\x1b[0m", None],
        "price": [1.5, float("nan"), 1e300],
        "amount": pa.array([Decimal("1.50"), None, Decimal("2.00")]),
        "at": pa.array([datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)] * 3),
        "window": [{"start": 1, "end": None}] * 3,
        "raw": [b"\x00\xff", b"", b"x" * 100],
        "tags": [[1, 2], [], None],
    }
)


def shown(table: pa.Table, width: int, rows_max: int = 20) -> str:
    out = io.StringIO()
    show_rows("averages", table, rows_max, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [1, 2, 10, 41, 80, 300])
def test_any_width_shows_rows(width: int) -> None:
    assert shown(ROWS, width)
    assert "\x1b" not in shown(ROWS, width)


def test_values_are_shown_as_they_are() -> None:
    text = shown(ROWS, 200)
    assert "[red]apple[/red]" in text and "null" in text and "nan" in text and "1.50" in text
    assert "2024-07-01 12:00:00.000" in text and "{start: 1, end: null}" in text and "[1, 2]" in text


def test_what_is_not_shown_is_counted() -> None:
    assert "... and 2 more rows" in shown(ROWS, 200, 1)
    assert shown(pa.table({}), 80) and shown(ROWS.slice(0, 0), 80)
