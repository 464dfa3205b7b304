"""What the commands print, for a person or for a program.

Invariants:
    * With `--json` standard output holds JSON and nothing else; a line is a whole value.
    * Messages and errors go to standard error.
    * An error of ours is one message. A traceback is shown only with `--debug`.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.connect.console import value_text

_WIDTH_ELSEWHERE = 1000

Function = TypeVar("Function", bound=Callable[..., Any])


def common_options(function: Function) -> Function:
    """Give a command the options that every command has."""
    debug = click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_note_debug,
        help="Show a traceback when something fails.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for a program to read.")
    return as_json(debug(function))


def _note_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Keep it where `main` and those commands that start others find it."""
    context.obj = value


def example(text: str) -> str:
    """Return the last part of a command's help: what to type."""
    return f"\b\nExample:\n  {text}"


def print_json(value: Any) -> None:
    """Print one JSON value on one line."""
    sys.stdout.write(msgspec.json.encode(_named(value), enc_hook=_plain).decode() + "\n")
    sys.stdout.flush()


def _named(value: Any) -> Any:
    """Return structs as objects with names: on disk many of them are bare lists."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _named(getattr(value, name)) for name in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return fields if tag is None else {"item": tag, **fields}
    if isinstance(value, dict):
        return {name: _named(each) for name, each in value.items()}
    return [_named(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value)


def print_message(text: str) -> None:
    """Tell a person something that is not the command's result."""
    click.echo(text, err=True)


def wide_console() -> Console:
    """Return a console that folds lines at the width of a terminal, and nowhere else: a pipe has no width."""
    return Console() if sys.stdout.isatty() else Console(width=_WIDTH_ELSEWHERE)


def print_grid(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], console: Console | None = None
) -> None:
    """Print rows under headings; nothing where there are none."""
    if not rows:
        return
    grid = Table(title=Text(title), title_justify="left", header_style="bold", box=None, padding=(0, 2, 0, 0))
    for index, heading in enumerate(headings):
        number = all(isinstance(row[index], int | float) for row in rows)
        grid.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text("" if value is None else _cell(value)) for value in row))
    target = console or wide_console()
    with target.capture() as drawn:
        target.print(grid)
    # Blanks at the ends of lines are of no use to whoever reads a pipe.
    target.file.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value_text(value)


def time_text(time_us: int) -> str:
    """Return a time as a person reads it, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_us)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def bytes_text(size_bytes: int) -> str:
    """Return a size as a person reads it."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1024 or unit == "TB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
