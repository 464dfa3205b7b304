"""Ours and the peers in turns, where a run gives many figures and may fail; goals from what did not.

Invariants:
    * Each round begins with another side, as in `measure.in_turns`.
    * A goal that could not be measured is in the JSON as one that does not hold, with the reason in the notes.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import measure

Run = dict[str, Any]


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add `--work`, where tuples are kept for the next time."""
    parser.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep generated tuples there and use them again (default: nowhere)"
    )


@contextmanager
def folders(program: measure.Program) -> Iterator[tuple[Path, Path]]:
    """Give (folder for tuples, folder for everything else); the latter is gone afterwards."""
    # Told to end, a program ends as after Ctrl-C: what it has started goes with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    kept: Path | None = program.options.work
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=kept) as scratch:
        yield (kept or Path(scratch)).resolve(), Path(scratch).resolve()


def in_turns(runs: Mapping[str, Callable[[], Run]], rounds: int) -> dict[str, list[Run]]:
    """Run all of them `rounds` times, each round beginning with another one."""
    names = list(runs)
    results: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(runs[name]())
    return results


def say_failures(program: measure.Program, results: Mapping[str, Sequence[Run]]) -> None:
    """Make a note of every run that failed."""
    for name, rounds in results.items():
        for number, run in enumerate(rounds):
            if "failed" in run:
                program.note(f"{name}, round {number + 1}: {run['failed']}")


def median_of(rounds: Sequence[Run], figure: str) -> float | None:
    """Return the median of a figure over the rounds that have it; None where none has."""
    found = [run[figure] for run in rounds if run.get(figure) is not None]
    return measure.median(found) if found else None


def medians(results: Mapping[str, Sequence[Run]], figure: str) -> dict[str, float | None]:
    return {name: median_of(rounds, figure) for name, rounds in results.items()}


def goal(
    program: measure.Program,
    name: str,
    value: float | None,
    at_most: float | None = None,
    at_least: float | None = None,
) -> None:
    """Keep a goal; without a value it does not hold."""
    if value is not None:
        program.goal(name, value, at_most, at_least)
        return
    limit, sense = (at_most, "at most") if at_most is not None else (at_least, "at least")
    program.goals.append({"name": name, "value": None, "limit": limit, "sense": sense, "holds": False})
    program.note(f"goal {name}: not measured, so it DOES NOT HOLD")


def quotient(value: float | None, other: float | None) -> float | None:
    """Return value / other where there are both."""
    return value / other if value is not None and other else None


def best(values: Sequence[float | None], highest: bool) -> float | None:
    """Return the best of those that were measured."""
    found = [value for value in values if value is not None]
    return (max if highest else min)(found, default=None)
