"""A store's folders know what is in them, and refuse what does not belong."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace as replaced

from holdfast.connect import catalog
from holdfast.errors import Misconfigured, NameInvalid, StoreCorrupt, StoreUnavailable, StoreUnfit, StreamTaken
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
from holdfast.testing.faulty_store import Crashed, FaultyStore, How

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
        ({"bucket_width_us": 50_000}, "bucket was 200 milliseconds, now 50"),
        ({"session_time_zone": "Europe/Oslo"}, "time zone was UTC, now Europe/Oslo"),
        (
            {
                "sources": [
                    replaced(topology().sources[0], schema=packed(AVERAGES)),
                    topology().sources[1],
                ]
            },
            "source 'north': the column 'price' is gone",
        ),
        ({"sinks": [Sink("averages.parquet", "north", ParquetSink("out"))]}, "has rows of the stream 'averages'"),
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


def test_stages_come_go_and_come_back_as_they_were(tmp_path: Path) -> None:
    store = folder(tmp_path)
    catalog.create_or_check(store, topology())
    averages = topology().stages[0]
    more = replaced(averages, name="more", inputs=averages.inputs[:1])
    assert [
        stage.name for stage in catalog.create_or_check(store, topology(stages=[more, averages])).topology.stages
    ] == [
        "more",
        "averages",
    ]
    left = catalog.create_or_check(store, topology(stages=[more], sinks=[]))
    assert left.removed.stages == [averages] and left.removed.sinks == topology().sinks
    assert left.known.stages == [more, averages]
    other = replaced(averages, aggregation=replaced(averages.aggregation, window=CountWindow(20, 20)))
    with pytest.raises(StoreUnfit, match="stage 'averages': its window was 10 rows every 10, now 20 rows every 20"):
        catalog.create_or_check(store, topology(stages=[more, other]))
    back = catalog.create_or_check(store, topology(stages=[averages]))
    assert back.topology == topology(stages=[averages]) and back.removed.stages == [more]
    with pytest.raises(StoreUnfit, match="'more' was a stage and is now a source"):
        catalog.create_or_check(
            store, topology(sources=[*topology().sources, replaced(topology().sources[0], name="more")])
        )


def test_a_source_gets_columns_and_keeps_what_its_frames_are(tmp_path: Path) -> None:
    store = folder(tmp_path)
    catalog.create_or_check(store, topology())
    wide = pa.schema([("item", pa.string()), ("shop", pa.string()), ("price", pa.float64())])
    averages = topology().stages[0]

    def widened(**changes: Any) -> Topology:
        sources = [replaced(topology().sources[0], schema=packed(wide), **changes), topology().sources[1]]
        inputs = [replaced(averages.inputs[0], schema=packed(wide)), averages.inputs[1]]
        return topology(sources=sources, stages=[replaced(averages, inputs=inputs)])

    changed = catalog.create_or_check(store, widened())
    assert changed.topology.sources[0].earlier == [packed(SALES)]
    assert catalog.create_or_check(store, widened()) == changed
    found = catalog.locate(str(tmp_path / "store"), "north")
    assert found.schema == wide and found.earlier == [SALES]
    for change, text in (
        ({"shard_by": ["shop"]}, r"sharded by \['item'\], now by \['shop'\]"),
        ({"tuple_time": "at"}, "tuple_time was None, now 'at'"),
    ):
        with pytest.raises(StoreUnfit, match=text):
            catalog.create_or_check(store, widened(**change))
    with pytest.raises(StoreUnfit, match="'shop' is gone"):
        catalog.create_or_check(store, topology())
    timed = catalog.create_or_check(store, widened(event_time="price"))
    assert timed.topology.sources[0].event_time == "price"
    assert catalog.create_or_check(store, widened()) == timed, "what frames carry they go on carrying"
    with pytest.raises(StoreUnfit, match="logged with the event time 'price', now it is 'item'"):
        catalog.create_or_check(store, widened(event_time="item"))


def sinks_of(*paths: str) -> list[Sink]:
    names = ["averages-parquet", *(f"averages-parquet-{number}" for number in range(2, len(paths) + 1))]
    return [Sink(name, "averages", ParquetSink(path)) for name, path in zip(names, paths, strict=False)]


def test_a_folder_keeps_its_sink(tmp_path: Path) -> None:
    store = folder(tmp_path)

    def names(*paths: str) -> dict[str, str]:
        found = catalog.create_or_check(store, topology(sinks=sinks_of(*paths))).topology.sinks
        return {sink.target.path: sink.name for sink in found if isinstance(sink.target, ParquetSink)}

    first, second, third = "averages-parquet", "averages-parquet-2", "averages-parquet-3"
    assert names("one") == {"one": first}
    assert names("two", "one") == {"two": second, "one": first}
    assert names("two") == {"two": second}
    assert names("new", "two", "one") == {"new": third, "two": second, "one": first}
    assert names("moved", "two", "one") == {"moved": third, "two": second, "one": first}


@pytest.mark.parametrize("how", list(How))
@pytest.mark.parametrize("ending", ["error", "killed", "power"])
def test_a_crash_while_a_pipeline_changes_leaves_the_old_one_or_the_new_one(how: How, ending: str) -> None:
    changed = topology(stages=[*topology().stages, replaced(topology().stages[0], name="more")])
    found = set()
    for number in range(50):
        store = FaultyStore(seed=number)
        old = catalog.create_or_check(store, topology())
        first = len(store.operations)
        store.fail_at(first + number, how, crash=ending != "error")
        with contextlib.suppress(Crashed, StoreUnavailable):
            catalog.create_or_check(store, changed)
        if len(store.operations) <= first + number:
            break
        if ending == "power":
            store.crash()
        after = store.process("next")
        there = catalog.load(after)
        assert there == old or (there.topology == changed and there.pipeline_id == old.pipeline_id)
        found.add(there == old)
        assert catalog.create_or_check(after, changed).topology == changed, "it can be begun again"
    else:
        raise AssertionError("a change has an end")
    assert number > 0 and found


def test_a_change_waits_for_who_trims_and_is_refused_while_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder(tmp_path)
    catalog.create_or_check(store, topology())
    monkeypatch.setattr(catalog, "_LOCK_WAIT_S", 0.0)
    with catalog.changing(store) as held:
        assert held
        with catalog.changing(store) as again:
            assert not again
        assert catalog.create_or_check(store, topology()).topology == topology(), "what is the same changes nothing"
        with pytest.raises(StoreUnavailable, match=r"pipeline\.lock"):
            catalog.create_or_check(store, topology(sinks=[]))
    catalog.create_or_check(store, topology(sinks=[]))
    with pytest.raises(StreamTaken, match="was changed by another process"):
        catalog.check_unchanged(store, replaced(catalog.load(store), topology=topology()))


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
