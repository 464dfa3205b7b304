"""Dials, windows, sources and sinks as values, without Spark."""

from __future__ import annotations

import os

import pytest

import holdfast as hf
from holdfast import plan
from holdfast.errors import Misconfigured, NameInvalid, UnsupportedQuery
from holdfast.pipeline.checkpoints import SNAPSHOT_EVERY_US, checkpoint_every_us


def test_a_count_window_slides_by_its_size_unless_told() -> None:
    assert hf.count_window(10) == plan.CountWindow(10, 10)
    assert hf.count_window(10, slide=2) == plan.CountWindow(10, 2)


@pytest.mark.parametrize(("size", "slide"), [(0, None), (10, 0), (10, 11), ("10", None), (True, None)])
def test_a_count_window_that_cannot_be_is_refused_at_the_users_line(size: int, slide: int | None) -> None:
    with pytest.raises(Misconfigured, match=r"test_dials\.py:\d+"):
        hf.count_window(size, slide)


def test_checkpoint_policies() -> None:
    assert checkpoint_every_us(hf.snapshot(every="3 seconds")) == 3_000_000
    assert checkpoint_every_us("auto") == SNAPSHOT_EVERY_US
    assert checkpoint_every_us(None) is None


def test_continuous_is_a_value_that_is_refused_for_now() -> None:
    policy = hf.continuous(extent="64 MB")
    with pytest.raises(UnsupportedQuery, match="later version"):
        checkpoint_every_us(policy)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(Misconfigured, match="snapshot"):
        checkpoint_every_us("hourly")  # type: ignore[arg-type]


def test_files_keep_an_absolute_path_and_options_as_text() -> None:
    found = hf.files("in/south", format="csv", schema="a int", header=True, sep=";")
    assert found.path == os.path.abspath("in/south")
    assert found.options == {"header": "true", "sep": ";"}
    assert found.source().format == "csv"
    assert hf.files("s3://bucket/in").path == "s3://bucket/in"


def test_files_of_an_unknown_format_are_refused() -> None:
    with pytest.raises(Misconfigured, match="parquet, csv, json"):
        hf.files("in", format="avro")


def test_sinks() -> None:
    assert hf.parquet("out", every="2 seconds") == plan.ParquetSink(os.path.abspath("out"), 2_000_000)
    assert hf.console(rows=5) == plan.ConsoleSink(5)
    with pytest.raises(Misconfigured):
        hf.console(rows=0)
    with pytest.raises(Misconfigured):
        hf.parquet("")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "a/b"}, NameInvalid),
        ({"bucket": "10 microseconds"}, Misconfigured),
        ({"bucket": "soon"}, Misconfigured),
        ({"shards": 0}, Misconfigured),
        ({"protect": {"available": "3 seconds"}}, UnsupportedQuery),
        ({"protect": {"speed": 3}}, Misconfigured),
    ],
)
def test_a_pipeline_is_checked_before_anything_is_touched(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"test_dials\.py"):
        hf.Pipeline(**{"name": "retail", "store": "store", **options})  # type: ignore[arg-type]
