"""What a careless user gets to read: what failed, what was expected, what to do, and the line that did it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, UnsupportedQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (
    "item string, price double, count int, sold_at timestamp, tags array<string>, pair struct<a:int,b:string>, "
    "map map<string,int>"
)
Case = tuple[str, Callable[["World"], object]]


class World:
    """A pipeline with a source, and folders of all kinds."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        from pyspark.sql import functions as F

        self.F, self.spark, self.folder = F, spark, folder
        self.pipeline = hf.Pipeline("retail", store=str(folder / "store"))
        self.rows = self.pipeline.source("rows", ROWS)
        self.timed = self.rows.withWatermark("sold_at", "1 second")
        self.keyed = self.rows.groupBy("item")
        self.named = self.rows.select("item").named("named")
        for name in ("empty", "zero", "garbage", "nocolumns"):
            (folder / name).mkdir()
        (folder / "zero/a.parquet").write_bytes(b"")
        (folder / "garbage/a.parquet").write_bytes(b"these are no columns")
        (folder / "nocolumns/a.csv").write_bytes(b"")

    def pipeline_with(self, **options: Any) -> hf.Pipeline:
        return hf.Pipeline(**{"name": "other", "store": str(self.folder / "other"), **options})

    def source(self, data: Any, name: str = "more", **options: Any) -> hf.Stream:
        return self.pipeline.source(name, data, **options)

    def files(self, path: str, **options: Any) -> hf.Stream:
        return self.source(hf.files(str(self.folder / path), **options))

    def column(self, expression: Any) -> hf.Stream:
        return self.rows.withColumn("made", expression)


