"""What `holdfast run` says of a pipeline while it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.unit.node.node_statistics import NOW_US, statistics

from holdfast.cli import progress
from holdfast.errors import BadRow
from holdfast.node.handle import PipelineHandle
from holdfast.node.statistics import NodeStatistics, Trouble


def earlier() -> NodeStatistics:
    now = statistics()
    stages = [msgspec.structs.replace(stage, rows_in=0, rows_out=0) for stage in now.stages]
    return statistics(at_us=NOW_US - 2_000_000, stages=stages)


def test_a_line_has_rates_lag_watermark_and_waves() -> None:
    assert progress.line_of(earlier(), statistics()) == (
        "retail: 500 rows/s in, 25 out, lag 0.8 s, watermark 2025-11-19T20:39:59.352Z, 100 waves, 3 rows late"
    )


def test_a_line_says_what_fails() -> None:
    trouble = Trouble("sink top-parquet", "no room on the device", 12, NOW_US)
    line = progress.line_of(earlier(), statistics(trouble=trouble))
    assert line.endswith("FAILING: sink top-parquet, 12 times in a row: no room on the device")


@pytest.mark.parametrize("as_json", [False, True])
def test_elsewhere_than_on_a_terminal_there_are_lines_until_the_pipeline_ends(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    handle = PipelineHandle(earlier(), lambda: None)
    write = progress._write_json if as_json else progress._write_line
    times = iter(range(3))

    def write_and_end(before: NodeStatistics, now: NodeStatistics) -> None:
        write(before, now)
        if next(times) == 2:
            handle.ended(BadRow("row 3 cannot be read"))

    handle.progressed(statistics())
    progress._follow_plainly(handle, write_and_end)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 3
    if as_json:
        assert [json.loads(line)["event"] for line in lines] == ["progress"] * 3
        assert json.loads(lines[0])["stages"][0]["rows_in"] == 1000
    else:
        assert all(line.startswith("retail: ") for line in lines)


@pytest.mark.parametrize(("options", "followers"), [([], 1), (["--json", "--quiet"], 0)])
def test_a_script_is_followed_unless_it_is_to_be_quiet(tmp_path: Path, options: list[str], followers: int) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nfrom holdfast.node import handle\nprint(len(handle._on_start), *sys.argv[1:])")
    command = [sys.executable, "-m", "holdfast.cli.script", *options, str(script), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{followers} --quiet\n", "what follows the file is the script's own"
