"""`holdfast doctor`: check this machine, a store and a Spark session with its executors, and say what to change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
import msgspec

from holdfast.cli.checkup import Finding, check_executors, check_machine, check_session, check_store
from holdfast.cli.output import common_options, example, print_json, wide_console

_MARKS = {"good": "[green]ok  [/]", "doubtful": "[yellow]look[/]", "bad": "[red]bad [/]"}


@click.command("doctor", epilog=example("holdfast doctor retail-store --master spark://host:7077"))
@click.argument("store", required=False)
@click.option("--master", help="The cluster whose executors are to be checked (default: this machine).")
@click.option("--no-spark", is_flag=True, help="Start no session: check the machine and the store alone.")
@common_options
def command(store: str | None, master: str | None, no_spark: bool, as_json: bool) -> int:
    """Check this machine, the STORE and every executor. Exit status 1 means that something will not work."""
    findings: list[Finding] = []
    for finding in _findings(store, master, no_spark):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print_json({"findings": [msgspec.to_builtins(finding) for finding in findings]})
    return 1 if any(finding.grade == "bad" for finding in findings) else 0


def _findings(store: str | None, master: str | None, no_spark: bool) -> Iterator[Finding]:
    machine = list(check_machine())
    yield from machine
    if store is not None:
        yield from check_store(store)
    if no_spark or any(finding.grade == "bad" for finding in machine):
        return
    if master is not None:
        os.environ["HOLDFAST_MASTER"] = master
    session: Any = import_module("holdfast.spark.session")
    spark = session.session("holdfast-doctor")
    try:
        yield from check_session(spark)
        yield from check_executors(spark, store)
    finally:
        spark.stop()


def _show(finding: Finding) -> None:
    console = wide_console()
    console.print(
        f"{_MARKS[finding.grade]:<6} {finding.part}: {finding.what}: ", finding.found, sep="", highlight=False
    )
    if finding.advice:
        console.print(f"     {finding.advice}", highlight=False, markup=False)
