"""`transform`: any row-wise function from DataFrame to DataFrame, as a stage, against the same as one Spark batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from tests.spark.flow import START_US, Flow, same_rows, texts, threads_of_ours

import holdfast as hf
from holdfast.log.inspect import read_ledger
from holdfast.log.store import open_store
from holdfast.node.options import NodeOptions
from holdfast.spark import launch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SALES = "item string, price double, n int, notes array<string>, at timestamp"
ITEMS = ["apple", "bread", "cheese", "dates", None]


def sales(first: int, count: int, seed: int) -> pa.Table:
    chooser = random.Random(seed)
    return pa.table(
        {
            "item": pa.array([chooser.choice(ITEMS) for _ in range(count)]),
            "price": pa.array([chooser.choice([1.5, -0.0, float("nan"), None, 7.25]) for _ in range(count)]),
            "n": pa.array(range(first, first + count), pa.int32()),
            "notes": pa.array([[f"{chooser.randrange(5)}" for _ in range(chooser.randrange(4))] for _ in range(count)]),
            "at": pa.array([START_US + (first + row) * 250_000 for row in range(count)], pa.timestamp("us", tz="UTC")),
        }
    )


def batches(seed: int, first: int = 0, count: int = 12) -> list[pa.Table]:
    chooser = random.Random(seed)
    found = []
    for _ in range(count):
        found.append(sales(first, chooser.randrange(1, 40), seed + first))
        first += found[-1].num_rows
    return found


def exploded(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where("n % 7 != 0").select("item", "n", F.posexplode_outer("notes").alias("place", "note"), "at")


def joined(rows: DataFrame, how: str = "left") -> DataFrame:
    # An item has several names, and one name has no item.
    names = [("apple", "Apfel"), ("apple", "pomme"), ("apple", "mela"), ("bread", "Brot"), ("eggs", "Eier")]
    table = rows.sparkSession.createDataFrame(names, "item string, name string")
    return rows.join(table, "item", how)


def upper(text: str | None) -> str | None:
    return None if text is None else text.upper()


def with_udf(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.withColumn("loud", F.udf(upper, "string")("item")).withColumn("hash", F.xxhash64("item", "n"))


def ranked(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Number the rows of a call: what comes out says how many rows the function was shown together."""
    for frame in frames:
        yield pd.DataFrame({"n": frame["n"], "place": range(len(frame)), "of": len(frame)})


def over_batches(rows: DataFrame) -> DataFrame:
    return rows.where("n % 2 = 0").mapInPandas(ranked, "n int, place long, of long").where("place < 9")


def centred(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    @F.pandas_udf("double")  # type: ignore[call-overload]
    def centre(column: pd.Series) -> pd.Series:
        return column - column.mean()

    return rows.select("n", centre("n").alias("centred"))


def united(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select("item", "n", F.lit("all").alias("kind")).union(
        rows.where("n % 3 = 0").select("item", F.col("n") * 2, F.lit("third"))
    )


FUNCTIONS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str] | None]] = {
    "exploded": (exploded, None),
    "joined": (joined, None),
    "semi": (lambda rows: joined(rows, "left_semi"), None),
    "with_udf": (with_udf, None),
    "united": (united, ["kind", "n"]),
    "sorted": (exploded, ["note", "n"]),
    "over_batches": (over_batches, None),
    "centred": (centred, None),
    "empty": (lambda rows: rows.where("false"), None),
}
SEES_BATCHES = ("over_batches", "centred")


def build(flow: Flow) -> dict[str, hf.Stream]:
    source = flow.pipeline.source("sales", SALES)
    return {name: source.transform(f, order_by=by).named(name) for name, (f, by) in FUNCTIONS.items()}


def run(flow: Flow, rows_max: int) -> None:
    """Take what is there in jobs of at most about so many rows."""
    options = NodeOptions(job_rows_min=1, wave_rows_max=rows_max)
    launch.run(launch.start(flow.pipeline, available_now=True, options=options))


def digests(flow: Flow, stream: str) -> dict[tuple[int, int], tuple[int, int]]:
    return read_ledger(open_store(f"{flow.store}/flow"), stream).digests(stream)


def test_every_function_gives_sparks_rows_and_the_same_digests_in_any_grouping(
    spark: SparkSession, tmp_path: Path
) -> None:
    one, many = Flow(tmp_path / "one", shards=3), Flow(tmp_path / "many", shards=3)
    streams = build(one)
    build(many)
    sent = batches(1)
    one.send("sales", sent)
    run(one, 1_000_000)
    for part, bucket in ((sent[:5], 0), (sent[5:6], 5), (sent[6:], 6)):
        many.send("sales", part, bucket)
        run(many, 50)
    for name, stream in streams.items():
        found = one.rows(name)
        assert texts(found) == texts(many.rows(name)), f"{name}: the order is that of the log"
        assert digests(one, name) == digests(many, name), name
        if name not in SEES_BATCHES:
            same_rows(found, stream.toSpark().toArrow())
        assert (found.num_rows == 0) == (name == "empty"), name
    # What a function over batches is shown are the rows of one bucket and shard.
    most = max(row["of"] for row in one.rows("over_batches").to_pylist())
    assert 1 < most < 40
    assert not threads_of_ours()
