"""Two stages with another key between them: word count, then words by count, beside two stateful operators of Spark's.

Throughput from Parquet files to durable results, and the time from a window's end to its results in the second stage.
With --debs instead: the fifteen operators of `examples/hashtags.py`, after the topology of the query-centric recovery
paper's evaluation, at 1,000 tweets a second: the latency of each query, and the share of time outside of operators.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process, words

WORDS: Final = 20_000_000
WORDS_QUICK: Final = 3_000_000
FIRST_S: Final = 10
SECOND_S: Final = 60
"""Windows of the first and of the second stage, in seconds of event time."""
FILES_PER_TRIGGER: Final = 2
BUCKET: Final = "200 milliseconds"
SHARDS: Final = (2, 64)
STORES: Final = ("in_memory", "rocksdb")
"""A quick run has the first alone, which is the faster one here."""
WORDS_A_SECOND: Final = 10_000
BATCHES_PER_SECOND: Final = 20
LATENCY_BUCKET: Final = "50 milliseconds"
LATENCY_WINDOW_S: Final = 1
PROCESS_EXTRA_S: Final = 90.0
TWEETS_A_SECOND: Final = 1_000
TWEETS_BUCKET: Final = "200 milliseconds"

Runs = dict[str, tuple[str, dict[str, Any], float]]


def stores(quick: bool) -> tuple[str, ...]:
    return STORES[:1] if quick else STORES


def throughput_runs(data: Path, work: Path, quick: bool) -> Runs:
    """Return (function, options, limit in seconds) of every run, by name."""
    count = WORDS_QUICK if quick else WORDS
    limit_s = 60 if quick else 150
    common = {
        "work": str(work),
        "input_folder": str(words.prepare(data, count)),
        "first_s": FIRST_S,
        "second_s": SECOND_S,
        "limit_s": limit_s,
    }
    runs: Runs = {}
    for store in stores(quick):
        options = {**common, "state_store": store, "files_per_trigger": FILES_PER_TRIGGER}
        runs[f"structured_streaming_{store}"] = ("bench.peers.topology:throughput", options, limit_s + PROCESS_EXTRA_S)
    for shards in SHARDS:
        options = {**common, "words": count, "shards": shards, "bucket": BUCKET}
        limit = 2 * limit_s + PROCESS_EXTRA_S
        runs[f"holdfast_{shards}_shards"] = ("bench.ours.topology:throughput", options, limit)
    return runs


def latency_runs(work: Path, quick: bool) -> Runs:
    rhythm = {"tuples_per_second": WORDS_A_SECOND, "batches_per_second": BATCHES_PER_SECOND}
    common: dict[str, Any] = {"work": str(work), "rhythm": rhythm, "window_s": LATENCY_WINDOW_S}
    common |= {"seconds": 6.0, "warm_up_s": 5.0} if quick else {"seconds": 20.0, "warm_up_s": 15.0}
    limit_s = common["seconds"] + PROCESS_EXTRA_S
    runs: Runs = {}
    for store in stores(quick):
        options = {**common, "state_store": store}
        runs[f"structured_streaming_{store}"] = ("bench.peers.topology:latency", options, limit_s)
    runs["holdfast"] = ("bench.ours.topology:latency", {**common, "bucket": LATENCY_BUCKET}, limit_s)
    return runs


def measured(runs: Runs, rounds: int) -> dict[str, list[compare.Run]]:
    """Run all of them in turns, each in a process of its own."""
    calls = {
        name: lambda target=target, options=options, limit_s=limit_s: process.run(target, options, limit_s)
        for name, (target, options, limit_s) in runs.items()
    }
    return compare.in_turns(calls, rounds)


def set_goals(
    program: measure.Program, rates: dict[str, list[compare.Run]], delays: dict[str, list[compare.Run]]
) -> None:
    rate = compare.medians(rates, "words_per_second")
    program.figure("words_per_second", rate)
    p50, p99 = compare.medians(delays, "p50_ms"), compare.medians(delays, "p99_ms")
    program.figure("p50_ms", p50)
    program.figure("p99_ms", p99)
    peers = [f"structured_streaming_{store}" for store in stores(program.quick)]
    best = compare.best([rate[name] for name in peers], highest=True)
    ratio = compare.quotient(rate[f"holdfast_{SHARDS[0]}_shards"], best)
    compare.goal(program, "throughput, times the best of Spark's own", ratio, at_least=2)
    fastest = compare.best([p50[name] for name in peers], highest=False)
    part = compare.quotient(p50["holdfast"], fastest)
    compare.goal(program, "p50 from a window's end to its results, part of Spark's own", part, at_most=1 / 5)


def measure_operators(program: measure.Program, work: Path) -> None:
    """Let the fifteen operators run, and keep what each query's results took."""
    rhythm = {"tuples_per_second": TWEETS_A_SECOND, "batches_per_second": BATCHES_PER_SECOND}
    options: dict[str, Any] = {"work": str(work), "rhythm": rhythm, "bucket": TWEETS_BUCKET}
    options |= {"seconds": 15.0, "warm_up_s": 12.0} if program.quick else {"seconds": 60.0, "warm_up_s": 30.0}
    limit_s = options["seconds"] + 3 * PROCESS_EXTRA_S
    found = process.run("bench.ours.hashtags:run", options, limit_s)
    compare.say_failures(program, {"operators": [found], **{k: [v] for k, v in found.get("queries", {}).items()}})
    for figure in ("p50_ms", "p99_ms"):
        program.figure(figure, {name: one.get(figure) for name, one in found.get("queries", {}).items()})
    program.figure("outside_of_operators", found.get("outside_of_operators"))
    program.figures["operators"] = found


def add_options(parser: argparse.ArgumentParser) -> None:
    compare.add_work(parser)
    parser.add_argument("--debs", action="store_true", help="the fifteen operators over tweets, and nothing else")


def main() -> None:
    program = measure.program("topology", __doc__ or "", add_options)
    if program.options.debs:
        with compare.folders(program) as (_, work):
            measure_operators(program, work)
        program.finish()
        return
    program.note("peers: time inside triggers after the first, to the no-op sink. Ours: all time from start to end")
    rounds = program.options.rounds or (1 if program.quick else 3)
    with compare.folders(program) as (data, work):
        rates = measured(throughput_runs(data, work, program.quick), rounds)
        delays = measured(latency_runs(work, program.quick), rounds)
    program.figures["throughput"] = rates
    program.figures["latency"] = delays
    for results in (rates, delays):
        compare.say_failures(program, results)
    set_goals(program, rates, delays)
    program.finish()


if __name__ == "__main__":
    main()
