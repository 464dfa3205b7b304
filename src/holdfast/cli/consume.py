"""`holdfast consume`: the rows of a stream, for a person or as JSON lines."""

from __future__ import annotations

from typing import cast

import click
import pyarrow as pa

from holdfast.cli.output import common_options, example, print_json, print_message, wide_console
from holdfast.cli.stores import check_folder
from holdfast.connect.console import show_rows
from holdfast.connect.consumer import Consumer
from holdfast.connect.views import View
from holdfast.errors import Misconfigured


@click.command("consume", epilog=example("holdfast consume retail-store averages --follow"))
@click.argument("store")
@click.argument("stream")
@click.option("--view", type=click.Choice(["stable", "latest", "changes"]), default="stable", show_default=True)
@click.option("--name", help="Remember the place under this name, and go on from there next time.")
@click.option("--start", default="earliest", show_default=True, help="earliest, latest, or the number of a bucket.")
@click.option("--follow", is_flag=True, help="Wait for more until the stream ends or Ctrl-C.")
@click.option("--rows", "rows_max", type=click.IntRange(min=1), help="Stop after so many rows.")
@click.option("--wait", default="1 second", show_default=True, help="How long the pipeline may take to appear.")
@common_options
def command(
    store: str,
    stream: str,
    view: str,
    name: str | None,
    start: str,
    follow: bool,
    rows_max: int | None,
    wait: str,
    as_json: bool,
) -> None:
    """Print the rows of STREAM (or PIPELINE/STREAM) in STORE, in its order; with --json, one object a line."""
    if name is not None and rows_max is not None:
        # A place is that of whole buckets; half a table cannot be remembered.
        raise click.UsageError("--rows cannot be used together with --name")
    check_folder(store)
    begin = start if start in ("earliest", "latest") else _bucket(start)
    with Consumer(store, stream, cast(View, view), name, begin, wait=wait) as consumer:  # type: ignore[arg-type]
        printed = 0
        while (table := consumer.poll(None if follow else 0.0)) is not None:
            if rows_max is not None:
                table = table.slice(0, rows_max - printed)
            _print(consumer.stream, table, as_json)
            printed += table.num_rows
            if name is not None:
                consumer.commit()
            if rows_max is not None and printed >= rows_max:
                break
        if not printed and not as_json:
            print_message(f"holdfast: stream {consumer.stream!r} has no more complete buckets with rows")


def _bucket(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Misconfigured(f"--start {text!r}: expected earliest, latest or the number of a bucket.") from None


def _print(stream: str, table: pa.Table, as_json: bool) -> None:
    if not as_json:
        show_rows(stream, table, table.num_rows, wide_console())
        return
    for row in table.to_pylist():
        print_json(row)
