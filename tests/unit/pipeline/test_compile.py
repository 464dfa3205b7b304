"""From a tree of calls to a topology, with hand-made trees."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast import plan
from holdfast.errors import UnsupportedQuery
from holdfast.operators.partition_function import PartitionFunction
from holdfast.pipeline.compile import DeclaredSource, DeclaredStage, Settings, compile_topology
from holdfast.pipeline.lineage import (
    AggregationNode,
    MapNode,
    Node,
    SourceNode,
    StageNode,
    StepNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    has_aggregation,
    has_count_window,
    has_watermark,
    replay,
)

COLUMNS = {"item": "string", "price": "double", "at": "timestamp"}
SCHEMA = pa.schema([("item", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us", tz="UTC"))])
BYTES = SCHEMA.serialize().to_pybytes()
SETTINGS = Settings("retail", 4, 200_000, "UTC")


def column(name: str) -> plan.Column:
    return plan.Column(name, COLUMNS.get(name, "string"))


def source(name: str) -> DeclaredSource:
    return DeclaredSource(plan.Source(name, BYTES, plan.ProducerSource()), tuple(COLUMNS))


def leaf(name: str) -> Node:
    return SourceNode(name, "user.py:1")


def projected(parent: Node, **columns: plan.Expression) -> Node:
    step = plan.Project([plan.Named(name, expression) for name, expression in columns.items()])
    return StepNode(parent, (step,), lambda frame: frame, "user.py:2")


def mapped(parent: Node) -> Node:
    return MapNode(parent, lambda batches: batches, "f", BYTES, lambda frame: frame, "user.py:3")


def watermarked(parent: Node, name: str = "at") -> Node:
    return WatermarkNode(parent, name, 2_000_000, "user.py:4")


def union(left: Node, right: Node) -> Node:
    return UnionNode((left, right), ((), ()), lambda a, b: a, "user.py:5")


def grouped(parent: Node, *keys: plan.Expression, window: plan.TimeWindow | None = None) -> Node:
    named = [plan.Named(f"k{index}", key) for index, key in enumerate(keys)]
    count = plan.Aggregate("_aggregate_0", "count_all", None, "bigint")
    aggregation = plan.Aggregation(named, [count], [], window)
    return AggregationNode(parent, aggregation, BYTES, lambda frame: frame, "user.py:6")


def compiled(*nodes: Node, sources: str = "north south") -> plan.Topology:
    declared = [DeclaredStage(f"s{index}", node, BYTES, None) for index, node in enumerate(nodes)]
    made, _ = compile_topology(SETTINGS, {name: source(name) for name in sources.split()}, declared, [])
    return made


TUMBLING = plan.TimeWindow(column("at"), 10_000_000, 10_000_000)


def stage_leaf(name: str, made_by: Node | None = None) -> Node:
    return StageNode(name, made_by or leaf("north"), "user.py:7")


def totals(*names: str, parent: Node | None = None) -> Node:
    """Group by columns; the result has them and the time of a row."""
    keys = [plan.Named(name, column(name)) for name in names]
    latest = plan.Aggregate("_aggregate_0", "max", column("at"), "timestamp")
    outputs = [*keys, plan.Named("at", plan.Column("_aggregate_0", "timestamp"))]
    aggregation = plan.Aggregation(keys, [latest], outputs, None)
    return AggregationNode(parent or leaf("north"), aggregation, BYTES, lambda frame: frame, "user.py:8")


def test_a_key_that_is_a_column_of_every_input_decides_the_shard() -> None:
    renamed = projected(leaf("south"), item=column("item"), price=column("price"), at=column("at"))
    made = compiled(grouped(union(leaf("north"), renamed), column("item")))
    assert [each.shard_by for each in made.sources] == [["item"], ["item"]]
    assert made.stages[0].sharded


def test_a_renamed_key_is_followed_to_the_source() -> None:
    renamed = projected(leaf("north"), thing=column("item"))
    made = compiled(grouped(renamed, plan.Column("thing", "string")), sources="north")
    assert made.sources[0].shard_by == ["item"]
    assert made.stages[0].sharded


@pytest.mark.parametrize(
    "node",
    [
        grouped(leaf("north"), plan.Call("upper", [column("item")], "string")),
        grouped(mapped(leaf("north")), column("item")),
        grouped(projected(leaf("north"), item=plan.Call("upper", [column("item")], "string")), column("item")),
    ],
)
def test_a_computed_key_leaves_rows_where_they_are(node: Node) -> None:
    made = compiled(node, sources="north")
    assert made.sources[0].shard_by == []
    assert not made.stages[0].sharded


def test_one_input_with_a_computed_key_is_enough_to_pick_rows_when_reading() -> None:
    computed = projected(leaf("south"), item=plan.Call("upper", [column("item")], "string"))
    made = compiled(grouped(union(leaf("north"), computed), column("item")))
    assert not made.stages[0].sharded


def test_of_two_stages_with_different_keys_the_first_decides() -> None:
    made = compiled(grouped(leaf("north"), column("item")), grouped(leaf("north"), column("price")), sources="north")
    assert made.sources[0].shard_by == ["item"]
    assert [stage.sharded for stage in made.stages] == [True, False]


def test_a_stage_without_keys_is_one_shard() -> None:
    made = compiled(grouped(leaf("north")), sources="north")
    assert made.sources[0].shard_by == [] and made.stages[0].sharded


def test_steps_before_and_behind_a_union_are_in_every_branch() -> None:
    keep = StepNode(union(leaf("north"), leaf("south")), (plan.Filter(column("item")),), lambda frame: frame, "l")
    made = compiled(grouped(keep, column("item")))
    assert [[type(step) for step in each.steps] for each in made.stages[0].inputs] == [[plan.Filter], [plan.Filter]]


def test_a_stage_without_an_aggregation_has_all_its_steps_in_its_branches() -> None:
    made = compiled(projected(leaf("north"), item=column("item")), sources="north")
    assert made.stages[0].aggregation is None
    assert made.stages[0].steps == [] and len(made.stages[0].inputs[0].steps) == 1


def test_the_event_time_is_a_column_of_the_source() -> None:
    renamed = projected(leaf("north"), item=column("item"), when=column("at"))
    window = plan.TimeWindow(plan.Column("when", "timestamp"), 1, 1)
    made = compiled(grouped(watermarked(renamed, "when"), column("item"), window=window), sources="north")
    assert made.stages[0].inputs[0].event_time == "at"
    assert made.stages[0].inputs[0].delay_us == 2_000_000
    assert made.sources[0].event_time == "at"


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (grouped(leaf("north"), window=TUMBLING), "withWatermark"),
        (grouped(union(watermarked(leaf("north")), leaf("south")), window=TUMBLING), "'south' has no watermark"),
        (grouped(watermarked(mapped(leaf("north"))), window=TUMBLING), "computed"),
        (grouped(mapped(watermarked(leaf("north"))), window=TUMBLING), "not through mapInArrow"),
        (grouped(union(leaf("north"), leaf("north")), column("item")), "twice"),
        (grouped(leaf("north"), plan.Column("l", "array<int>")), "array<int> cannot be grouped by"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_users_line(node: Node, told: str) -> None:
    with pytest.raises(UnsupportedQuery, match=rf"{told}.*\(at user\.py:\d\)"):
        compiled(node)


def test_a_function_behind_a_union_has_one_number() -> None:
    both = mapped(union(leaf("north"), leaf("south")))
    declared = [DeclaredStage("s", mapped(both), BYTES, None)]
    made, functions = compile_topology(SETTINGS, {name: source(name) for name in ("north", "south")}, declared, [])
    steps = [[step.function for step in each.steps] for each in made.stages[0].inputs]  # type: ignore[union-attr]
    assert steps == [[0, 1], [0, 1]]
    assert len(functions) == 2


def test_a_named_stream_is_an_input_with_its_own_schema() -> None:
    made = compiled(totals("item"), grouped(union(stage_leaf("s0"), leaf("south")), column("item")))
    first, second = made.stages
    assert [each.stream for each in second.inputs] == ["s0", "south"]
    assert second.inputs[0].schema == first.schema
    assert (second.inputs[0].late, second.inputs[0].on_error) == ("drop", "stop")


@pytest.mark.parametrize(
    ("first", "second", "one_to_one"),
    [
        (["item"], grouped(stage_leaf("s0"), column("item")), True),
        (["item"], grouped(stage_leaf("s0"), column("price")), False),
        (["item"], grouped(stage_leaf("s0"), column("item"), column("price")), False),
        (["item", "price"], grouped(stage_leaf("s0"), column("item"), column("price")), True),
        (["item", "price"], grouped(stage_leaf("s0"), column("price"), column("item")), False),
        (["item", "price"], grouped(stage_leaf("s0"), column("item")), False),
        (["item"], grouped(mapped(stage_leaf("s0")), column("item")), False),
        (["item"], grouped(projected(stage_leaf("s0"), k=column("item")), plan.Column("k", "string")), True),
        (["item"], grouped(projected(stage_leaf("s0"), item=column("price")), column("item")), False),
        (["item"], grouped(union(stage_leaf("s0"), leaf("south")), column("item")), True),
        (["price"], grouped(union(stage_leaf("s0"), leaf("south")), column("item")), False),
        (["item"], grouped(stage_leaf("s0")), False),
    ],
)
def test_an_edge_is_one_to_one_where_the_keys_stay_as_they_are(
    first: list[str], second: Node, one_to_one: bool
) -> None:
    assert [stage.sharded for stage in compiled(totals(*first), second).stages] == [True, one_to_one]


def test_an_edge_behind_keys_that_are_picked_by_hash_is_one_to_one_too() -> None:
    made = compiled(totals("price"), totals("item"), grouped(stage_leaf("s1"), column("item")))
    assert [stage.sharded for stage in made.stages] == [True, False, True]


def test_a_key_that_leaves_a_stage_under_another_name_is_followed() -> None:
    renamed = projected(totals("item"), price=column("item"), at=column("at"))
    made = compiled(renamed, grouped(stage_leaf("s0"), column("price")), grouped(stage_leaf("s0"), column("at")))
    assert [stage.sharded for stage in made.stages] == [True, True, False]


def test_rows_stay_in_their_shards_through_stages_without_state() -> None:
    keep = StepNode(leaf("north"), (plan.Filter(column("item")),), lambda frame: frame, "l")
    made = compiled(keep, grouped(stage_leaf("s0"), column("item")), sources="north")
    assert made.sources[0].shard_by == ["item"]
    assert [stage.sharded for stage in made.stages] == [True, True]
    both = union(leaf("north"), leaf("south"))
    alike = compiled(both, grouped(stage_leaf("s0"), column("item")))
    assert [stage.sharded for stage in alike.stages] == [True, True]
    unlike = compiled(grouped(leaf("south"), column("price")), both, grouped(stage_leaf("s1"), column("item")))
    assert [each.shard_by for each in unlike.sources] == [["item"], ["price"]]
    assert [stage.sharded for stage in unlike.stages] == [True, True, False]


def test_frames_of_a_stage_carry_the_event_time_that_a_later_stage_asks_for() -> None:
    window = grouped(watermarked(stage_leaf("s0")), column("item"), window=TUMBLING)
    made = compiled(totals("item"), window, grouped(stage_leaf("s0"), column("item")))
    assert [stage.event_time for stage in made.stages] == ["at", None, None]
    assert (made.stages[1].inputs[0].event_time, made.stages[1].inputs[0].delay_us) == ("at", 2_000_000)


EDGES = "struct<start:timestamp,end:timestamp>"


def windowed_totals(at: plan.Expression) -> Node:
    """Group by item in windows; `at` is a column of the result."""
    keys = [plan.Named("item", column("item"))]
    latest = plan.Aggregate("_aggregate_0", "max", column("at"), "timestamp")
    outputs = [*keys, plan.Named("window", plan.Column("window", EDGES)), plan.Named("at", at)]
    aggregation = plan.Aggregation(keys, [latest], outputs, TUMBLING)
    return AggregationNode(watermarked(leaf("north")), aggregation, BYTES, lambda frame: frame, "user.py:9")


def edge(number: int, of: str = "window") -> plan.Expression:
    return plan.Call("field", [plan.Column(of, EDGES), plan.Constant(number, "int")], "timestamp")


LATEST = plan.Column("_aggregate_0", "timestamp")


@pytest.mark.parametrize(
    ("made_by", "known"),
    [
        (windowed_totals(edge(0)), "start"),
        (windowed_totals(edge(1)), "end"),
        (projected(windowed_totals(edge(1)), at=column("at")), "end"),
        (projected(windowed_totals(LATEST), at=edge(0)), "start"),
        (projected(projected(windowed_totals(LATEST), w=plan.Column("window", EDGES)), at=edge(1, "w")), "end"),
        (windowed_totals(LATEST), None),
        (projected(windowed_totals(edge(1)), at=plan.Call("date_trunc", [column("at")], "timestamp")), None),
        (mapped(windowed_totals(edge(1))), None),
        (totals("item"), None),
    ],
)
def test_an_event_time_that_is_an_edge_of_a_stages_windows_is_known_as_one(made_by: Node, known: str | None) -> None:
    made = compiled(made_by, grouped(watermarked(stage_leaf("s0")), column("item"), window=TUMBLING))
    assert (made.stages[0].event_time, made.stages[0].event_time_edge) == ("at", known)


@pytest.mark.parametrize(
    ("readers", "shard_by"),
    [
        ([grouped(stage_leaf("s0"), column("price"))], ["price"]),
        ([grouped(stage_leaf("s0"), column("price")), grouped(stage_leaf("s0"), column("price"))], ["price"]),
        ([grouped(stage_leaf("s0"), column("price")), grouped(stage_leaf("s0"), column("item"))], ["price"]),
        ([grouped(projected(stage_leaf("s0"), p=column("price")), plan.Column("p", "double"))], ["price"]),
        ([grouped(stage_leaf("s0"), column("price"), column("at"))], ["price", "at"]),
        ([grouped(stage_leaf("s0"), column("price")), grouped(stage_leaf("s0"), column("at"))], []),
        ([grouped(stage_leaf("s0"), column("price")), grouped(mapped(stage_leaf("s0")), column("price"))], []),
        ([grouped(stage_leaf("s0"), column("item"))], []),
        ([grouped(stage_leaf("s0"))], []),
    ],
)
def test_rows_are_ordered_for_their_readers_where_all_that_pick_do_so_by_the_same_columns(
    readers: list[Node], shard_by: list[str]
) -> None:
    made = compiled(totals("item"), *readers)
    assert made.stages[0].shard_by == shard_by
    if shard_by:
        assert made.stages[1].inputs[0].keyed_by == shard_by


def test_a_partition_function_takes_the_place_of_the_hash() -> None:
    def by_item(keys: object) -> object:
        return keys

    by, again = (PartitionFunction(by_item, "by_item", "user.py:10") for _ in range(2))
    nodes = [
        (totals("item"), by),
        (grouped(stage_leaf("s0"), column("item")), again),
        (grouped(stage_leaf("s0"), column("item")), None),
        (grouped(stage_leaf("s0"), column("price")), by),
    ]
    declared = [DeclaredStage(f"s{number}", node, BYTES, None, by) for number, (node, by) in enumerate(nodes)]
    made, functions = compile_topology(SETTINGS, {"north": source("north")}, declared, [])
    assert [stage.sharded for stage in made.stages] == [False, True, False, False]
    assert [stage.partition_by for stage in made.stages][:3] == [plan.Partitioning(0, "by_item")] * 2 + [None]
    assert functions == [by]
    assert made.sources[0].shard_by == []
    with pytest.raises(UnsupportedQuery, match=r"partition_by=by_item decides.*'s' has none.*\(at user.py:10\)"):
        compile_topology(
            SETTINGS, {"north": source("north")}, [DeclaredStage("s", grouped(leaf("north")), BYTES, None, by)], []
        )


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (grouped(stage_leaf("s0"), window=TUMBLING), "the stream 's0' has no watermark"),
        (grouped(watermarked(mapped(stage_leaf("s0"))), window=TUMBLING), r"before its .named"),
        (
            grouped(union(stage_leaf("s0"), stage_leaf("s0")), column("item")),
            "the stream 's0' is in the stage 's1' twice",
        ),
    ],
)
def test_what_cannot_be_asked_of_a_stream_is_refused_with_the_users_line(node: Node, told: str) -> None:
    with pytest.raises(UnsupportedQuery, match=rf"{told}.*\(at user\.py:\d\)"):
        compiled(totals("item"), node)


def test_two_event_times_of_one_stream_are_refused() -> None:
    other = grouped(watermarked(stage_leaf("s0"), "price"), column("item"))
    with pytest.raises(
        UnsupportedQuery, match=r"stream 's0' has the event times 'at' and 'price'.*name the rows twice"
    ):
        compiled(totals("item"), watermarked(stage_leaf("s0")), other)


def test_a_stage_ends_at_a_named_stream_and_the_same_query_in_spark_goes_on_to_the_sources() -> None:
    counting = plan.Aggregation([], [], [], plan.CountWindow(2, 2))
    below = AggregationNode(watermarked(leaf("north")), counting, BYTES, lambda frame: [*frame, "group"], "l")
    node = StepNode(stage_leaf("s0", below), (), lambda frame: [*frame, "step"], "l")
    assert not has_aggregation(node) and not has_watermark(node)
    assert has_count_window(node)
    assert replay(node, lambda name: [name]) == ["north", "group", "step"]  # type: ignore[arg-type, return-value, comparison-overlap]


def transformed(parent: Node, *order_by: str, **kept: str) -> Node:
    return TransformNode(parent, "f", order_by, kept, lambda frame: frame, "user.py:8")


def test_a_transform_is_a_stage_of_jobs_and_the_columns_it_keeps_stay_what_they_are() -> None:
    made = transformed(projected(leaf("north"), what=column("item"), at=column("at")), "price", what="what", when="at")
    behind = watermarked(stage_leaf("s0", made), "at")
    key = plan.Column("item", "string")
    topology = compiled(transformed(mapped(leaf("north")), item="item"), grouped(stage_leaf("s0"), key))
    first = topology.stages[0]
    assert first.transform == plan.Transform("f") and not first.steps and not first.inputs[0].steps
    assert not topology.sources[0].shard_by, "what a function over batches makes is not traced"
    topology = compiled(transformed(leaf("north"), item="item"), grouped(stage_leaf("s0"), key))
    assert topology.sources[0].shard_by == ["item"] and topology.stages[1].sharded
    topology = compiled(made, behind)
    assert topology.stages[0].transform == plan.Transform("f", ["price"])
    assert topology.stages[0].event_time == "at"


def test_an_order_that_would_be_lost_is_refused() -> None:
    with pytest.raises(UnsupportedQuery, match=r"another transform stands behind it.*user.py:8"):
        compiled(transformed(transformed(leaf("north"), "price")))
    with pytest.raises(UnsupportedQuery, match=r"'cost' is dropped or renamed.*user.py:8"):
        compiled(transformed(leaf("north"), "cost"))
