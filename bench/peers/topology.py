"""The peer of `bench.topology`: word count, then words by count, as two stateful operators of one streaming query.

Invariants:
    * It reads the files that holdfast reads, a million words for each trigger, with checkpoints on the local disk; its
      results go to the no-op sink.
    * A rate counts finished triggers only, without the first, and only the time inside them.
    * A result of the flow is seen when `foreachBatch` holds it in Python.

Spark runs the second operator behind the first in the same trigger; it takes append mode for that, as it does here.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.arrivals import Arrivals, count_while_sending
from bench.peers.session import progress_of, settings_of, sibling_session, start_session, stop
from bench.words import SPARK_SCHEMA, ends_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def words_by_count(words: DataFrame, first_s: int, second_s: int) -> DataFrame:
    """Return the query, with windows of so many seconds."""
    from pyspark.sql import functions as F

    counts = (
        words.withWatermark("at", "0 seconds")
        .groupBy("word", F.window("at", f"{first_s} seconds"))
        .agg(F.count("*").alias("n"))
    )
    return counts.groupBy("n", F.window("window", f"{second_s} seconds")).agg(
        F.count("*").alias("words"), F.max("word").alias("one")
    )


def throughput(
    work: str, input_folder: str, state_store: str, first_s: int, second_s: int, files_per_trigger: int, limit_s: int
) -> dict[str, Any]:
    """Run the query over the whole folder, or until the limit, and return its figures."""
    folder = Path(work, f"topology-{time.time_ns()}")
    session = sibling_session(start_session("topology", Path(work)), state_store)
    reader = session.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", files_per_trigger)
    results = words_by_count(reader.parquet(input_folder), first_s, second_s)
    writer = results.writeStream.format("noop").outputMode("append")
    started_s = time.monotonic()
    running = writer.option("checkpointLocation", str(folder / "spark_checkpoint")).trigger(availableNow=True).start()
    finished = running.awaitTermination(limit_s)
    wall_s = time.monotonic() - started_s
    triggers = progress_of(running)
    stop(running)
    counted = triggers[1:] or triggers
    spent_s = sum(trigger["duration_ms"]["triggerExecution"] for trigger in counted) / 1000
    words = sum(trigger["rows"] for trigger in counted)
    return {
        "finished": bool(finished),
        "words_per_second": words / spent_s if spent_s else None,
        "words_counted": words,
        "seconds_counted": spent_s,
        "seconds_wall": wall_s,
        "trigger_ms": [trigger["duration_ms"]["triggerExecution"] for trigger in triggers],
        "settings": settings_of(state_store) | {"maxFilesPerTrigger": str(files_per_trigger)},
    }


def latency(
    work: str, rhythm: dict[str, int], state_store: str, window_s: int, seconds: float, warm_up_s: float
) -> dict[str, Any]:
    """Return the percentiles of the time from a window's end to its results, in ms."""
    folder = Path(work, f"latency-{time.time_ns()}")
    source = folder / "source"
    source.mkdir(parents=True)
    arrivals = Arrivals()

    def take(batch: DataFrame, number: int) -> None:
        arrivals.add(ends_us(batch.select("window.start").toArrow()["start"], window_s * 1_000_000))

    session = sibling_session(start_session("topology", Path(work)), state_store)
    # A trigger without new files is what closes the windows of the last ones: Spark's default.
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    results = words_by_count(session.readStream.schema(SPARK_SCHEMA).parquet(str(source)), window_s, window_s)
    writer = results.writeStream.foreachBatch(take).outputMode("append")
    running = writer.option("checkpointLocation", str(folder / "spark_checkpoint")).start()
    options = {**rhythm, "folder": str(source)}
    figures = count_while_sending(arrivals, "bench.words:send_to_folder", options, folder, warm_up_s, seconds)
    figures["trigger_ms"] = [trigger["duration_ms"]["triggerExecution"] for trigger in progress_of(running)]
    stop(running)
    return figures | {"settings": settings_of(state_store)}
