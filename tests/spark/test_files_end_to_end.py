"""Files of a folder through a running pipeline: whole, once, checked, and with the bad line named."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.spark.flow import Flow, same_rows, write_atomically

import holdfast as hf
from holdfast.errors import BadRow, HoldfastError, SchemaMismatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id bigint, text string, at timestamp"
PATIENCE_S = 60.0


def table(first: int, rows: int = 10) -> pa.Table:
    numbers = range(first, first + rows)
    times = pa.array([1_760_000_000_000_000 + n * 1_000_000 for n in numbers], pa.timestamp("us", tz="UTC"))
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers], "at": times})


def parquet(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(data, sink, row_group_size=4)
    return sink.getvalue()


def csv(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    text = data.set_column(2, "at", data["at"].cast(pa.timestamp("us")).cast(pa.string()))
    pyarrow.csv.write_csv(text, sink)
    return sink.getvalue()


def json_lines(data: pa.Table) -> bytes:
    frame = data.set_column(2, "at", data["at"].cast(pa.timestamp("us")).cast(pa.string())).to_pandas()
    return bytes(frame.to_json(orient="records", lines=True), "utf8")


FORMATS: dict[str, tuple[Callable[[pa.Table], bytes], dict[str, Any]]] = {
    "parquet": (parquet, {}),
    "csv": (csv, {"header": True}),
    "json": (json_lines, {}),
}


class FilesFlow(Flow):
    """A pipeline that passes on what is in a folder."""

    def __init__(self, folder: Path, kind: str = "parquet", schema: str | None = SCHEMA, **options: Any) -> None:
        super().__init__(folder)
        self.inbox = folder / "in"
        self.inbox.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.schema = schema
        self.options = options

    def passed_on(self, **how: Any) -> hf.Stream:
        options = {**FORMATS[self.kind][1], **self.options}
        data = hf.files(str(self.inbox), format=self.kind, schema=self.schema, settle="20 milliseconds", **options)
        return self.pipeline.source("rows", data, **how).select("*").named("result")

    def put(self, name: str, data: pa.Table) -> None:
        write_atomically(self.inbox / name, FORMATS[self.kind][0](data))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@pytest.mark.parametrize("kind", FORMATS)
def test_files_old_and_new_are_read_once_by_running_pipeline(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    flow = FilesFlow(tmp_path, kind)
    result = flow.passed_on()
    flow.put(f"a.{kind}", table(0))
    handle = flow.pipeline.start()
    with hf.Consumer(flow.store, "result") as consumer:
        found = consumer.poll(PATIENCE_S)
        assert found is not None
        flow.put(f"b.{kind}", table(10))
        while found.num_rows < 20:
            more = consumer.poll(PATIENCE_S)
            assert more is not None, "the new file was not picked up"
            found = pa.concat_tables([found, more])
    handle.stop()
    same_rows(found, table(0, 20))
    # Once more with what is there: nothing comes twice.
    flow.put(f"c.{kind}", table(20))
    flow.run()
    same_rows(flow.rows("result"), table(0, 30))
    same_rows(flow.rows("result"), result.toSpark().toArrow())


@pytest.mark.parametrize("kind", FORMATS)
def test_a_schema_that_is_inferred_is_spark_s(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    options = {"inferSchema": True} if kind == "csv" else {}
    flow = FilesFlow(tmp_path, kind, None, **options)
    flow.put(f"a.{kind}", table(0))
    result = flow.passed_on()
    reader = spark.read.options(**FORMATS[kind][1], **options)
    expected = reader.format(kind).load(str(flow.inbox))
    assert result.schema == expected.schema
    flow.run()
    same_rows(flow.rows("result"), expected.toArrow())


def test_a_file_that_grows_is_not_read_half(spark: SparkSession, tmp_path: Path) -> None:
    flow = FilesFlow(tmp_path)
    flow.passed_on()
    whole = parquet(table(0, 1000))
    growing = flow.inbox / "growing.parquet"
    growing.write_bytes(whole[: len(whole) // 2])
    handle = flow.pipeline.start()
    with hf.Consumer(flow.store, "result") as consumer:
        flow.put("other.parquet", table(5000, 1))
        first = consumer.poll(PATIENCE_S)
        assert first is not None and first["id"].to_pylist() == [5000]
        with open(growing, "ab") as file:
            file.write(whole[len(whole) // 2 :])
        second = consumer.poll(PATIENCE_S)
        assert second is not None
        same_rows(second, table(0, 1000))
    handle.stop()


def test_temporary_names_and_folders_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    flow = FilesFlow(tmp_path)
    flow.passed_on()
    flow.put("a.parquet", table(0))
    for name in ("_part.parquet", ".part.parquet", "part.parquet.tmp", "part._COPYING_"):
        (flow.inbox / name).write_bytes(parquet(table(100)))
    (flow.inbox / "folder.parquet").mkdir()
    (flow.inbox / "folder.parquet/b.parquet").write_bytes(parquet(table(200)))
    flow.run()
    same_rows(flow.rows("result"), table(0))


def test_a_file_that_is_replaced_after_it_was_read_is_reported_and_not_read_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = FilesFlow(tmp_path)
    flow.passed_on()
    flow.put("a.parquet", table(0))
    flow.run()
    flow.put("a.parquet", table(100, 20))
    flow.run()
    same_rows(flow.rows("result"), table(0))
    assert re.search(r"a\.parquet was taken .* has changed since .*put new rows into a new file", caplog.text)


def test_a_parquet_file_that_stays_cut_off_is_named_and_holds_up_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = FilesFlow(tmp_path)
    flow.passed_on()
    flow.put("a.parquet", table(0))
    (flow.inbox / "cut.parquet").write_bytes(parquet(table(100))[:-5])
    (flow.inbox / "empty.parquet").write_bytes(b"")
    flow.run()
    same_rows(flow.rows("result"), table(0))
    for name in ("cut", "empty"):
        assert len(re.findall(rf"{name}\.parquet is no whole parquet file", caplog.text)) == 1


@pytest.mark.parametrize(
    ("kind", "line"),
    [("csv", b"2,two\n"), ("csv", b"two,x,2025-01-01\n"), ("json", b'{"id": "two"}\n'), ("json", b"{\n")],
)
def test_a_bad_line_is_named_by_file_and_line_or_put_aside(
    spark: SparkSession, tmp_path: Path, kind: str, line: bytes
) -> None:
    lines = FORMATS[kind][0](table(0)).splitlines(keepends=True)
    data = b"".join([*lines[:4], line, *lines[4:]])
    stopped, rejecting = FilesFlow(tmp_path / "stop", kind), FilesFlow(tmp_path / "reject", kind)
    for flow in (stopped, rejecting):
        write_atomically(flow.inbox / f"a.{kind}", data)
    stopped.passed_on()
    with pytest.raises(BadRow, match=rf"a\.{kind}:5: a row cannot be read.*on_error='reject'"):
        stopped.run()
    rejecting.passed_on(on_error="reject")
    rejecting.run()
    same_rows(rejecting.rows("result"), table(0))
    (reject,) = rejecting.rows("rows.rejects").to_pylist()
    assert reject["origin"].endswith(f"a.{kind}:5") and reject["row"].encode() == line.rstrip()


def test_a_file_of_another_schema_is_refused_by_file_and_column(spark: SparkSession, tmp_path: Path) -> None:
    wrong = {
        "'text' is missing": table(0).drop_columns(["text"]),
        "'id': expected int64, found string": table(0).set_column(0, "id", table(0)["text"]),
    }
    for number, (told, data) in enumerate(wrong.items()):
        flow = FilesFlow(tmp_path / str(number))
        flow.passed_on()
        flow.put("a.parquet", data)
        with pytest.raises(SchemaMismatch, match=rf"a\.parquet.*column {told}"):
            flow.run()


def test_a_folder_that_may_not_be_read_is_said(spark: SparkSession, tmp_path: Path) -> None:
    flow = FilesFlow(tmp_path)
    flow.passed_on()
    os.rmdir(flow.inbox)
    with pytest.raises(HoldfastError, match=r"no such file or folder\. Create it"):
        flow.run()
