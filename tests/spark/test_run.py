"""`holdfast run`: how a program that runs a pipeline is run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.cli import script
from holdfast.pipeline.program import PROGRAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM_TEXT = """
import holdfast as hf

pipeline = hf.Pipeline("p", store="store", shards=1)
pipeline.source("rows", "a int").filter("a > 1").named("more")
pipeline.create()
with hf.Producer("store", "rows") as producer:
    producer.send([{"a": 1}, {"a": 2}])
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_available_now_takes_what_is_there_and_ends(spark: SparkSession, place: Path) -> None:
    (place / "program.py").write_text(PROGRAM_TEXT + "pipeline.run()\n")
    assert script.main(["--available-now", "--quiet", "program.py"]) == 0
    with hf.Consumer("store", "more") as more:
        assert [table.to_pylist() for table in more] == [[{"a": 2}]]


def test_a_program_that_ends_while_its_pipeline_runs_is_told_so(
    spark: SparkSession, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "program.py").write_text(PROGRAM_TEXT + "pipeline.start()\n")
    try:
        assert script.main(["--quiet", "program.py"]) == script.EXIT_FUTILE
    finally:
        for handle in PROGRAM.handles:
            handle.stop()
    error = capsys.readouterr().err
    assert "ended while its pipeline 'p' was running" in error and "awaitTermination()" in error
