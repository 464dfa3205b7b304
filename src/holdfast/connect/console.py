"""Print rows of a stream for a person.

Invariants:
    * Whatever the values or the width of the terminal are, printing does not fail and does not touch the rows.
    * What is not shown is counted.
"""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_PER_COLUMN_MIN = 6


def show_rows(title: str, table: pa.Table, rows_max: int = 20, console: Console | None = None) -> None:
    """Print the first `rows_max` rows of `table` under a title, as a grid where it fits, else one value a line."""
    console = console or Console()
    shown = table.slice(0, max(rows_max, 0)).to_pylist()
    names = table.column_names
    if names and console.width < _WIDTH_PER_COLUMN_MIN * len(names):
        _show_lines(title, names, shown, console)
    else:
        console.print(_grid(title, names, shown, table.schema))
    if table.num_rows > len(shown):
        console.print(Text(f"... and {table.num_rows - len(shown):,} more rows", style="dim"))


def value_text(value: Any) -> str:
    """Return a value as a person reads it; control characters cannot reach the terminal."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) and abs(value) < 1e15 else str(value)
    if isinstance(value, datetime.datetime):
        # `isoformat` of the zone is noise here: all of them are the session's or none.
        return value.replace(tzinfo=None).isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, bytes):
        return value[:32].hex() + ("..." if len(value) > 32 else "")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {value_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(value_text, value)) + "]"
    text = str(value)
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)


def _grid(title: str, names: list[str], rows: list[dict[str, Any]], schema: pa.Schema) -> Table:
    grid = Table(title=Text(title), title_justify="left", header_style="bold")
    for field in schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        grid.add_column(Text(field.name), justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(value_text(row[name])) for name in names))
    return grid


def _show_lines(title: str, names: list[str], rows: list[dict[str, Any]], console: Console) -> None:
    console.print(Text(title))
    for row in rows:
        for name in names:
            console.print(Text(f"{name}: {value_text(row[name])}"))
        console.print(Text("-" * max(1, min(console.width, 20))))
