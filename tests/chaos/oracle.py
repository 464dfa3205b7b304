"""What has to come out: from what went in without any of our kernels, and from the log by a stage undisturbed."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.connect.catalog import load
from holdfast.log.inspect import read_ledger
from holdfast.log.ledger import Ledger
from holdfast.log.store import open_store
from holdfast.model import FIRST_BUCKET
from holdfast.node.messages import Attached, AttachWork, Order, Processed, ProcessWork, UnitWork
from holdfast.node.planning import frames_between
from holdfast.node.slot import Slot, SlotSetup
from holdfast.plan import Stage

STEP = datetime.timedelta(seconds=5)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
WINDOW_ROWS = 10
Rows = Counter[tuple[Any, ...]]
Digests = dict[tuple[int, int], tuple[int, int]]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return every row that the Parquet sink has put out."""
    rows: list[dict[str, Any]] = pq.read_table(folder / "totals").to_pylist()
    return rows


def counted(rows: Iterable[dict[str, Any]]) -> Rows:
    """Return how often each row is there."""
    return Counter(tuple(tuple(v.items()) if isinstance(v, dict) else v for v in row.values()) for row in rows)


def check_rows(kind: str, rows: list[dict[str, Any]], tables: list[pa.Table]) -> None:
    """Compare what came out with what went in: nothing lost, doubled or changed."""
    table = pa.concat_tables(tables)
    if kind == "chain":
        found = Counter((row["window"]["start"], row["total"], row["rows"], row["keys"]) for row in rows)
        assert found == _chained(table)
        return
    if kind == "time":
        found = Counter((row["name"], row["window"]["start"], row["total"], row["rows"]) for row in rows)
        assert found == _windows(table)
        return
    grouped = table.group_by("key").aggregate([("value", "sum"), ("value", "count")]).to_pylist()
    expected = {row["key"]: (row["value_sum"], row["value_count"]) for row in grouped}
    if kind == "running":
        assert {row["key"]: (row["total"], row["rows"]) for row in rows} == expected
        return
    # Which tuples share a window depends on how the inputs were merged; every tuple is in exactly one.
    totals = {key: (0, 0) for key in expected}
    numbers: dict[int, list[int]] = {key: [] for key in expected}
    for row in rows:
        total, count = totals[row["key"]]
        totals[row["key"]] = (total + row["total"], count + row["rows"])
        numbers[row["key"]].append(row["window"]["number"])
    assert totals == expected
    last = {key: (rows - 1) // WINDOW_ROWS for key, (_, rows) in expected.items()}
    assert {key: sorted(found) for key, found in numbers.items()} == {key: list(range(last[key] + 1)) for key in last}
    assert all(row["rows"] == WINDOW_ROWS for row in rows if row["window"]["number"] != last[row["key"]])


def _windows(table: pa.Table) -> Rows:
    at_us = table.column("at").cast(pa.int64())
    steps = pc.divide(at_us, pa.scalar(STEP // datetime.timedelta(microseconds=1)))
    grouped = table.append_column("step", steps).group_by(["name", "step"])
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in grouped.aggregate([("value", "sum"), ("value", "count")]).to_pylist():
        for start in (row["step"], row["step"] - 1):
            total, rows = found.get((row["name"], start), (0, 0))
            found[row["name"], start] = (total + row["value_sum"], rows + row["value_count"])
    return Counter((name, EPOCH + start * STEP, total, rows) for (name, start), (total, rows) in found.items())


def _chained(table: pa.Table) -> Rows:
    """Return what is summed up in steps of eight seconds, and how many keys there were in each two of them."""
    at_us = table.column("at").cast(pa.int64())
    table = table.append_column("two", pc.divide(at_us, 2_000_000)).append_column("eight", pc.divide(at_us, 8_000_000))
    sums = table.group_by("eight").aggregate([("value", "sum"), ("value", "count")]).to_pylist()
    keys = table.group_by(["eight", "two", "key"]).aggregate([]).group_by("eight").aggregate([([], "count_all")])
    counts = {row["eight"]: row["count_all"] for row in keys.to_pylist()}
    return Counter(
        (
            EPOCH + row["eight"] * datetime.timedelta(seconds=8),
            row["value_sum"],
            row["value_count"],
            counts[row["eight"]],
        )
        for row in sums
    )


def check_digests(folder: Path, seed: int, tables: list[pa.Table], stages: Sequence[str] = ("totals",)) -> None:
    """Compute stages once more from their logged input, undisturbed and in other waves, and compare every bucket."""
    store = folder / "store" / "chaos"
    for name in ("sent", "dropped"):
        logged = sum(frame.rows for frame in read_ledger(open_store(str(store)), name).all_frames(name))
        assert logged == sum(table.num_rows for table in tables) // 2, f"{logged} rows of {name} are in the log"
    for stage in stages:
        committed, computed = replayed(store, stage, folder / "replayed", random.Random(seed))
        differ = sorted(key for key in committed.keys() | computed.keys() if committed.get(key) != computed.get(key))
        assert committed and not differ, (
            f"{stage}: {len(differ)} of {len(committed)} (shard, bucket) differ: {differ[:5]}"
        )


def replayed(store_path: Path, stage: str, states: Path, chooser: random.Random) -> tuple[Digests, Digests]:
    """Return the (rows, digest) per (shard, bucket) of a stage as they were committed, and as its input gives them."""
    store = open_store(str(store_path))
    catalog = load(store)
    (planned,) = [each for each in catalog.topology.stages if each.name == stage]
    names = [stage, *(read.stream for read in planned.inputs)]
    ledgers = {name: read_ledger(store, name) for name in names}
    setup = SlotSetup(catalog.pipeline_id, store.url, msgspec.json.encode(catalog.topology), str(states))
    slot = Slot(setup, "replay", store)
    computed: Digests = {}
    for shard, unit in ledgers[stage].units(stage).items():
        attach = AttachWork(stage, shard, 1, FIRST_BUCKET, FIRST_BUCKET, [], True)
        (attached,) = slot.perform(Order(1, 0, "replay", [attach]))
        assert isinstance(attached, Attached), attached
        for work in _waves(planned, ledgers, shard, unit.bucket_end, chooser):
            (done,) = slot.perform(Order(1, 0, "replay", [work]))
            assert isinstance(done, Processed), done
            computed |= {(shard, bucket): (rows, digest) for bucket, rows, digest in done.units[0].digests}
    slot.close()
    return ledgers[stage].digests(stage), computed


def _waves(
    stage: Stage, ledgers: dict[str, Ledger], shard: int, bucket_end: int, chooser: random.Random
) -> Iterable[ProcessWork]:
    """Yield the unit's work cut at random buckets; windows end where the journal says that they did."""
    inputs = [read.stream for read in stage.inputs]
    endings = [bucket for bucket in ledgers[stage.name].endings(stage.name) if bucket <= bucket_end]
    frames = frames_between(
        inputs, lambda name, start, end: ledgers[name].frames(name, start, end), FIRST_BUCKET, bucket_end
    )
    first = min(frame.bucket_start for frame in frames)
    cuts = sorted({*endings, bucket_end, *(chooser.randrange(first + 1, bucket_end) for _ in range(20))})
    bucket_from = FIRST_BUCKET
    for bucket_to in cuts:
        chosen = [frame for frame in frames if frame.bucket_start < bucket_to and frame.bucket_end > bucket_from]
        # What is below `publish_from` is computed and not written.
        unit = UnitWork(shard, 1, bucket_from, bucket_end)
        yield ProcessWork(stage.name, [unit], bucket_from, bucket_to, chosen, bucket_to in endings)
        bucket_from = bucket_to
