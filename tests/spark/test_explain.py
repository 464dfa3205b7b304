"""`holdfast explain` draws real programs: as text and as a picture, without a store and without a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast as hf
from holdfast.cli.explain import explained
from holdfast.cli.main import main
from holdfast.explain.svg import svg_of
from holdfast.explain.text import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.golden.golden import Golden

PROGRAMS = sorted((Path(__file__).parents[1] / "golden" / "explain").glob("*.py"))


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is run as `__main__`: what it changes for itself is put back."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_is_drawn_as_it_was(spark: SparkSession, program: Path, golden: Golden) -> None:
    (facts,) = explained(str(program))
    golden(f"explain/{program.stem}.txt", text_of(facts, 80))
    golden(f"explain/{program.stem}.svg", svg_of(facts))
    assert not Path("/data/store").exists()


def test_the_golden_pipelines_are_of_all_sizes() -> None:
    drawn = [program.with_suffix(".txt").read_text(encoding="utf-8") for program in PROGRAMS]
    assert len(drawn) >= 5 and {1, 2, 6, 15} <= {text.count("  stage in ") for text in drawn}
    assert all(len(line) <= 80 for text in drawn for line in text.splitlines())


def test_json_holds_every_part(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    shop = next(str(program) for program in PROGRAMS if program.stem == "shop")
    assert main(["explain", shop, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert [source["name"] for source in found["sources"]] == ["orders", "returns", "clicks"]
    board = next(stage for stage in found["stages"] if stage["name"] == "board")
    assert [edge["kind"] for edge in board["inputs"]] == ["one-to-one", "one-to-one"]
    assert board["state_record_bytes"] > 0 and board["promises"]["delivery"].startswith("exactly once")
    assert {sink["guarantee"] for sink in found["sinks"]} == {"exactly once", "at least once"}


def test_a_pipeline_explains_itself(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    pipeline = hf.Pipeline("p", store=str(tmp_path / "store"), shards=3)
    pipeline.source("rows", "a int").select("a").named("same")
    pipeline.explain()
    shown = capsys.readouterr().out
    assert "p: 3 shards" in shown and "same  stage in 3 shards" in shown and "rows.select" not in shown
    assert not (tmp_path / "store").exists()


def test_shards_are_those_of_the_store_once_there_is_one(spark: SparkSession, tmp_path: Path) -> None:
    made = hf.Pipeline("p", store=str(tmp_path / "store"), shards=7)
    made.source("rows", "a int")
    made.create()
    again = hf.Pipeline("p", store=str(tmp_path / "store"))
    again.source("rows", "a int")
    assert again.facts().shards == 7


def test_a_stream_of_another_pipeline_is_drawn_as_such(spark: SparkSession, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = hf.Pipeline("first", store=store, shards=1)
    first.source("rows", "a int").filter("a > 1").named("more")
    first.create()
    second = hf.Pipeline("second", store=store, shards=2)
    second.source("more", hf.stream(store, "first/more")).groupBy("a").count().named("counts")
    shown = text_of(second.facts(), 120)
    assert "more  source: the stream more of another pipeline," in shown
    assert "as the other pipeline has split it" in shown and "what the other pipeline has committed" in shown
    assert "re-keyed    rows of more may be in any shard, so they are picked by the hash of a" in shown


PROGRAM = """
import sys
import holdfast as hf
print("what the program prints")
for name in sys.argv[1:]:
    pipeline = hf.Pipeline(name, store="store", shards=1)
    pipeline.source("rows", "a int").filter("a > 1").named("größer").to(hf.console())
"""


def test_the_command_is_a_process_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("größer", "more"))

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli.main", "explain", str(program), *arguments]
        where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        return subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, check=False)

    done = run("one", LC_ALL="C")
    assert done.returncode == 0 and done.stderr == "what the program prints\n", done.stderr
    assert done.stdout.isascii() and "`->" in done.stdout and "rows.filter(a > 1)" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = run("one", "two", "--svg", "picture.svg")
    assert done.returncode == 1 and "pipelines 'one', 'two', and a picture shows one" in done.stderr
    done = run("one", "two", "--svg", "picture.svg", "--pipeline", "two", LC_ALL="C.UTF-8")
    assert done.returncode == 0 and (tmp_path / "picture.svg").read_text().startswith("<svg ")
    done = run()
    assert done.returncode == 1 and "made no pipeline" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["picture.svg", "program.py"]
