"""holdfast's side of `bench.topology`: word count, then words by count: two stages, and between them another key.

Invariants:
    * The rate counts everything from `start` to the end of the pipeline: finding files, logging the words, both stages,
      closing what is open at the end, the last sync. Results of both stages are durable.
    * Results are read back after the time is taken, and compared with the files.
    * A result of the flow is seen when another process's `Consumer` holds it.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from bench import process
from bench.arrivals import Arrivals, count_while_sending
from bench.ours.latency import wait_until_marked
from bench.ours.windows import phases_ms
from bench.peers.session import CORES
from bench.supervisor import Supervisor, mark
from bench.words import SPARK_SCHEMA, WORDS_PER_FILE, ends_us, prepare

if TYPE_CHECKING:
    from holdfast import Pipeline


def words_by_count(pipeline: Pipeline, words: Any, first_s: int, second_s: int) -> None:
    """Declare the source and both stages, with windows of so many seconds."""
    from pyspark.sql import functions as F

    source = pipeline.source("words", words).withWatermark("at", "0 seconds")
    counted = source.groupBy("word", F.window("at", f"{first_s} seconds")).agg(F.count("*").alias("n"))
    counts = counted.select("word", "window.start", "n").named("counts").withWatermark("start", "0 seconds")
    by_count = counts.groupBy("n", F.window("start", f"{second_s} seconds"))
    by_count.agg(F.count("*").alias("words"), F.max("word").alias("one")).select(
        "n", "window.start", "words", "one"
    ).named("by_count")


def throughput(
    work: str, input_folder: str, words: int, shards: int, bucket: str, first_s: int, second_s: int, limit_s: int
) -> dict[str, Any]:
    """Run the pipeline over all files, after one file's worth to warm up, and return its figures."""
    import holdfast as hf

    hf.session("topology", **{"spark.master": f"local[{CORES}]"})
    few = str(prepare(Path(work), WORDS_PER_FILE // 2))
    options = {"shards": shards, "bucket": bucket, "first_s": first_s, "second_s": second_s, "limit_s": limit_s}
    _run(work, few, WORDS_PER_FILE // 2, **options)
    return _run(work, input_folder, words, **options)


def _run(
    work: str, input_folder: str, words: int, shards: int, bucket: str, first_s: int, second_s: int, limit_s: int
) -> dict[str, Any]:
    import holdfast as hf

    store = Path(work, f"topology-{time.time_ns()}")
    pipeline = hf.Pipeline("topology", store=str(store), bucket=bucket, shards=shards)
    words_by_count(pipeline, hf.files(input_folder, format="parquet", schema=SPARK_SCHEMA), first_s, second_s)
    started_s = time.monotonic()
    running = pipeline.start(available_now=True)
    finished = running.awaitTermination(limit_s)
    wall_s = time.monotonic() - started_s
    progress = running.recentProgress
    running.stop()
    crossed = check_results(str(store), input_folder, first_s) if finished else None
    return {
        "finished": bool(finished),
        "words_per_second": words / wall_s if finished else None,
        "words_counted": words,
        "rows_between": crossed,
        "seconds_wall": wall_s,
        "shards": shards,
        "bucket": bucket,
        "milliseconds_by_phase": phases_ms(progress),
    }


def check_results(store: str, input_folder: str, first_s: int) -> int:
    """Raise if the results are not those of the files; return how many rows went from stage to stage."""
    import holdfast as hf

    table = parquet.read_table(input_folder)
    starts = pc.floor_temporal(table["at"], first_s, "second").cast(pa.int64())
    keys = pa.table({"word": table["word"].combine_chunks().dictionary_encode().indices, "start": starts})
    counts = keys.group_by(["word", "start"]).aggregate([([], "count_all")])
    wanted = _sorted(counts.rename_columns(["word", "start", "n"]).group_by("n").aggregate([([], "count_all")]))
    with hf.Consumer(store, "by_count") as consumer:
        found = _sorted(pa.concat_tables(list(consumer)).group_by("n").aggregate([("words", "sum")]))
    if found != wanted:
        raise ValueError(f"by_count in {store} has wrong results: {found[:5]}, expected {wanted[:5]}")
    return int(counts.num_rows)


def _sorted(table: pa.Table) -> list[tuple[int, int]]:
    by_name = table.rename_columns(["n", "words"])
    return sorted(zip(by_name["n"].to_pylist(), by_name["words"].to_pylist(), strict=True))


def serve(store: str, bucket: str, marks: str, window_s: int) -> None:
    """Be the pipeline's process, until killed."""
    import holdfast as hf

    hf.session("topology", **{"spark.master": f"local[{CORES}]"})
    pipeline = hf.Pipeline("topology", store=store, bucket=bucket)
    words_by_count(pipeline, SPARK_SCHEMA, window_s, window_s)
    running = pipeline.start()
    mark(Path(marks), "started")
    running.awaitTermination()


def latency(
    work: str, rhythm: dict[str, int], bucket: str, window_s: int, seconds: float, warm_up_s: float
) -> dict[str, Any]:
    """Return the percentiles of the time from a window's end to its results, in ms."""
    folder = Path(work, f"latency-{time.time_ns()}")
    folder.mkdir(parents=True)
    store, marks = str(folder / "store"), folder / "marks"
    options = {"store": store, "bucket": bucket, "marks": str(marks), "window_s": window_s}
    supervisor = Supervisor(process.command_of("bench.ours.topology:serve", options, folder / "ended"), folder)
    supervisor.start()
    try:
        wait_until_marked(supervisor, marks)
        arrivals = Arrivals()
        threading.Thread(target=_consume, args=(store, arrivals, window_s), daemon=True).start()
        sending = {**rhythm, "store": store, "stream": "words"}
        figures = count_while_sending(arrivals, "bench.words:send_to_stream", sending, folder, warm_up_s, seconds)
    finally:
        supervisor.stop()
    return figures | {"bucket": bucket}


def _consume(store: str, arrivals: Arrivals, window_s: int) -> None:
    import holdfast as hf

    for table in hf.Consumer(store, "by_count", view="stable"):
        arrivals.add(ends_us(table["start"], window_s * 1_000_000))
