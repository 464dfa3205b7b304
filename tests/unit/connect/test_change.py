"""What producers, consumers and files do when the pipeline they belong to changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from holdfast.connect import catalog
from holdfast.connect.consumer import Consumer
from holdfast.connect.producer import Producer
from holdfast.connect.trimming import Trimmer
from holdfast.errors import SchemaMismatch
from holdfast.log.local_store import LocalStore
from holdfast.log.stream_log import StreamLog
from holdfast.model import FIRST_BUCKET, Advanced, SnapshotVerified, StageBegun, UnitCommitted
from holdfast.plan import Source, Stage, Topology

from .conftest import HOUR_US, SALES, SHARDS, HandClock, packed, topology
from .test_consumer import StageLog, items
from .test_files import age, read_all, source, table, write

WIDE = pa.schema([("item", pa.string()), ("shop", pa.string()), ("price", pa.float64())])
OPTIONS: dict[str, Any] = {"shards": SHARDS, "bucket_width_us": HOUR_US}


def more() -> Stage:
    return replace(topology().stages[0], name="more")


def with_shops() -> Topology:
    north = replace(topology().sources[0], schema=packed(WIDE))
    averages = topology().stages[0]
    averages = replace(averages, inputs=[replace(averages.inputs[0], schema=packed(WIDE))])
    return replace(topology(), sources=[north, *topology().sources[1:]], stages=[averages])


def snapshots(stage: str, bucket: int) -> list[SnapshotVerified]:
    return [SnapshotVerified(stage, shard, bucket + number, "s") for shard in range(SHARDS) for number in range(2)]


def test_a_producer_that_runs_keeps_what_a_new_stage_has_to_read(url: str, store: LocalStore, clock: HandClock) -> None:
    first = clock.time_us // HOUR_US
    with Producer(url, "north", clock=clock) as producer:
        for _ in range(4):
            producer.send([{"item": "a", "price": 1.0}])
            clock.time_us += HOUR_US
    with StreamLog.open(store, ["averages"], "node", **OPTIONS) as node:
        node.commit([*snapshots("averages", first + 1)]).result()
    with StreamLog.open(store, ["north"], "trimmer", **OPTIONS) as log:
        trimmer = Trimmer(catalog.locate(url, "north"), log)
        with catalog.changing(store):
            trimmer.trim((), retain_us=0)
            assert log.ledger.trimmed_before("north") is None, "nothing goes while the pipeline changes"
        catalog.create_or_check(store, replace(topology(), stages=[*topology().stages, more()]))
        trimmer.trim((), retain_us=0)
        assert log.ledger.trimmed_before("north") is None, "nobody knows yet where the new stage begins"
        with StreamLog.open(store, ["more"], "node", **OPTIONS) as node:
            node.commit([StageBegun("more", first, FIRST_BUCKET)]).result()
            node.commit([UnitCommitted("more", shard, 1, first, first + 3) for shard in range(SHARDS)]).result()
            trimmer.trim((), retain_us=0)
            assert log.ledger.trimmed_before("north") is None, "without snapshots it may have to begin anew"
            node.commit([*snapshots("more", first + 2)]).result()
            trimmer.trim((), retain_us=0)
            assert log.ledger.trimmed_before("north") == first + 1, "the old one needs more than the new one"
        catalog.create_or_check(store, replace(topology(), stages=[more()]))
        trimmer.trim((), retain_us=0)
        assert log.ledger.trimmed_before("north") == first + 2, "a stage that is gone needs nothing"
        trimmer.close()


def test_a_reader_of_a_side_stream_waits_for_a_stage_that_came_meanwhile(url: str, store: LocalStore) -> None:
    node = StageLog(store, ("averages", "north.late"))
    with Consumer(url, "north.late") as consumer:
        node.commit(node.frame(0, {5: ["a"]}, "north.late"), *node.units(0, 6))
        assert items(consumer.poll()) == ["a"]
        node.close()
        catalog.create_or_check(store, replace(topology(), stages=[*topology().stages, more()]))
        node = StageLog(store, ("averages", "more", "north.late"))
        node.commit(node.frame(0, {6: ["b"]}, "north.late"), *node.units(6, 7))
        assert consumer.poll() is None
        done = [UnitCommitted("more", shard, 0, 0, 7) for shard in range(SHARDS)]
        node.commit(node.frame(1, {6: ["c"]}, "north.late"), *done)
        assert items(consumer.poll()) == ["b", "c"]
    node.close()


@pytest.mark.parametrize(
    "rows",
    [
        [{"item": "a", "price": 1.0}],
        pa.table({"price": [1.0], "item": ["a"]}),
        pd.DataFrame({"item": ["a"], "price": [1.0]}),
    ],
    ids=["dicts", "arrow", "pandas"],
)
def test_who_sends_without_a_column_that_came_later_sends_null(
    url: str, store: LocalStore, clock: HandClock, rows: Any
) -> None:
    with Producer(url, "north", clock=clock) as producer:
        producer.send(rows)
        catalog.create_or_check(store, with_shops())
        # It began before the change, and is not disturbed by it.
        producer.send(rows)
    clock.time_us += HOUR_US
    with Producer(url, "north", clock=clock) as producer:
        assert producer.schema == WIDE
        producer.send(rows)
        producer.send([{"item": "b", "price": 2.0, "shop": "here"}])
        with pytest.raises(SchemaMismatch, match="missing 'price'"):
            producer.send(pa.table({"item": ["a"], "shop": ["here"]}))
    clock.time_us += HOUR_US
    with Consumer(url, "north") as consumer:
        found = pa.concat_tables(iter(consumer.poll, None))
    assert found.schema == WIDE
    assert sorted(found["shop"].to_pylist(), key=str) == [None, None, None, "here"]


def test_a_consumer_that_is_open_keeps_its_columns(url: str, store: LocalStore, clock: HandClock) -> None:
    with Consumer(url, "north") as consumer:
        for change in (topology, with_shops):
            catalog.create_or_check(store, change())
            with Producer(url, "north", clock=clock) as producer:
                producer.send([{"item": change.__name__, "price": 1.0}])
            clock.time_us += HOUR_US
            found = consumer.poll()
            assert found is not None and found.schema == SALES and items(found) == [change.__name__]


def with_a_new_column(path: Path, file_format: str, **options: str) -> Source:
    before = source(path, file_format, **options)
    schema = pa.ipc.read_schema(pa.py_buffer(before.schema)).append(pa.field("shop", pa.string()))
    return replace(before, schema=packed(schema), earlier=[before.schema])


def test_files_without_a_column_that_came_later_have_null_in_it(tmp_path: Path) -> None:
    writers: dict[str, Callable[[Path], Any]] = {
        "csv": lambda path: write(path, "item,price,count\napple,1.5,2\n"),
        "json": lambda path: write(path, '{"item": "apple", "price": 1.5, "count": 2}\n'),
        "parquet": lambda path: pq.write_table(table(1), path),
    }
    for file_format, writer in writers.items():
        folder = tmp_path / file_format
        folder.mkdir()
        writer(folder / f"a.{file_format}")
        age(folder / f"a.{file_format}")
        options = {"header": "true"} if file_format == "csv" else {}
        (row,) = read_all(with_a_new_column(folder, file_format, **options))
        assert list(row) == ["item", "price", "count", "shop"] and row["shop"] is None and row["item"] is not None


def test_what_a_stage_began_with_reaches_a_reader_that_was_away(store: LocalStore) -> None:
    from holdfast.log.difference import difference
    from holdfast.log.ledger import Ledger
    from holdfast.model import SinkBegun, SinkDone

    begun = [StageBegun("more", 7, 9), SinkBegun("out", "more", 8), SinkDone("out", "more", 9, 3), Advanced("more", 1)]
    new, old = Ledger(SHARDS, HOUR_US), Ledger(SHARDS, HOUR_US)
    new.apply_all(begun)
    old.apply_all(difference(old, new, "more"))
    assert old == new == Ledger.deserialize(new.serialize())
