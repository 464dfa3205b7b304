"""The Parquet sink: all of a range or nothing, once."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.connect import parquet
from holdfast.connect.parquet import prepare_folder, range_name, write_range
from holdfast.errors import Misconfigured, StoreUnavailable

SCHEMA = pa.schema([("n", pa.int64())], metadata={"from": "a test"})


def batches(*sizes: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(range(size), pa.int64())], schema=SCHEMA) for size in sizes]


def test_a_range_is_one_file_with_all_rows(tmp_path: Path) -> None:
    name = range_name(5, 10)
    assert write_range(str(tmp_path), name, SCHEMA, batches(3, 0, 2)) == 5
    assert pq.read_table(tmp_path / name).column("n").to_pylist() == [0, 1, 2, 0, 1]
    assert os.listdir(tmp_path) == [name]


def test_doing_it_again_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    name = range_name(5, 10)
    write_range(str(tmp_path), name, SCHEMA, batches(3))
    before = os.stat(tmp_path / name)
    assert write_range(str(tmp_path), name, SCHEMA, batches(3)) == 3
    assert os.stat(tmp_path / name).st_ino == before.st_ino


def test_half_a_file_of_that_name_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / range_name(5, 10)).write_bytes(b"PAR1half")
    assert write_range(str(tmp_path), range_name(5, 10), SCHEMA, batches(3)) == 3
    assert pq.read_table(tmp_path / range_name(5, 10)).num_rows == 3


def test_a_range_without_rows_has_no_file(tmp_path: Path) -> None:
    assert write_range(str(tmp_path), range_name(5, 10), SCHEMA, []) == 0
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_nothing_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "_sync", fail)
    with pytest.raises(StoreUnavailable, match="No space left"):
        write_range(str(tmp_path), range_name(5, 10), SCHEMA, batches(3))
    assert os.listdir(tmp_path) == []


def test_what_a_dead_writer_left_is_removed_at_start(tmp_path: Path) -> None:
    write_range(str(tmp_path), range_name(0, 5), SCHEMA, batches(1))
    (tmp_path / f".{range_name(5, 10)}.tmp-0123").write_bytes(b"PAR1")
    prepare_folder(str(tmp_path))
    assert os.listdir(tmp_path) == [range_name(0, 5)]


def test_a_target_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Misconfigured, match="found a file"):
        prepare_folder(str(tmp_path / "file"))
    with pytest.raises(Misconfigured, match="s3"):
        prepare_folder("s3://bucket/out")


def test_names_sort_as_ranges_do() -> None:
    assert range_name(9, 10) < range_name(10, 11)
