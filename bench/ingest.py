"""A streaming DataFrame into the log beside the same query writing Parquet; Kafka to a sink beside Kafka to Kafka.

The files are those of `bench.windows`. The topic is on a broker that this program starts; its jars are those of
`make integration`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench import compare, measure, process
from bench.data import prepare

TUPLES: Final = 20_000_000
TUPLES_QUICK: Final = 4_000_000
KEYS: Final = 100_000
FILES_PER_TRIGGER: Final = 2
MESSAGES: Final = 5_000_000
MESSAGES_QUICK: Final = 500_000
PARTITIONS: Final = 2
MESSAGES_PER_TRIGGER: Final = 1_000_000
TOPIC: Final = "messages"
LIMIT_S: Final = 240.0


def measure_files(program: measure.Program, data: Path, work: Path) -> dict[str, list[compare.Run]]:
    """Run both sides in turns over the same files."""
    files = prepare(data, TUPLES_QUICK if program.quick else TUPLES, KEYS)
    options = {
        "work": str(work),
        "input_folder": str(files.folder),
        "files_per_trigger": FILES_PER_TRIGGER,
        "limit_s": LIMIT_S,
    }
    sides = {"holdfast_log": "bench.ours.ingest:run_files", "spark_parquet": "bench.peers.ingest:run_files"}
    runs = {name: lambda target=target: process.run(target, options, LIMIT_S) for name, target in sides.items()}
    return compare.in_turns(runs, program.options.rounds or (1 if program.quick else 3))


def measure_kafka(program: measure.Program, work: Path) -> dict[str, list[compare.Run]]:
    """Fill a topic, and run both sides over it."""
    from tests.components.jars import Missing, fetch, jars_of
    from tests.components.kafka import Broker

    try:
        fetch()
    except Missing as missing:
        program.note(f"Kafka was not measured: {missing}")
        return {}
    messages = MESSAGES_QUICK if program.quick else MESSAGES
    with Broker(work / "kafka") as broker:
        fill(broker.address, messages)
        options = {
            "work": str(work),
            "address": broker.address,
            "topic": TOPIC,
            "messages": messages,
            "per_trigger": MESSAGES_PER_TRIGGER,
            "jars": ",".join(map(str, jars_of("connector"))),
        }
        sides = {
            "holdfast_kafka_to_parquet": "bench.ours.ingest:run_kafka",
            "spark_kafka_to_kafka": "bench.peers.ingest:run_kafka",
        }
        runs = {name: lambda target=target: process.run(target, options, LIMIT_S) for name, target in sides.items()}
        return compare.in_turns(runs, program.options.rounds or 1)


def fill(address: str, messages: int) -> None:
    """Put that many messages of 100 bytes into the topic."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result()
    room = 1_000_000
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 2 * room})
    refused: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            refused.append(error)

    filler = "x" * 90
    for number in range(messages):
        producer.produce(TOPIC, f"{number:010d}{filler}", partition=number % PARTITIONS, on_delivery=delivered)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > room:
                producer.poll(0.1)
    left = producer.flush(60)
    if left or refused:
        raise RuntimeError(f"{left} messages were not sent, and {len(refused)} refused: {refused[:1]}")


def set_goals(program: measure.Program, results: dict[str, list[compare.Run]]) -> None:
    rows = compare.medians({name: results[name] for name in ("holdfast_log", "spark_parquet")}, "rows_per_second")
    program.figure("rows_per_second", rows)
    ratio = compare.quotient(rows["holdfast_log"], rows["spark_parquet"])
    compare.goal(program, "rows into the log, times the same query writing Parquet", ratio, at_least=1)
    names = ("holdfast_kafka_to_parquet", "spark_kafka_to_kafka")
    if all(name in results for name in names):
        messages = compare.medians({name: results[name] for name in names}, "messages_per_second")
        program.figure("messages_per_second", messages)
        program.figure("kafka_to_sink_times_kafka_to_kafka", compare.quotient(messages[names[0]], messages[names[1]]))


def main() -> None:
    program = measure.program("ingest", __doc__ or "", compare.add_work)
    program.note(
        "rows: time inside triggers after the first; ours are sorted by shard and synced, Spark's are not synced"
    )
    program.note("Kafka: from start to end; ours through the log into synced Parquet files, Spark's to a second topic")
    with compare.folders(program) as (data, work):
        results = measure_files(program, data, work) | measure_kafka(program, work)
    program.figures.update(results)
    compare.say_failures(program, results)
    set_goals(program, results)
    program.finish()


if __name__ == "__main__":
    main()
