"""`holdfast explain`: the pipeline of a program, drawn; nothing is started.

Invariants:
    * The program runs up to its `run()` or `start()`. No store has to be there, and none is touched.
    * Standard output holds the drawing alone: what the program prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from holdfast.cli.output import common_options, example, print_json, print_message
from holdfast.cli.script import run_program, tell
from holdfast.errors import Misconfigured
from holdfast.explain.facts import PipelineFacts
from holdfast.explain.svg import svg_of
from holdfast.explain.terminal import print_text
from holdfast.pipeline.program import ExplainedInstead, watched


@click.command(
    "explain",
    epilog=example("holdfast explain retail.py --svg retail.svg"),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--svg", type=click.Path(dir_okay=False), help="Write a picture to this file instead (- for stdout).")
@click.option("--pipeline", "name", help="Show the pipeline of this name only; a program may make several.")
@common_options
def command(file: str, arguments: tuple[str, ...], svg: str | None, name: str | None, as_json: bool) -> int:
    """Draw the pipeline in the program FILE, run with ARGUMENTS up to its run(): what it reads, keeps and promises."""
    debug = bool(click.get_current_context().obj)
    try:
        found = explained(file, arguments, quietly=not debug)
    except Exception as error:
        if debug:
            raise
        tell(error, file, ["--json"] if as_json else [])
        return 1
    for facts in _chosen(found, file, name, svg):
        if svg is not None:
            _write(svg_of(facts), svg)
        elif as_json:
            print_json(facts)
        else:
            print_text(facts)
    return 0


def explained(file: str, arguments: tuple[str, ...] = (), quietly: bool = True) -> list[PipelineFacts]:
    """Run a program up to its start; return what is known of each of its pipelines."""
    with watched(only_explained=True) as program, contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(ExplainedInstead):
            run_program(file, arguments, quietly)
        return [pipeline.facts() for pipeline in program.pipelines]


def _chosen(found: list[PipelineFacts], file: str, name: str | None, svg: str | None) -> list[PipelineFacts]:
    names = ", ".join(repr(each.name) for each in found)
    if not found:
        raise Misconfigured(
            f"{file} ended and made no pipeline, so there is nothing to explain: call hf.Pipeline(...) in it, or give "
            "it the arguments that make it do so"
        )
    chosen = [each for each in found if name in (None, each.name)]
    if not chosen:
        raise Misconfigured(f"{file} has no pipeline {name!r}; it has {names}")
    if svg is not None and len(chosen) > 1:
        raise Misconfigured(f"{file} has the pipelines {names}, and a picture shows one; choose it with --pipeline")
    return chosen


def _write(picture: str, target: str) -> None:
    if target == "-":
        click.echo(picture, nl=False)
        return
    try:
        Path(target).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(f"the picture cannot be written to {target!r}: {error.strerror}") from error
    print_message(f"holdfast: wrote {target}")
