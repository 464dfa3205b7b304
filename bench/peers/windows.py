"""The peers of `bench.windows`: count windows (W1) and running groups (W2) from Parquet files.

Invariants:
    * A peer reads the files that holdfast reads, a million tuples for each trigger, with Spark's own source and
      checkpoints on the local disk.
    * A rate counts finished triggers only, and only the time inside them: Spark's time between triggers is left out,
      and so is the first trigger, in which the JVM compiles, wherever there is a second.
    * A peer that is stopped at its limit has the rate of the triggers it finished; one that has finished none by then
      gets up to three times as long.

Choices in the peer's favour: W2 goes to the no-op sink (nothing is written); W1's results, a tenth of the tuples,
go to Spark's Parquet sink without sorting by arrival; for the per-key forms only every n-th key is kept, so each call
still has as many tuples as it would with all keys.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.data import SPARK_SCHEMA
from bench.peers.count_windows import COUNT_WINDOWS
from bench.peers.session import progress_of, settings_of, sibling_session, start_session, stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EXTENSION: Final = 2


def run_all(peers: list[dict[str, Any]], work: str, seconds: float) -> dict[str, Any]:
    """Measure each peer in turn on one JVM, each with SQL settings of its own; return results by name.

    A peer whose turn would begin after `seconds` is left out, and its result says so.
    """
    last_begin_s = time.monotonic() + seconds
    spark = start_session("peers", Path(work))
    return {peer["name"]: _run_or_say_why_not(spark, Path(work), peer, last_begin_s) for peer in peers}


def _run_or_say_why_not(spark: SparkSession, work: Path, peer: dict[str, Any], last_begin_s: float) -> dict[str, Any]:
    from pyspark.errors import PySparkException

    if time.monotonic() > last_begin_s:
        return {"failed": "not begun: the time for this run was used up"}
    try:
        return run(spark, work, **peer)
    except PySparkException as error:
        return {"failed": _cause(str(error))}


def _cause(message: str) -> str:
    """Return the lines of Spark's message that say why; the rest is the query's plan."""
    return " ".join(line.strip() for line in message.split("=== Streaming Query ===")[0].splitlines() if line.strip())


def run(
    spark: SparkSession,
    work: Path,
    name: str,
    query: str,
    state_store: str,
    input_folder: str,
    files_per_trigger: int,
    time_limit_s: int,
    key_share: int = 1,
    keep_results: bool = False,
) -> dict[str, Any]:
    """Run one query over the whole folder, or until the time limit, and return its figures.

    `query` is a count window (W1) by its name, or `groups` (W2). `key_share` n keeps every n-th key.
    """
    session = sibling_session(spark, state_store)
    folder = work / f"{name}-{time.time_ns()}"
    figures = _stream(session, query, Path(input_folder), folder, files_per_trigger, key_share, time_limit_s)
    figures["settings"] = settings_of(state_store) | {"maxFilesPerTrigger": str(files_per_trigger)}
    if keep_results:
        figures["results"] = str(folder / "results")
    return figures


def _stream(
    session: SparkSession, query: str, source: Path, folder: Path, files_per_trigger: int, key_share: int, limit_s: int
) -> dict[str, Any]:
    reader = session.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
    tuples = reader.parquet(str(source))
    if key_share > 1:
        tuples = tuples.where(f"key % {key_share} = 0")
    writer = _results(tuples, query).writeStream.option("checkpointLocation", str(folder / "spark_checkpoint"))
    if query == "groups":
        writer = writer.format("noop").outputMode("update")
    else:
        writer = writer.format("parquet").option("path", str(folder / "results")).outputMode("append")
    started_s = time.monotonic()
    running = writer.trigger(availableNow=True).start()
    finished = running.awaitTermination(limit_s)
    for _ in range(limit_s * EXTENSION):
        # Without a finished trigger there is no rate: a peer that starts slowly gets more time.
        if finished or progress_of(running):
            break
        finished = running.awaitTermination(1)
    wall_s = time.monotonic() - started_s
    stop(running)
    return _figures(progress_of(running), key_share, finished, wall_s)


def _results(tuples: DataFrame, query: str) -> DataFrame:
    from pyspark.sql import functions as F

    if query != "groups":
        return COUNT_WINDOWS[query](tuples)
    value = F.col("value")
    return tuples.groupBy("key").agg(F.count(value).alias("tuples"), F.min(value), F.max(value))


def _figures(triggers: list[dict[str, Any]], key_share: int, finished: bool | None, wall_s: float) -> dict[str, Any]:
    counted = triggers[1:] or triggers
    spent_s = sum(trigger["duration_ms"]["triggerExecution"] for trigger in counted) / 1000
    # Spark counts the rows that it read, before the filter by key.
    tuples = sum(trigger["rows"] for trigger in counted) // key_share
    phases = {phase for trigger in counted for phase in trigger["duration_ms"]}
    return {
        "finished": bool(finished),
        "tuples_per_second": tuples / spent_s if spent_s else None,
        "tuples_counted": tuples,
        "seconds_counted": spent_s,
        "seconds_wall": wall_s,
        "key_share": f"1 in {key_share}",
        "trigger_ms": [trigger["duration_ms"]["triggerExecution"] for trigger in triggers],
        "milliseconds_by_phase": {
            phase: sum(trigger["duration_ms"].get(phase, 0) for trigger in counted) for phase in sorted(phases)
        },
    }