PIPELINES: list[Case] = [
    ("'a/b' cannot name a pipeline: use letters", lambda w: w.pipeline_with(name="a/b")),
    ("None cannot name a pipeline", lambda w: w.pipeline_with(name=None)),
    ("store is None and must be the path of a folder", lambda w: w.pipeline_with(store=None)),
    ("scheme 's3'.*give a path", lambda w: w.pipeline_with(store="s3://bucket/in").create()),
    ("shards is True and must be a whole number", lambda w: w.pipeline_with(shards=True)),
    ("shards is '8' and must be a whole number", lambda w: w.pipeline_with(shards="8")),
    ("bucket: 200 is not an interval.*such as", lambda w: w.pipeline_with(bucket=200)),
    ("'1 month' has a month.*in days", lambda w: w.pipeline_with(bucket="1 month")),
    ("protect is .* and must be a dict", lambda w: w.pipeline_with(protect=["available"])),
    ("no dial 'availble'; it has available", lambda w: w.pipeline_with(protect={"availble": "3 seconds"})),
    ("has no source; call pipeline.source", lambda w: w.pipeline_with().run()),
]
SOURCES: list[Case] = [
    ("'../x' cannot name a stream", lambda w: w.source("a int", "../x")),
    ("None is not a schema; give a StructType or text", lambda w: w.source(None)),
    ("is not a schema; give", lambda w: w.source(pa.schema([("a", pa.int32())]))),
    ("IntegerType.* is not a schema; give", lambda w: w.source("int")),
    ("has no columns", lambda w: w.source("")),
    ("two columns named 'x'; rename", lambda w: w.source("x int, X string")),
    ("a batch DataFrame ends, .*hf.files for a folder", lambda w: w.source(w.spark.range(3))),
    ("late is 'keep' and can be 'drop' or 'side'", lambda w: w.source("a int", late="keep")),
    ("on_error is True and can be 'stop' or 'reject'", lambda w: w.source("a int", on_error=True)),
    ("tuple_time .*'at' is not there; the source has struct<a:int>", lambda w: w.source("a int", tuple_time="at")),
    ("must be the name of a column", lambda w: w.source("at timestamp", tuple_time=w.F.col("at"))),
    ("column 'a': .*interval year to month.*cast", lambda w: w.source("a interval year to month")),
]
FILES: list[Case] = [
    ("path of hf.files is None", lambda w: hf.files(None)),  # type: ignore[arg-type]
    ("format 'orc' cannot be read; it can be one of parquet", lambda w: w.files("empty", format="orc")),
    ("nowhere': no such file or folder. Create it", lambda w: w.files("nowhere")),
    ("empty': Spark cannot infer .*Declare it with schema=", lambda w: w.files("empty")),
    ("zero': Spark cannot infer .*Declare it with schema=", lambda w: w.files("zero")),
    ("garbage': Spark cannot infer .*a.parquet.*Declare it", lambda w: w.files("garbage")),
    ("there is no row yet .*Declare it with schema=", lambda w: w.files("nocolumns", format="csv")),
    ("unknown options hedaer. Known are header", lambda w: w.files("empty", format="csv", schema="a int", hedaer=True)),
    ("take no options, and 'header' is given", lambda w: w.files("empty", schema="a int", header=True)),
    ("column 'a': CSV has no values of type", lambda w: w.files("empty", format="csv", schema="a array<int>")),
    (
        "column 'a': JSON lines: .*declare a struct",
        lambda w: w.files("empty", format="json", schema="a map<string,int>"),
    ),
    ("pattern 'QQ'.*Known are yyyy", lambda w: w.files("empty", format="csv", schema="a date", dateFormat="QQ")),
    (
        "'klingon' is not known; write utf-8",
        lambda w: w.files("empty", format="csv", schema="a int", encoding="klingon"),
    ),
    ("settle of hf.files: 5 is not an interval", lambda w: w.files("empty", settle=5)),
]
STEPS: list[Case] = [
    ("<lambda>.*put it into mapInArrow", lambda w: w.column(w.F.udf(lambda x: x)("item"))),
    (
        "Spark makes a Window of this step.*use mapInArrow",
        lambda w: w.column(w.F.expr("row_number() over (order by item)")),
    ),
    ("Spark makes a Generate of this step", lambda w: w.column(w.F.explode("tags"))),
    ("rand.* not there yet; compute it in mapInArrow", lambda w: w.column(w.F.rand())),
    ("current_timestamp.* not there yet", lambda w: w.column(w.F.current_timestamp())),
    ("regexp_replace.* not there yet; compute it in", lambda w: w.column(w.F.regexp_replace("item", "a", "b"))),
    ("scalarsubquery.* not there yet", lambda w: w.column(w.F.expr("(select 1)"))),
    ("stream by union, and None is none", lambda w: w.rows.union(None)),  # type: ignore[arg-type]
    ("'rows' is in the stage 'twice' twice", lambda w: w.rows.union(w.rows).named("twice")),
    ("mapInArrow needs a function", lambda w: w.rows.mapInArrow("a int", lambda x: x)),  # type: ignore[arg-type]
    ("has no columns", lambda w: w.rows.select().named("nothing")),
    ("withWatermark needs the name of a column", lambda w: w.rows.withWatermark(w.F.col("sold_at"), "1 second")),
    (
        "withWatermark needs a timestamp column, and 'item' is string",
        lambda w: w.rows.withWatermark("item", "1 second"),
    ),
    ("the delay of withWatermark: 'soon' is not an interval", lambda w: w.rows.withWatermark("sold_at", "soon")),
]
GROUPS: list[Case] = [
    (
        "groupBy.'tags'.: array<string> cannot be grouped by; group by",
        lambda w: w.rows.groupBy("tags").count().named("x"),
    ),
    ("two columns named 'item'; rename", lambda w: w.rows.groupBy("item", "item").count().named("x")),
    ("agg needs columns such as", lambda w: w.keyed.agg("price")),
    ("agg needs columns such as", lambda w: w.keyed.agg()),
    ("agg needs columns such as", lambda w: w.keyed.agg({})),
    ("median.* is not there; count, sum", lambda w: w.keyed.agg(w.F.median("price"))),
    ("first.pair.: first of a struct.*aggregate its fields", lambda w: w.keyed.agg(w.F.first("pair"))),
    (
        "two columns named 'a'",
        lambda w: w.keyed.agg(w.F.sum("price").alias("a"), w.F.sum("count").alias("A")).named("x"),
    ),
    (
        "no watermark; call .withWatermark",
        lambda w: w.rows.groupBy(w.F.window("sold_at", "5 seconds")).count().named("x"),
    ),
    (
        "31,536,000,000,000 windows",
        lambda w: w.timed.groupBy(w.F.window("sold_at", "365 days", "1 microsecond")).count(),
    ),
    ("1,000,000,000 count windows", lambda w: w.rows.groupBy(hf.count_window(10**9, 1)).count().named("x")),
    ("more than a record holds", lambda w: w.rows.groupBy(hf.count_window(990, 1)).agg(*many(w)).named("x")),
    ("size of a count window is '10'", lambda w: hf.count_window("10")),  # type: ignore[arg-type]
    ("two count windows; one", lambda w: w.rows.groupBy(hf.count_window(2), hf.count_window(3)).count()),
]
NAMES_AND_SINKS: list[Case] = [
    ("'a.b' cannot name a stream", lambda w: w.rows.select("item").named("a.b")),
    ("'rows' already; choose another name", lambda w: w.rows.select("item").named("rows")),
    ("has a name already; select from it", lambda w: w.named.named("other")),
    ("a stage has one groupBy; give the result a name", lambda w: w.keyed.count().groupBy("count")),
    ("'out' is not a sink; it can be hf.parquet", lambda w: w.named.to("out")),  # type: ignore[arg-type]
    ("source 'rows' cannot go to a sink as it is; make a stream of it", lambda w: w.rows.to(hf.console())),
    ("call .named.*before .to", lambda w: w.rows.select("item").to(hf.console())),
    ("rows of hf.console is 'many'", lambda w: hf.console("many")),  # type: ignore[arg-type]
    (
        "goes to .* already; give each sink a folder",
        lambda w: [w.named.to(hf.parquet(str(w.folder / "out"))) for _ in "ab"],
    ),
    (
        "reads from .*; give the sink a folder",
        lambda w: w.files("empty", schema="a int").select("a").named("same").to(hf.parquet(str(w.folder / "empty"))),
    ),
    ("checkpoint is '10 seconds'; it can be hf.snapshot", lambda w: w.named.protect(checkpoint="10 seconds")),
    ("every of hf.snapshot: 10 is not an interval", lambda w: hf.snapshot(10)),  # type: ignore[arg-type]
    ("holds no pipeline .yet.. .*run the pipeline first", lambda w: w.rows.toSpark()),
]


