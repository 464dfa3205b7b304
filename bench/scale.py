"""How W1 (count windows of 10 with an average) scales: slots, units, executors, keys; tuples/s and bytes per key.

Each measurement is a process of its own, after one file's worth of tuples to warm up. All executors share the machine's
cores: more of them than cores say what they cost, not what they bring.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process
from bench.data import prepare

TUPLES: Final = 10_000_000
TUPLES_QUICK: Final = 2_000_000
KEYS: Final = 100_000
LIMIT_S: Final = 240
BASE: Final[dict[str, int]] = {"keys": KEYS, "cores": 2, "executors": 0, "units": 8}


def variants(quick: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield what is measured: a name, and where it differs from the base."""
    for cores in (1, 2):
        yield f"slots_{cores}", {"cores": cores}
    for units in (8, 256) if quick else (8, 64, 256):
        yield f"units_{units}", {"units": units}
    for keys in (10_000, 4_000_000) if quick else (10_000, 100_000, 1_000_000, 4_000_000):
        yield f"keys_{keys}", {"keys": keys}
    for executors in () if quick else (1, 2, 4):
        yield f"executors_{executors}", {"executors": executors}


def measure_one(name: str, chosen: dict[str, int], tuples: int, data: Path, work: Path) -> compare.Run:
    state = Path("/dev/shm") / f"holdfast-bench-{work.name}-{name}"
    shutil.rmtree(state, ignore_errors=True)
    options: dict[str, Any] = {
        **BASE,
        **chosen,
        "work": str(work),
        "input_folder": str(prepare(data, tuples, chosen.get("keys", KEYS)).folder),
        "tuples": tuples,
        "limit_s": LIMIT_S,
    }
    try:
        return process.run("bench.ours.scale:run_one", options, LIMIT_S + 60, {"HOLDFAST_STATE_DIR": str(state)})
    finally:
        shutil.rmtree(state, ignore_errors=True)


def main() -> None:
    program = measure.program("scale", __doc__ or "", compare.add_work)
    tuples = TUPLES_QUICK if program.quick else TUPLES
    chosen = dict(variants(program.quick))
    with compare.folders(program) as (data, work):
        results = compare.in_turns(
            {name: lambda n=name, each=each: measure_one(n, each, tuples, data, work) for name, each in chosen.items()},  # type: ignore[misc]
            program.options.rounds or 1,
        )
    program.figures.update(results)
    compare.say_failures(program, results)
    rates = compare.medians(results, "tuples_per_second")
    program.figure("tuples_per_second", rates)
    program.figure("state_bytes_per_key", compare.medians(results, "state_bytes_per_key"))
    ratio = compare.quotient(rates["slots_2"], rates["slots_1"])
    compare.goal(program, "two slots, times one slot", ratio, at_least=1.8)
    ratio = compare.quotient(rates["keys_10000"], rates["keys_4000000"])
    compare.goal(program, "time per tuple at 4,000,000 keys, times that at 10,000", ratio, at_most=3)
    program.finish()


if __name__ == "__main__":
    main()
