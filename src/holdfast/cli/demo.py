"""`holdfast demo`: the demonstration, whose program is `holdfast.demo`."""

from __future__ import annotations

from importlib import import_module

import click

from holdfast.cli.output import common_options, example


@click.command("demo", epilog=example("holdfast demo"))
@common_options
def command(as_json: bool) -> int:
    """Run a retail pipeline, kill it in the middle, and compare what comes out with a run that was never killed."""
    # The demo's nodes are processes of their own: what keeps all of them from starting is said once, before the first.
    import_module("holdfast.spark.jvm").java_command()
    result = import_module("holdfast.demo").main(as_json=as_json)
    return int(result or 0)
