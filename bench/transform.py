"""What a job of `transform` costs, and how many rows it takes a second, beside the plain Spark batch job.

Both sides call the same function on the same rows: a filter, two computed columns, and an explode. The batch job reads
Parquet and writes Parquet; ours reads the log and writes the log, synced. Ours leaves a core to waves; so the batch job
is also measured with one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench import compare, data, measure, process

TUPLES: Final = 4_000_000
TUPLES_QUICK: Final = 2_000_000
KEYS: Final = 100_000
LIMIT_S: Final = 300.0


def measure_all(tuples: Path, work: Path, quick: bool) -> dict[str, list[compare.Run]]:
    """Run both sides in turns."""
    dataset = data.prepare(tuples, TUPLES_QUICK if quick else TUPLES, KEYS)
    options = {"folder": str(dataset.folder), "tuples": dataset.tuples, "work": str(work)}

    def ours() -> compare.Run:
        return process.run("bench.ours.transform:run", options | {"seconds": 5 if quick else 15}, LIMIT_S)

    def batch(cores: int) -> compare.Run:
        return process.run("bench.peers.transform:run", options | {"cores": cores}, LIMIT_S)

    sides = {"holdfast": ours, "batch_2_cores": lambda: batch(2), "batch_1_core": lambda: batch(1)}
    return compare.in_turns(sides, 1 if quick else 3)


def main() -> None:
    program = measure.program("transform", __doc__ or "", compare.add_work)
    with compare.folders(program) as (tuples, work):
        results = measure_all(tuples, work, program.quick)
    program.figures.update(results)
    compare.say_failures(program, results)
    rows = compare.medians(results, "rows_per_second")
    program.figure("rows_per_second", rows)
    for name in ("job_ms", "job_over_batches_ms", "result_ms", "result_beside_jobs_ms"):
        program.figure(name, compare.median_of(results["holdfast"], name))
    ratio = compare.quotient(rows["holdfast"], rows["batch_1_core"])
    compare.goal(program, "rows/s, part of a batch job with one core", ratio, at_least=0.5)
    program.finish()


if __name__ == "__main__":
    main()
