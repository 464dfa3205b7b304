"""Files come in whole, once, with the types of the source; a bad row is named."""

from __future__ import annotations

import datetime
import gzip
import itertools
import os
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connect import chunk as chunk_module
from holdfast.connect.files import FileChunk, FileFinder, check_path, read_chunk
from holdfast.errors import BadRow, FileChanged, Misconfigured, SchemaMismatch
from holdfast.model import FileLogged
from holdfast.plan import FilesSource, Source

SCHEMA = pa.schema([("item", pa.string()), ("price", pa.float64()), ("count", pa.int32())])


def source(path: Path, file_format: Any, schema: pa.Schema = SCHEMA, on_error: Any = "stop", **options: str) -> Source:
    origin = FilesSource(str(path), file_format, options)
    return Source("sales", schema.serialize().to_pybytes(), origin, on_error=on_error, rejects_max=3)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return age(path)


def age(path: Path, seconds: float = 60) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def read_all(of: Source, time_zone: str = "UTC") -> list[dict[str, Any]]:
    assert isinstance(of.origin, FilesSource)
    rows = []
    for chunk in discover(of.origin, {}):
        for batch in read_chunk(chunk, of, time_zone).batches:
            assert batch.schema.equals(pa.ipc.read_schema(pa.py_buffer(of.schema)))
            rows += batch.to_pylist()
    return rows


def discover(origin: Any, already: Mapping[str, FileLogged]) -> list[FileChunk]:
    return FileFinder(origin).look(already).chunks


def done(chunk: Any) -> FileLogged:
    return FileLogged("sales", chunk.path, chunk.size_bytes, chunk.modified_ns, chunk.start, chunk.end, chunk.last)


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table(
        {"item": [f"i{n}" for n in numbers], "price": [n / 2 for n in numbers], "count": pa.array(numbers, pa.int32())}
    )


def test_a_parquet_file_is_cut_at_row_groups_and_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_module, "SPLIT_ROWS", 250)
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=100)
    age(tmp_path / "a.parquet")
    of = source(tmp_path, "parquet")
    chunks = discover(of.origin, {})
    assert [(chunk.start, chunk.end, chunk.last) for chunk in chunks] == [
        (0, 300, False),
        (300, 600, False),
        (600, 900, False),
        (900, 1000, True),
    ]
    assert read_all(of) == table(1000).to_pylist()
    rest = discover(of.origin, {chunks[1].path: done(chunks[1])})
    assert [chunk.start for chunk in rest] == [600, 900]


def test_an_empty_parquet_file_is_one_chunk_that_ends_it(tmp_path: Path) -> None:
    pq.write_table(table(0), tmp_path / "a.parquet")
    age(tmp_path / "a.parquet")
    of = source(tmp_path, "parquet")
    (chunk,) = discover(of.origin, {})
    assert chunk.last
    assert read_chunk(chunk, of).rows == 0


def test_files_come_in_order_of_time_and_name_and_temporary_names_never(tmp_path: Path) -> None:
    for name, seconds in (("z.json", 90), ("b.json", 60), ("a.json", 60), ("_SUCCESS", 60), (".x.json", 60)):
        age(write(tmp_path / name, "{}\n"), seconds)
    os.utime(tmp_path / "a.json", ns=(os.stat(tmp_path / "b.json").st_mtime_ns,) * 2)
    for name in ("c.json.tmp", "d._COPYING_", "e.json.inprogress", "f.crc"):
        write(tmp_path / name, "{}\n")
    found = discover(FilesSource(str(tmp_path), "json"), {})
    assert [os.path.basename(chunk.path) for chunk in found] == ["z.json", "a.json", "b.json"]
    assert [os.path.basename(chunk.path) for chunk in discover(FilesSource(str(tmp_path / "z*"), "json"), {})] == [
        "z.json"
    ]


def test_a_file_that_is_being_written_waits(tmp_path: Path) -> None:
    write(tmp_path / "new.json", '{"item": "a"}\n')
    os.utime(tmp_path / "new.json")
    finder = FileFinder(FilesSource(str(tmp_path), "json", settle_us=3_600_000_000))
    look = finder.look({})
    assert look.chunks == [] and not look.settled
    age(tmp_path / "new.json", 7200)
    assert finder.look({}).settled and len(finder.look({}).chunks) == 1


def test_a_time_in_the_future_is_counted_from_when_it_was_seen(tmp_path: Path) -> None:
    age(write(tmp_path / "a.json", "{}\n"), -3600)
    assert not FileFinder(FilesSource(str(tmp_path), "json", settle_us=3_600_000_000)).look({}).settled
    assert FileFinder(FilesSource(str(tmp_path), "json", settle_us=0)).look({}).settled


