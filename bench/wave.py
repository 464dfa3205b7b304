"""The time of a wave that processes nothing, beside the cheapest triggers of Structured Streaming.

A wave is: an order to each of two slots, their tasks, their receipts, and the journal's synced entry. It is also
measured with many units in each slot: the number of tasks stays two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process
from bench.peers.wave import STATEFUL, STATELESS

UNITS_PER_SLOT: Final = (1, 8, 64)
PEERS_QUICK: Final = ("two_row_tasks", "stateful_rows")
"""The faster one of each kind, in full runs."""
FLAT_AT_MOST: Final = 1.5
"""What 64 units of a slot may cost more than one: the sum of their own small work, but no task each."""


def measure_all(work: Path, quick: bool) -> dict[str, list[compare.Run]]:
    """Run both sides in turns; return every run by name, each with its p50 in ms."""
    seconds = 4 if quick else 15
    peers: list[dict[str, Any]] = [
        {"name": query, "query": query, "state_store": "rocksdb", "seconds": seconds}
        for query in (PEERS_QUICK if quick else (*STATELESS, *STATEFUL))
    ]

    def run_peers() -> compare.Run:
        options = {"peers": peers, "work": str(work)}
        found = process.run("bench.peers.wave:run_all", options, 45.0 if quick else 60 * len(peers))
        return {peer["name"]: with_percentiles(found.get(peer["name"], found), "trigger_ms") for peer in peers}

    def run_ours() -> compare.Run:
        options = {"units_per_slot": UNITS_PER_SLOT, "seconds": seconds, "work": str(work)}
        found = process.run("bench.ours.wave:run_all", options, 40.0 if quick else 120.0)
        names = [name_of(units) for units in UNITS_PER_SLOT]
        return {name: with_percentiles(found.get(name, found), "wave_ms") for name in names}

    rounds = compare.in_turns({"peers": run_peers, "ours": run_ours}, 1 if quick else 3)
    sides = [{**peer, **own} for peer, own in zip(rounds["peers"], rounds["ours"], strict=True)]
    return {name: [side[name] for side in sides] for name in sides[0]}


def name_of(units: int) -> str:
    return f"holdfast_{units}_per_slot"


def with_percentiles(run: compare.Run, times: str) -> compare.Run:
    """Add p50, p90 and p99 of a run's times; a run that failed, or was too short to have one, stays as it is."""
    values: list[Any] = run.get(times, [])
    if not values:
        return run
    return run | {f"p{percent}_ms": measure.percentile(values, percent) for percent in (50, 90, 99)}


def set_goals(program: measure.Program, results: dict[str, list[compare.Run]]) -> None:
    p50 = compare.medians(results, "p50_ms")
    program.figure("p50_ms", p50)
    ours = p50[name_of(1)]
    stateless = compare.best([p50.get(name) for name in STATELESS], highest=False)
    stateful = compare.best([p50.get(name) for name in STATEFUL], highest=False)
    part = compare.quotient(ours, stateless)
    compare.goal(program, "wave, part of a trigger with two Python tasks", part, at_most=1 / 5)
    compare.goal(program, "wave, part of a stateful trigger", compare.quotient(ours, stateful), at_most=1 / 10)
    flat = compare.quotient(p50[name_of(UNITS_PER_SLOT[-1])], ours)
    compare.goal(program, "wave with 64 units per slot, times that with 1", flat, at_most=FLAT_AT_MOST)


def main() -> None:
    program = measure.program("wave", __doc__ or "", compare.add_work)
    with compare.folders(program) as (_, work):
        results = measure_all(work, program.quick)
    program.figures.update(results)
    compare.say_failures(program, results)
    set_goals(program, results)
    program.finish()


if __name__ == "__main__":
    main()