def many(w: World) -> list[Any]:
    return [w.F.avg(w.F.col("price") + n).alias(f"a{n}") for n in range(3)]


@pytest.mark.parametrize("cases", [PIPELINES, SOURCES, FILES, STEPS, GROUPS, NAMES_AND_SINKS])
def test_nonsense_is_refused_with_what_to_do(spark: SparkSession, tmp_path: Path, cases: list[Case]) -> None:
    world = World(tmp_path, spark)
    for told, call in cases:
        with pytest.raises(HoldfastError) as caught:
            call(world)
        message = str(caught.value)
        assert re.search(told, message, re.DOTALL), f"{message!r} does not say {told!r}"
        assert re.search(r"\(at .*test_careless_user\.py:\d+\)", message), message
        assert not (tmp_path / "store").exists(), "something was touched"


def test_sparks_own_errors_carry_the_users_line_as_a_note(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    world = World(tmp_path, spark)
    calls: list[Callable[[], object]] = [
        lambda: world.rows.select("prize"),
        lambda: world.rows.filter("price >"),
        lambda: world.rows.select(5),
        lambda: world.rows.union(world.source("a int")),
        lambda: world.keyed.sum("nothing"),
        lambda: world.timed.groupBy(world.F.window("sold_at", "soon")).count(),
        lambda: world.source("this is no schema", "other"),
    ]
    for call in calls:
        with pytest.raises(PySparkException) as caught:
            call()
        assert re.match(r"at .*test_careless_user\.py:\d+$", caught.value.__notes__[0])


@pytest.mark.parametrize("name", ["orderBy", "limit", "item"])
def test_a_method_that_is_not_there_is_answered_with_those_that_are(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    world = World(tmp_path, spark)
    with pytest.raises(AttributeError, match=rf"has no '{name}'.*mapInArrow"):
        getattr(world.rows, name)
    with pytest.raises(AttributeError, match="has no 'pivot'; it has agg"):
        world.keyed.pivot  # noqa: B018


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("show", r"for ever: stream.toSpark\(\).show\(...\) has .*hf.console\(\).*hf.Consumer"),
        ("toPandas", "goes on for ever"),
        ("writeStream", r"\.to\(hf\.parquet"),
        ("cache", "a stream with a name is kept"),
        ("distinct", "F.first"),
        ("explain", "pipeline.explain"),
    ],
)
def test_what_a_dataframe_does_at_once_is_answered_with_what_to_do_instead(
    spark: SparkSession, tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(AttributeError, match=f"has no '{name}': .*{told}"):
        getattr(World(tmp_path, spark).rows, name)


def test_a_step_of_another_version_says_so(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, spark)
    for call in (world.rows.join, world.rows.dropDuplicatesWithinWatermark):
        with pytest.raises(UnsupportedQuery, match=r"later version; .*\(at .*test_careless_user\.py:\d+\)"):
            call()


def test_a_source_whose_folder_is_not_there_does_not_start(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p", store=str(tmp_path / "store"))
    pipeline.source("rows", hf.files(str(tmp_path / "nowhere"), schema="a int"))
    with pytest.raises(HoldfastError, match=r"nowhere': no such file or folder.*test_careless_user\.py"):
        pipeline.start()
    assert not (tmp_path / "store").exists()


def test_a_sink_whose_folder_is_a_file_does_not_start(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    pipeline = hf.Pipeline("p", store=str(tmp_path / "store"))
    pipeline.source("rows", "a int").select("a").named("same").to(hf.parquet(str(tmp_path / "out")))
    with pytest.raises(HoldfastError, match="expected a folder, found a file"):
        pipeline.start()


def test_a_schema_is_inferred_by_spark_and_an_empty_file_among_others_does_no_harm(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.parquet").write_bytes(b"")
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "in/b.parquet")
    pipeline = hf.Pipeline("p", store=str(tmp_path / "store"))
    found = pipeline.source("rows", hf.files(str(tmp_path / "in")))
    assert found.schema.simpleString() == "struct<a:bigint,b:string>"
