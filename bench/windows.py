"""Throughput of count windows (W1) and running groups (W2), Parquet files to durable results, beside Spark's own.

W1 is the CEC paper's query: count windows of 10 with an average, over 100,000 uniformly random keys. W2 is SGuard's:
count, min and max over 100,000 and 1,000,000 groups. Peers and ours read the same files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process
from bench.data import prepare

TUPLES: Final = 20_000_000
TUPLES_QUICK: Final = 3_000_000
KEYS: Final = 100_000
KEYS_MANY: Final = 1_000_000
FILES_PER_TRIGGER: Final = 2
BUCKET: Final = "200 milliseconds"
PER_KEY: Final = ("per_key_rows", "per_key_pandas")
SECONDS_QUICK: Final = 45.0
"""After these no further peer begins in a quick run."""


class Sizes:
    """How much each side gets in this run."""

    def __init__(self, quick: bool) -> None:
        self.tuples = TUPLES_QUICK if quick else TUPLES
        self.rounds = 1 if quick else 3
        self.peer_limit_s = 10 if quick else 90
        self.per_key_limit_s = 5 if quick else 40
        self.per_key_share = 100 if quick else 10
        self.ours_limit_s = 40 if quick else 300
        self.peers_begin_s = SECONDS_QUICK if quick else 3600.0


def peers_of(sizes: Sizes, data: Path) -> list[dict[str, Any]]:
    """Return the peers' runs, in the order in which they are begun."""
    few = str(prepare(data, sizes.tuples, KEYS).folder)
    many = str(prepare(data, sizes.tuples, KEYS_MANY).folder)
    common = {"files_per_trigger": FILES_PER_TRIGGER, "time_limit_s": sizes.peer_limit_s}
    fewest = {**common, "state_store": "rocksdb", "input_folder": few}
    per_key = {**fewest, "time_limit_s": sizes.per_key_limit_s, "key_share": sizes.per_key_share}
    groups = {**common, "query": "groups"}
    # Those that goals depend on come first: a quick run on a busy machine may not get to the others.
    return [
        {**fewest, "name": "by_key_group", "query": "by_key_group"},
        {**groups, "name": f"groups_{KEYS}_in_memory", "state_store": "in_memory", "input_folder": few},
        {**groups, "name": f"groups_{KEYS_MANY}_in_memory", "state_store": "in_memory", "input_folder": many},
        *({**per_key, "name": query, "query": query} for query in PER_KEY),
        {**groups, "name": f"groups_{KEYS}_rocksdb", "state_store": "rocksdb", "input_folder": few},
        {**groups, "name": f"groups_{KEYS_MANY}_rocksdb", "state_store": "rocksdb", "input_folder": many},
    ]


def ours_of(sizes: Sizes, data: Path) -> list[dict[str, Any]]:
    few = str(prepare(data, sizes.tuples, KEYS).folder)
    many = str(prepare(data, sizes.tuples, KEYS_MANY).folder)
    common = {"tuples": sizes.tuples, "bucket": BUCKET, "limit_s": sizes.ours_limit_s}
    return [
        {**common, "name": "holdfast_windows", "query": "count_windows", "input_folder": few},
        {**common, "name": f"holdfast_groups_{KEYS}", "query": "groups", "input_folder": few},
        {**common, "name": f"holdfast_groups_{KEYS_MANY}", "query": "groups", "input_folder": many},
    ]


def measure_all(program: measure.Program, data: Path, work: Path) -> dict[str, list[compare.Run]]:
    """Run both sides in turns and return every run by name."""
    sizes = Sizes(program.quick)
    peers, ours = peers_of(sizes, data), ours_of(sizes, data)

    def run_peers() -> compare.Run:
        # A full run gives each peer a JVM of its own; a quick one has no time to start seven.
        together = [peers] if program.quick else [[peer] for peer in peers]
        runs: compare.Run = {}
        for some in together:
            options = {"peers": some, "work": str(work), "seconds": sizes.peers_begin_s}
            limit_s = 3 * sum(peer["time_limit_s"] for peer in some) + 60
            found = process.run("bench.peers.windows:run_all", options, limit_s)
            runs |= {peer["name"]: found.get(peer["name"], found) for peer in some}
        return runs

    def run_ours() -> compare.Run:
        limit_s = sizes.ours_limit_s * (len(ours) + 1)
        found = process.run("bench.ours.windows:run_all", {"runs": ours, "work": str(work)}, limit_s)
        return {run["name"]: found.get(run["name"], found) for run in ours}

    rounds = compare.in_turns({"peers": run_peers, "ours": run_ours}, program.options.rounds or sizes.rounds)
    names = [run["name"] for run in [*peers, *ours]]
    sides = [{**peer, **own} for peer, own in zip(rounds["peers"], rounds["ours"], strict=True)]
    return {name: [side[name] for side in sides] for name in names}


def set_goals(program: measure.Program, results: dict[str, list[compare.Run]]) -> None:
    rates = compare.medians(results, "tuples_per_second")
    program.figure("tuples_per_second", rates)
    ours = rates["holdfast_windows"]
    ratio = compare.quotient(ours, rates["by_key_group"])
    compare.goal(program, "W1, times the hand-vectorised peer", ratio, at_least=3)
    per_key = compare.best([rates[name] for name in PER_KEY], highest=True)
    compare.goal(program, "W1, times the best per-key peer", compare.quotient(ours, per_key), at_least=100)
    for keys, limit in ((KEYS, 2), (KEYS_MANY, 3)):
        peer = compare.best([rates[f"groups_{keys}_{store}"] for store in ("rocksdb", "in_memory")], highest=True)
        ratio = compare.quotient(rates[f"holdfast_groups_{keys}"], peer)
        compare.goal(program, f"W2, {keys} groups, times the best of Spark's own", ratio, at_least=limit)


def main() -> None:
    program = measure.program("windows", __doc__ or "", compare.add_work)
    program.note("per-key peers get a fraction of the keys (key_share), so that their calls are as large as with all")
    program.note("peers: time inside triggers after the first; W2 to the no-op sink. Ours: all time from start to end")
    with compare.folders(program) as (data, work):
        results = measure_all(program, data, work)
    for name, rounds in results.items():
        program.figures[name] = rounds
    compare.say_failures(program, results)
    set_goals(program, results)
    program.finish()


if __name__ == "__main__":
    main()