@pytest.mark.parametrize("cut", [0, 3, 100, -6])
def test_a_parquet_file_that_is_not_whole_is_named_once_and_taken_when_it_is(tmp_path: Path, cut: int) -> None:
    pq.write_table(table(10), tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    age(tmp_path / "whole.parquet")
    half = tmp_path / "half.parquet"
    finder = FileFinder(FilesSource(str(tmp_path), "parquet"))
    half.write_bytes(whole[:cut])
    assert [os.path.basename(path) for path in finder.look({}).waiting] == ["half.parquet"]
    age(half)
    look = finder.look({})
    assert look.settled and len(look.chunks) == 1
    (warning,) = look.warnings
    assert "half.parquet is no whole parquet file" in warning and "rename" in warning
    assert finder.look({}).warnings == []
    write(half, whole)
    assert len(finder.look({}).chunks) == 2


def test_a_file_or_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    pq.write_table(table(10), tmp_path / "a.parquet")
    age(tmp_path / "a.parquet")
    finder = FileFinder(FilesSource(str(tmp_path), "parquet"))
    with monkeypatch.context() as patched:
        # The tests may run as a user who may read everything.
        patched.setattr(pq, "read_metadata", refuse)
        assert "a.parquet cannot be read ([Errno 13] Permission denied" in finder.look({}).warnings[0]
        patched.setattr(os, "scandir", refuse)
        with pytest.raises(Misconfigured, match=r"cannot be listed: .*Permission denied"):
            finder.look({})
    assert len(finder.look({}).chunks) == 1


def test_a_file_that_was_taken_and_changed_is_reported_once_and_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"item": "a"}\n')
    finder = FileFinder(FilesSource(str(tmp_path), "json"))
    (chunk,) = finder.look({}).chunks
    already = {chunk.path: done(chunk)}
    assert finder.look(already).chunks == []
    write(path, '{"item": "a"}\n{"item": "b"}\n')
    look = finder.look(already)
    assert look.chunks == []
    assert len(look.warnings) == 1 and str(path) in look.warnings[0]
    assert finder.look(already).warnings == []


def test_a_file_that_changed_since_it_was_cut_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", '{"item": "a"}\n')
    of = source(tmp_path, "json")
    (chunk,) = discover(of.origin, {})
    write(path, '{"item": "b", "count": 7}\n')
    with pytest.raises(FileChanged, match=r"a\.json changed"):
        read_chunk(chunk, of)
    path.unlink()
    with pytest.raises(FileChanged, match="gone"):
        read_chunk(chunk, of)


def test_a_csv_file_is_cut_at_lines_and_every_line_comes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_module, "SPLIT_BYTES", 100)
    lines = "".join(f"i{n},{n / 2},{n}\n" for n in range(200))
    write(tmp_path / "a.csv", "item,price,count\n" + lines)
    of = source(tmp_path, "csv", header="true")
    chunks = discover(of.origin, {})
    assert len(chunks) > 5 and [chunk.last for chunk in chunks][-2:] == [False, True]
    assert all(left.end == right.start for left, right in itertools.pairwise(chunks))
    assert read_all(of) == table(200).to_pylist()


def test_csv_values_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("at", pa.timestamp("us", tz="UTC")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("amount", pa.decimal128(10, 2)),
            ("fine", pa.bool_()),
            ("text", pa.string()),
        ]
    )
    write(
        tmp_path / "a.csv",
        "2024-07-01 12:00:00,2024-07-01T12:00:00.123456789,2024-07-01,1.50,TRUE,\n"
        '2024-07-01T12:00:00+05:00,2024-07-01 12:00:00,,NA,false,""\n'
        '2024-07-01T12:00:00Z,,2024-07-02,-3,true,"a, ""b"""\n',
    )
    rows = read_all(source(tmp_path, "csv", schema, nullValue="NA"), "Europe/Berlin")
    utc = datetime.UTC
    assert [row["at"] for row in rows] == [
        datetime.datetime(2024, 7, 1, 10, tzinfo=utc),
        datetime.datetime(2024, 7, 1, 7, tzinfo=utc),
        datetime.datetime(2024, 7, 1, 12, tzinfo=utc),
    ]
    assert rows[0]["local"] == datetime.datetime(2024, 7, 1, 12, 0, 0, 123456)
    assert [row["amount"] for row in rows] == [Decimal("1.50"), None, Decimal("-3.00")]
    assert [row["text"] for row in rows] == [None, "", 'a, "b"']
    assert [row["day"] for row in rows] == [datetime.date(2024, 7, 1), None, datetime.date(2024, 7, 2)]
    assert [row["fine"] for row in rows] == [True, False, True]


def test_a_pattern_for_dates_and_timestamps(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])
    write(tmp_path / "a.csv", "01.07.2024 12:00,01/07/2024\n")
    options = {"timestampFormat": "dd.MM.yyyy HH:mm", "dateFormat": "dd/MM/yyyy"}
    (row,) = read_all(source(tmp_path, "csv", schema, **options), "Europe/Berlin")
    assert row["at"] == datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)
    assert row["day"] == datetime.date(2024, 7, 1)
    with pytest.raises(Misconfigured, match="SSS"):
        read_all(source(tmp_path, "csv", schema, timestampFormat="ss.SSS"))


