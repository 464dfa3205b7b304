"""What the user writes, analysed by Spark, as a topology."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import plan
from holdfast.errors import AlreadyExists, HoldfastError, Misconfigured, NameInvalid, UnsupportedQuery
from holdfast.spark import types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = "item string, price double, count int, sold_at timestamp, cost decimal(10,2)"


@pytest.fixture
def pipeline(spark: SparkSession) -> hf.Pipeline:
    return hf.Pipeline("retail", store="store")


@pytest.fixture
def north(pipeline: hf.Pipeline) -> hf.Stream:
    return pipeline.source("north", SALES)


def only_stage(pipeline: hf.Pipeline) -> plan.Stage:
    topology, _ = pipeline.topology()
    assert msgspec.json.decode(msgspec.json.encode(topology), type=plan.Topology) == topology
    (stage,) = topology.stages
    return stage


def sparks_schema(stage: plan.Stage) -> Any:
    return types.struct_type(pa.ipc.read_schema(pa.py_buffer(stage.schema)))


def columns(schema: Any) -> list[tuple[str, Any, bool]]:
    """Return a schema without Spark's notes to itself."""
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields]


def test_the_pipeline_of_the_readme(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    from pyspark.sql import functions as F

    south = pipeline.source(
        "south",
        hf.files("in/south", format="parquet", schema="sold_at timestamp, count int, price double, item string"),
    )
    averages = (
        north.select("item", "price", "count", "sold_at")
        .unionByName(south)
        .withWatermark("sold_at", "2 seconds")
        .groupBy("item", F.window("sold_at", "10 seconds", "5 seconds", "-1 second"))
        .agg(F.avg("price").alias("average"), F.count("*").alias("sales"))
        .named("averages")
        .protect(checkpoint=hf.snapshot(every="3 seconds"))
    )
    averages.to(hf.parquet("out/averages")).to(hf.console()).to(hf.console(rows=3))
    stage = only_stage(pipeline)
    assert averages.columns == ["item", "window", "average", "sales"]
    assert stage.aggregation is not None
    time = plan.Column("sold_at", "timestamp")
    assert stage.aggregation.window == plan.TimeWindow(time, 10_000_000, 5_000_000, -1_000_000)
    assert [key.name for key in stage.aggregation.keys] == ["item"]
    assert [output.name for output in stage.aggregation.outputs] == averages.columns
    assert [(each.function, each.type) for each in stage.aggregation.aggregates] == [
        ("avg", "double"),
        ("count_all", "bigint"),
    ]
    assert stage.sharded and stage.checkpoint_every_us == 3_000_000
    assert [each.event_time for each in stage.inputs] == ["sold_at", "sold_at"]
    topology, _ = pipeline.topology()
    assert [sink.name for sink in topology.sinks] == ["averages-parquet", "averages-console", "averages-console-2"]
    assert isinstance(topology.sources[1].origin, plan.FilesSource)


def test_a_count_window_stands_where_it_was_written(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    from pyspark.sql import functions as F

    north.groupBy("item", hf.count_window(10), "count").agg(F.max("price").alias("top")).named("tops")
    stage = only_stage(pipeline)
    assert sparks_schema(stage).simpleString() == (
        "struct<item:string,window:struct<start:timestamp,end:timestamp,number:bigint>,count:int,top:double>"
    )
    assert stage.aggregation is not None
    assert stage.aggregation.window == plan.CountWindow(10, 10)
    assert [output.name for output in stage.aggregation.outputs] == ["item", "window", "count", "top"]


def test_aggregates_are_taken_out_of_compound_outputs_once(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    from pyspark.sql import functions as F

    mean = F.sum("price") / F.sum("count") + 1
    north.groupBy("item").agg(mean.alias("mean"), F.sum("price"), F.first("cost", ignorenulls=True)).named("means")
    aggregation = only_stage(pipeline).aggregation
    assert aggregation is not None
    assert [each.function for each in aggregation.aggregates] == ["sum", "sum", "first"]
    assert aggregation.aggregates[2].ignore_nulls
    first, second = aggregation.aggregates[:2]
    assert aggregation.outputs[2].expression == plan.Column(first.name, "double")
    assert isinstance(aggregation.outputs[1].expression, plan.Call)
    assert second.type == "bigint"


def test_a_grouping_expression_may_be_used_in_the_outputs(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    from pyspark.sql import functions as F

    twice = F.col("count") * 2
    north.groupBy(twice.alias("twice")).agg((F.col("count") * 2 + F.count("*")).alias("more")).named("x")
    stage = only_stage(pipeline)
    assert stage.aggregation is not None
    assert stage.aggregation.outputs[0].expression == plan.Column("twice", "int")
    assert not stage.sharded


@pytest.mark.parametrize("method", ["sum", "avg", "min", "max"])
def test_the_methods_of_grouped_data(pipeline: hf.Pipeline, north: hf.Stream, method: str) -> None:
    getattr(north.groupBy("item"), method)("price").named("one")
    aggregation = only_stage(pipeline).aggregation
    assert aggregation is not None and aggregation.outputs[1].name == f"{method}(price)"


@pytest.mark.parametrize(
    "build",
    [
        lambda s, F: s.filter("price > 1").withColumn("tax", F.col("cost") * 2).drop("price"),
        lambda s, F: s.withColumns({"a": F.lit(1), "b": F.upper("item")}).withColumnRenamed("a", "c"),
        lambda s, F: s.where(F.col("item").isNotNull()).select("*", (F.col("price") / 2).alias("half")),
        lambda s, F: s.groupBy().agg(F.count("*"), F.var_pop("price"), F.last("item")),
        lambda s, F: s.groupBy("item").count().where("count > 1").select("item"),
        lambda s, F: s.withWatermark("sold_at", "1 second").groupBy(F.window("sold_at", "1 minute").alias("w")).count(),
        lambda s, F: s.select(F.struct("item", "price").alias("pair")).select("pair.*"),
    ],
)
def test_the_schema_is_sparks(spark: SparkSession, north: hf.Stream, build: Callable[[Any, Any], Any]) -> None:
    from pyspark.sql import functions as F

    ours = build(north, F)
    theirs = build(spark.createDataFrame([], SALES), F)
    assert columns(ours.schema) == columns(theirs.schema)
    named = ours.named("result")
    stage = only_stage(named._pipeline)
    assert columns(sparks_schema(stage)) == columns(theirs.schema)


def test_a_union_makes_names_and_nullability_one(pipeline: hf.Pipeline) -> None:
    from pyspark.sql import functions as F

    left = pipeline.source("left", "a int, b string").withColumn("c", F.lit(1))
    right = pipeline.source("right", "x bigint, y string, z int")
    left.union(right).named("both")
    stage = only_stage(pipeline)
    first, second = (each.steps[-1] for each in stage.inputs)
    assert isinstance(first, plan.Project) and isinstance(second, plan.Project)
    for step in (first, second):
        assert [(each.name, each.expression.type, each.nullable) for each in step.columns] == [
            ("a", "bigint", True),
            ("b", "string", True),
            ("c", "int", True),
        ]


def test_map_in_arrow_keeps_the_function_by_number(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    north.mapInArrow(double, "item string, price double").groupBy("item").count().mapInArrow(double, "n int").named("m")
    topology, functions = pipeline.topology()
    assert functions == [double, double]
    assert isinstance(topology.stages[0].steps[0], plan.MapInArrow)
    assert sparks_schema(topology.stages[0]).simpleString() == "struct<n:int>"


def refused(north: hf.Stream, F: Any) -> dict[str, Callable[[], object]]:
    keyed = north.groupBy("item")
    return {
        "withWatermark": lambda: north.groupBy(F.window("sold_at", "1 second")).count().named("x"),
        "session windows": lambda: north.groupBy(F.session_window("sold_at", "1 second")).count(),
        "Generate": lambda: north.select(F.explode(F.array("item"))),
        "DISTINCT": lambda: keyed.agg(F.countDistinct("price")),
        "FILTER": lambda: keyed.agg(F.expr("sum(price) filter (where count > 1)")),
        "percentile": lambda: keyed.agg(F.expr("percentile(price, 0.5)")),
        "second groupBy": lambda: keyed.count().groupBy("item"),
        "behind groupBy": lambda: keyed.count().union(keyed.count()),
        "join": lambda: north.join(north),
        "dropDuplicatesWithinWatermark": lambda: north.dropDuplicatesWithinWatermark(["item"]),
        "applyInArrow": lambda: keyed.applyInArrow(None, "a int"),
        "available=": lambda: keyed.count().named("second").protect(available="3 seconds"),
        "recover=": lambda: keyed.count().named("third").protect(recover="3 seconds"),
        "priority=": lambda: keyed.count().named("fourth").protect(priority=5),
        "hf.continuous": lambda: keyed.count().named("fifth").protect(checkpoint=hf.continuous()),
        "view=": lambda: north.to(hf.console(), view="latest"),
        "two columns named 'item'": lambda: north.select("item", "item"),
        "mapInArrow": lambda: north.select(F.rand()),
        "replica_of": lambda: north._pipeline.source("copy", "a int", replica_of="north"),
        "watermark already": lambda: north.withWatermark("sold_at", "1 second").withWatermark("sold_at", "2 seconds"),
        "toSpark": lambda: north.groupBy("item", hf.count_window(2)).count().toSpark(),
        "hf.count_window": lambda: north.groupBy(F.window("sold_at", "1 second"), hf.count_window(2)).count(),
    }


def test_what_is_not_there_yet_is_refused_at_the_users_line(north: hf.Stream) -> None:
    from pyspark.sql import functions as F

    for told, call in refused(north, F).items():
        with pytest.raises(UnsupportedQuery, match=r"test_catalyst_pipeline\.py:\d+") as caught:
            call()
        assert told in str(caught.value)


def test_wrong_use_is_refused(pipeline: hf.Pipeline, north: hf.Stream) -> None:
    wrong: list[tuple[type[HoldfastError], Callable[[], object]]] = [
        (AlreadyExists, lambda: pipeline.source("north", "a int")),
        (NameInvalid, lambda: north.select("item").named("a/b")),
        (Misconfigured, lambda: north.select("item").to(hf.console())),
        (Misconfigured, lambda: north.protect(checkpoint=None)),
        (Misconfigured, lambda: north.withWatermark("item", "1 second")),
        (Misconfigured, lambda: north.withWatermark("sold_at", "-1 second")),
        (Misconfigured, lambda: pipeline.source("t", "a int", tuple_time="a")),
        (Misconfigured, lambda: pipeline.source("t", "a int", late="keep")),
        (Misconfigured, lambda: hf.Pipeline("empty", store="s").topology()),
        (Misconfigured, lambda: north.union(hf.Pipeline("other", store="s").source("o", SALES))),
    ]
    for error, call in wrong:
        with pytest.raises(error, match=r"test_catalyst_pipeline\.py:\d+"):
            call()


def test_errors_of_names_and_types_are_sparks_own(north: hf.Stream) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        north.select("prize")
    with pytest.raises(AnalysisException, match="MISSING_AGGREGATION"):
        north.groupBy("item").agg(north._frame["price"])
    with pytest.raises(AttributeError, match="orderBy"):
        _ = north.orderBy


def test_to_spark_is_the_same_query_over_the_logged_input(
    spark: SparkSession, pipeline: hf.Pipeline, north: hf.Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    south = pipeline.source("south", "price double, item string")
    rows = {
        "north": spark.createDataFrame([("a", 1.0, 1, None, None), ("b", 5.0, 1, None, None)], SALES),
        "south": spark.createDataFrame([(3.0, "a"), (-1.0, "b")], "price double, item string"),
    }

    def read(source: str) -> DataFrame:
        return rows[source]

    monkeypatch.setattr(pipeline, "logged_input", read)
    stream = north.select("item", "price").unionByName(south).filter("price > 0").groupBy("item").agg(F.avg("price"))
    found = sorted(tuple(row) for row in stream.named("averages").toSpark().collect())
    assert found == [("a", 2.0), ("b", 5.0)]
