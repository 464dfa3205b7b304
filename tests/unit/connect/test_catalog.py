"""A store's folders know what is in them, and refuse what does not belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace as replaced

from holdfast.connect import catalog
from holdfast.errors import Misconfigured, NameInvalid, StoreCorrupt, StoreUnfit
from holdfast.log.local_store import LocalStore
from holdfast.plan import (
    Aggregate,
    Aggregation,
    Column,
    ConsoleSink,
    CountWindow,
    FilesSource,
    Named,
    ParquetSink,
    ProducerSource,
    Sink,
    Source,
    Stage,
    StageInput,
    Topology,
)

SALES = pa.schema([("item", pa.string()), ("price", pa.float64())])
AVERAGES = pa.schema([("item", pa.string()), ("average", pa.float64())])


def packed(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()


def topology(**changes: Any) -> Topology:
    item, price = Column("item", "string"), Column("price", "double")
    aggregation = Aggregation(
        [Named("item", item)],
        [Aggregate("average", "avg", price, "double")],
        [Named("item", item), Named("average", Column("average", "double"))],
        CountWindow(10, 10),
    )
    stage = Stage(
        "averages",
        [StageInput("north", packed(SALES), []), StageInput("south", packed(SALES), [], late="side")],
        packed(SALES),
        aggregation,
        [],
        packed(AVERAGES),
    )
    plain = Topology(
        "retail",
        8,
        200_000,
        [
            Source("north", packed(SALES), ProducerSource(), ["item"]),
            Source("south", packed(SALES), FilesSource("in", "csv"), ["item"], on_error="reject"),
        ],
        [stage],
        [Sink("averages.parquet", "averages", ParquetSink("out"))],
    )
    return replaced(plain, **changes)


def folder(tmp_path: Path, name: str = "retail") -> LocalStore:
    return LocalStore(tmp_path / "store" / name)


def test_the_first_run_writes_and_the_next_reads_the_same(tmp_path: Path) -> None:
    store = folder(tmp_path)
    made = catalog.create_or_check(store, topology())
    assert catalog.create_or_check(store, topology()) == made
    assert catalog.load(store) == made
    assert made.topology == topology()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shards": 4}, "shards was 8, now 4"),
        ({"bucket_width_us": 50_000}, "bucket_width_us was 200000, now 50000"),
        ({"sources": topology().sources[:1]}, "sources.south is gone"),
        (
            {
                "sources": [
                    replaced(topology().sources[0], schema=packed(AVERAGES)),
                    topology().sources[1],
                ]
            },
            r"sources.north.schema was 'item string, price double', now 'item string, average double'",
        ),
        ({"sinks": [Sink("averages.parquet", "north", ParquetSink("out"))]}, "took stream 'averages', now 'north'"),
    ],
)
def test_another_pipeline_is_refused_with_what_differs(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    store = folder(tmp_path)
    made = catalog.create_or_check(store, topology())
    with pytest.raises(StoreUnfit, match=text):
        catalog.create_or_check(store, topology(**change))
    assert catalog.load(store) == made


def test_sinks_and_policies_may_change(tmp_path: Path) -> None:
    store = folder(tmp_path)
    made = catalog.create_or_check(store, topology())
    changed = topology(
        sinks=[Sink("console", "averages", ConsoleSink())],
        stages=[replaced(topology().stages[0], checkpoint_every_us=None)],
    )
    assert catalog.create_or_check(store, changed).topology == changed
    assert catalog.load(store).topology == changed
    assert catalog.load(store).pipeline_id == made.pipeline_id
    assert catalog.load(store).fingerprint == made.fingerprint == catalog.fingerprint(changed)


def test_streams_are_found_by_name_with_their_schema(tmp_path: Path) -> None:
    catalog.create_or_check(folder(tmp_path), topology())
    url = str(tmp_path / "store")
    assert catalog.locate(url, "averages").schema == AVERAGES
    assert catalog.locate(url, "retail/north").declared == topology().sources[0]
    assert catalog.locate(str(tmp_path / "store" / "retail"), "north").schema == SALES
    late = catalog.locate((tmp_path / "store").as_uri(), "south.late")
    assert late.schema == SALES and late.stream == "south.late"
    assert catalog.locate(url, "south.rejects").schema.names == ["reason", "origin", "row"]


def test_unknown_and_ambiguous_names_list_what_there_is(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with pytest.raises(Misconfigured, match="no pipeline"):
        catalog.locate(url, "averages")
    catalog.create_or_check(folder(tmp_path), topology())
    with pytest.raises(Misconfigured, match=r"retail/north, retail/south, .*retail/averages"):
        catalog.locate(url, "average")
    catalog.create_or_check(folder(tmp_path, "other"), topology(name="other"))
    with pytest.raises(Misconfigured, match="other/averages, retail/averages"):
        catalog.locate(url, "averages")
    assert catalog.locate(url, "other/averages").topology.name == "other"


def test_a_name_that_cannot_be_a_path_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    bad = topology(sources=[replaced(topology().sources[0], name="../north")])
    with pytest.raises(NameInvalid, match="north"):
        catalog.create_or_check(folder(tmp_path), bad)
    assert not (tmp_path / "store").exists()


def test_a_newer_format_and_a_damaged_file_are_told_apart(tmp_path: Path) -> None:
    store = folder(tmp_path)
    catalog.create_or_check(store, topology())
    store.replace(catalog.CATALOG_PATH, b'{"format_version": 99, "anything": 1}')
    with pytest.raises(StoreUnfit, match="version 99"):
        catalog.load(store)
    store.replace(catalog.CATALOG_PATH, b'{"format_version": 1, "pipel')
    with pytest.raises(StoreCorrupt, match=r"pipeline\.json"):
        catalog.load(store)
