"""What the likeliest mistakes print, each made for real; `docs/mistakes.md` shows the very same texts."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from docs.mistakes import MISTAKES, PAGE, Mistake, page, read

from holdfast.cli import script
from holdfast.cli.main import main
from holdfast.pipeline.program import PROGRAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.golden.golden import Golden

OWN_PROCESS: Final = {
    "10-own-session": {},
    "11-no-java": {"PATH": "", "JAVA_HOME": ""},
    "23-spark-connect": {"SPARK_REMOTE": "sc://cluster"},
}
"""Mistakes that cannot be made in a process that has a session; with the environment of each."""
PLAIN: Final = (
    (r"\b\d+ on [\w.-]+", "4711 on your-host"),
    (r"(node|query)-[\w.-]+-\d+-[0-9a-f]+", r"\1-your-host-4711-18a"),
    (r"#\d+L?", "#0"),
    (r"\d\d\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d+Z", "2026-01-01 12:00:00.000Z"),
    (r"[\d.,]+ (B|KB|MB|GB|TB)\b", r"1 \1"),
    (r"  [\d.]+ s  ", "  1.0 s  "),
    (r"(?<=\S) {3,}", "  "),
    (r"bucket \d{9,}", "bucket 8975667782"),
)
"""What differs from run to run, and what stands for it."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, and a process whose `argv` and `path` are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def plain(text: str, folder: Path) -> str:
    """Return what was printed, without what differs from run to run and from machine to machine."""
    text = text.replace(str(folder), "/home/you").replace(socket.gethostname(), "your-host")
    for pattern, instead in PLAIN:
        text = re.sub(pattern, instead, text)
    return "".join(f"{line.rstrip()}\n" for line in text.strip().splitlines())


def printed(mistake: Mistake, capsys: pytest.CaptureFixture[str]) -> str:
    """Make a mistake in this process and return what its command prints."""
    if mistake.command.startswith("holdfast run"):
        assert script.main(["--quiet", "program.py"]) not in (0, 2), "it is a mistake"
        return capsys.readouterr().err
    try:
        script.run_program("program.py", [])
    except Exception as error:
        return "".join(traceback.format_exception_only(error))
    capsys.readouterr()
    _, *arguments = mistake.command.split()
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in MISTAKES if name not in OWN_PROCESS])
def test_a_mistake_prints_what_it_printed(
    spark: SparkSession, place: Path, name: str, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    mistake = read(name)
    (place / "program.py").write_text(mistake.program)
    try:
        found = printed(mistake, capsys)
    finally:
        for handle in PROGRAM.handles:
            handle.stop()
    golden(f"mistakes/{name}.txt", plain(found, place))


@pytest.mark.parametrize("name", OWN_PROCESS)
def test_a_mistake_of_a_process_of_its_own_prints_what_it_printed(place: Path, name: str, golden: Golden) -> None:
    (place / "program.py").write_text(read(name).program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **OWN_PROCESS[name]}
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "program.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    # What Spark says of itself while it starts is not ours.
    ours = "\n".join(line for line in done.stderr.splitlines() if line.startswith("holdfast: "))
    golden(f"mistakes/{name}.txt", plain(ours, place))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_message_is_whole(name: str) -> None:
    """It is short, shows no inside of ours, and where there is a line of the user's, names it."""
    text = read(name).printed
    assert "Traceback" not in text and "holdfast/src" not in text and "unexpected" not in text
    assert len(text) < 900 or name == "19-late-rows"


def test_the_page_shows_what_is_printed() -> None:
    assert len(MISTAKES) >= 20
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs`"
