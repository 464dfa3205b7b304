"""From a tuple sent to its result seen, through holdfast and through Structured Streaming, at the same rhythm.

The query passes rows on: what is measured is the way, not the work. Ours ends in a `Consumer` in another process, the
peer's in `foreachBatch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process

RATES: Final = (1_000, 50_000)
BUCKETS_MS: Final = (20, 50, 200)
GOAL_BUCKET_MS: Final = 50
BATCHES_PER_SECOND: Final = 20
"""Of 5 to 50, the rhythm (and Parquet the format) that gave the peer its best p50."""
KEYS: Final = 1_000
PROCESS_EXTRA_S: Final = 90.0


def runs_of(work: Path, rate: int, quick: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return (function, options) of every run at one rate, by name."""
    rhythm = {"tuples_per_second": rate, "batches_per_second": BATCHES_PER_SECOND, "keys": KEYS}
    common: dict[str, Any] = {"work": str(work), "rhythm": rhythm}
    common |= {"seconds": 5.0, "warm_up_s": 5.0} if quick else {"seconds": 20.0, "warm_up_s": 15.0}
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        name_of_peer(rate): ("bench.peers.latency:run", {**common, "file_format": "parquet"})
    }
    for bucket_ms in (GOAL_BUCKET_MS,) if quick else BUCKETS_MS:
        options = {**common, "bucket": f"{bucket_ms} milliseconds"}
        runs[name_of_ours(rate, bucket_ms)] = ("bench.ours.latency:run", options)
    return runs


def name_of_peer(rate: int) -> str:
    return f"structured_streaming_{rate}_a_second"


def name_of_ours(rate: int, bucket_ms: int) -> str:
    return f"holdfast_{rate}_a_second_bucket_{bucket_ms}_ms"


def measure_all(work: Path, quick: bool) -> dict[str, list[compare.Run]]:
    """Run both sides in turns, one rate after the other."""
    results: dict[str, list[compare.Run]] = {}
    for rate in RATES:
        runs = {
            name: lambda target=target, options=options: process.run(
                target, options, options["seconds"] + PROCESS_EXTRA_S
            )
            for name, (target, options) in runs_of(work, rate, quick).items()
        }
        results |= compare.in_turns(runs, 1 if quick else 3)
    return results


def set_goals(program: measure.Program, results: dict[str, list[compare.Run]]) -> None:
    p50, p99 = compare.medians(results, "p50_ms"), compare.medians(results, "p99_ms")
    program.figure("p50_ms", p50)
    program.figure("p99_ms", p99)
    for rate in RATES:
        ratio = compare.quotient(p50[name_of_ours(rate, GOAL_BUCKET_MS)], p50[name_of_peer(rate)])
        name = f"p50 at {rate} tuples/s with buckets of {GOAL_BUCKET_MS} ms, part of the peer's"
        compare.goal(program, name, ratio, at_most=1 / 4)


def main() -> None:
    program = measure.program("latency", __doc__ or "", compare.add_work)
    with compare.folders(program) as (_, work):
        results = measure_all(work, program.quick)
    program.figures.update(results)
    compare.say_failures(program, results)
    set_goals(program, results)
    program.finish()


if __name__ == "__main__":
    main()