BAD_CSV = "a,1.5,1\n\nb,cheap,2\n  \nc,2.5\nd,3.5,4\n"
BAD_JSON = '{"item": "a", "price": 1.5, "count": 1}\n\n{"item": "b", "price": "cheap"}\n  \nnonsense\n{"item": "d"}\n'


@pytest.mark.parametrize(("file_format", "text"), [("csv", BAD_CSV), ("json", BAD_JSON)])
def test_the_first_bad_row_stops_and_is_named(tmp_path: Path, file_format: str, text: str) -> None:
    path = write(tmp_path / "a", text)
    with pytest.raises(BadRow, match=rf"{path}:3: .*cheap"):
        read_all(source(tmp_path, file_format))


@pytest.mark.parametrize(("file_format", "text"), [("csv", BAD_CSV), ("json", BAD_JSON)])
def test_rejected_rows_have_reason_origin_and_text(tmp_path: Path, file_format: str, text: str) -> None:
    path = write(tmp_path / "a", text)
    of = source(tmp_path, file_format, on_error="reject")
    (chunk,) = discover(of.origin, {})
    result = read_chunk(chunk, of)
    assert [row["item"] for batch in result.batches for row in batch.to_pylist()] == ["a", "d"]
    assert result.rejects.column("origin").to_pylist() == [f"{path}:3", f"{path}:5"]
    assert result.rejects.column("row").to_pylist() == [text.splitlines()[2], text.splitlines()[4]]
    assert all(result.rejects.column("reason").to_pylist())


def test_a_bad_row_of_a_later_chunk_has_the_line_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_module, "SPLIT_BYTES", 20)
    path = write(tmp_path / "a.csv", "item,price,count\n" + "a,1.0,1\n" * 20 + "b,x,1\n")
    with pytest.raises(BadRow, match=rf"{path}:22: "):
        read_all(source(tmp_path, "csv", header="true"))


def test_more_rejects_than_the_limit_stop(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a,x,1\n" * 100)
    with pytest.raises(BadRow, match="more than 3 rows"):
        read_all(source(tmp_path, "csv", on_error="reject"))


def test_a_quoted_value_over_lines_needs_multi_line(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'a,1.0,1\n"b\nc",2.0,2\n')
    with pytest.raises(BadRow, match="multiLine"):
        read_all(source(tmp_path, "csv"))
    assert [row["item"] for row in read_all(source(tmp_path, "csv", multiLine="true"))] == ["a", "b\nc"]


def test_a_compressed_file_is_read_as_one_chunk(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.gz", gzip.compress(b"item,price,count\na,1.0,1\n"))
    assert read_all(source(tmp_path, "csv", header="true")) == [{"item": "a", "price": 1.0, "count": 1}]


def test_a_csv_file_in_another_encoding(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "gr\u00fcn;1.0;1\n".encode("latin-1"))
    rows = read_all(source(tmp_path, "csv", sep=";", encoding="ISO-8859-1"))
    assert rows[0]["item"] == "gr\u00fcn"


def test_columns_of_a_header_go_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", '\ufeffcount,"other, one",item,price\n3,x,a,1.0\n')
    assert read_all(source(tmp_path, "csv", header="true")) == [{"item": "a", "price": 1.0, "count": 3}]
    write(tmp_path / "a.csv", "count,item\n3,a\n")
    with pytest.raises(SchemaMismatch, match="'price' is missing"):
        read_all(source(tmp_path, "csv", header="true"))


def test_a_parquet_file_of_other_types_is_refused_by_file_and_column(tmp_path: Path) -> None:
    wrong = pa.table({"item": ["a"], "price": ["1.0"], "count": [1]})
    pq.write_table(wrong, tmp_path / "a.parquet")
    age(tmp_path / "a.parquet")
    with pytest.raises(SchemaMismatch, match=r"a\.parquet: column 'price': expected double, found string"):
        read_all(source(tmp_path, "parquet"))


def test_nested_json(tmp_path: Path) -> None:
    schema = pa.schema([("who", pa.struct([("name", pa.string())])), ("tags", pa.list_(pa.int64()))])
    write(tmp_path / "a.json", '{"who": {"name": "x", "more": 1}, "tags": [1, 2], "extra": 0}\n{"tags": null}\n')
    assert read_all(source(tmp_path, "json", schema)) == [
        {"who": {"name": "x"}, "tags": [1, 2]},
        {"who": None, "tags": None},
    ]


def test_wrong_options_and_paths_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "a,1.0,1\n")
    with pytest.raises(Misconfigured, match="separator"):
        read_all(source(tmp_path, "csv", separator=";"))
    with pytest.raises(Misconfigured, match="no such file or folder"):
        check_path(str(tmp_path / "nowhere"))
    with pytest.raises(Misconfigured, match="s3"):
        check_path("s3://bucket/folder")
