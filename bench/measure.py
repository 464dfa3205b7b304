"""What every measuring program shares: its options, its rounds, its goals, and what machine it ran on.

Invariants:
    * Those that are compared run in turns, round by round, so that a slow moment of the machine hits all of them.
    * A figure is the median of its rounds; the rounds themselves are in the JSON too.
    * The JSON says everything needed to repeat the run: options, versions, machine, time.

```python
program = measure.program("state", "The paged map against a flat table.")
with measure.timed() as seconds: ...
figures = measure.in_turns({"ours": ours, "flat": flat}, rounds=7)
program.figure("update_ms", figures)
program.goal("ratio", value, at_most=1.5)
program.finish()
```
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGES = ("holdfast", "pyspark", "pyarrow", "numpy", "numba", "msgspec", "pandas")


def median(values: Sequence[float]) -> float:
    """Return the middle value."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100).__int__() - 1)]


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run all of them `rounds` times, taking turns (each round begins with another one), and return what each gave."""
    names = list(runs)
    results: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(runs[name]())
    return results


def ratio_of(results: Mapping[str, Sequence[float]], name: str, other: str) -> float:
    """Return the median of the rounds' ratios: both parts of each met the same moment of the machine."""
    return median([a / b for a, b in zip(results[name], results[other], strict=True)])


class Stopwatch:
    """Seconds that a `timed` block took."""

    seconds = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Measure a block."""
    watch = Stopwatch()
    start = time.perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - start


def versions() -> dict[str, str]:
    """Return the version of Python and of each package that figures may depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and system: nothing that names the machine."""
    model = "unknown"
    memory_mb = 0
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
        memory_mb = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": memory_mb,
        "system": f"{platform.system()} {platform.release()}",
    }


@dataclass(slots=True)
class Program:
    """One run of a measuring program. Figures and goals are collected; `finish` prints and writes them."""

    name: str
    description: str
    options: argparse.Namespace
    figures: dict[str, Any] = field(default_factory=dict)
    goals: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    @property
    def quick(self) -> bool:
        return bool(self.options.quick)

    def figure(self, name: str, value: Any) -> None:
        """Keep a figure, a list of rounds, or a table of them, and say it."""
        self.figures[name] = value
        print(f"{name}: {_short(value)}", flush=True)

    def note(self, text: str) -> None:
        """Say something that a reader of the figures has to know."""
        self.notes.append(text)
        print(f"note: {text}", flush=True)

    def goal(self, name: str, value: float, at_most: float | None = None, at_least: float | None = None) -> None:
        """Keep a goal: a value with its limit, and whether it holds."""
        assert (at_most is None) != (at_least is None), "a goal has one limit"
        limit = at_most if at_most is not None else at_least
        assert limit is not None
        holds = value <= limit if at_most is not None else value >= limit
        sense = "at most" if at_most is not None else "at least"
        self.goals.append({"name": name, "value": value, "limit": limit, "sense": sense, "holds": holds})
        print(f"goal {name}: {value:.4g}, {sense} {limit:g}: {'holds' if holds else 'DOES NOT HOLD'}", flush=True)

    def finish(self) -> None:
        """Write the JSON, if one was asked for."""
        if self.options.json is None:
            return
        result = {
            "name": self.name,
            "description": self.description,
            "quick": self.quick,
            "options": {key: str(value) for key, value in vars(self.options).items() if key not in ("json", "quick")},
            "at": datetime.datetime.fromtimestamp(self.started, datetime.UTC).isoformat(timespec="seconds"),
            "took_s": round(time.time() - self.started, 1),
            "machine": machine(),
            "versions": versions(),
            "figures": self.figures,
            "goals": self.goals,
            "notes": self.notes,
        }
        self.options.json.parent.mkdir(parents=True, exist_ok=True)
        self.options.json.write_text(json.dumps(result, indent=2) + "\n")


def program(
    name: str,
    description: str,
    add_options: Callable[[argparse.ArgumentParser], None] | None = None,
    arguments: Sequence[str] | None = None,
) -> Program:
    """Read the command line (`--json FILE`, `--quick`, and what `add_options` adds) and return the program."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and goal there")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter: ends within 90 seconds")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often those that are compared run in turns")
    if add_options is not None:
        add_options(parser)
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    print(f"bench.{name}: {description}", flush=True)
    return Program(name, description, options)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_short(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, (int, float)) for part in value):
        return f"median {median(value):.4g} of {len(value)} (from {min(value):.4g} to {max(value):.4g})"
    return str(value)
