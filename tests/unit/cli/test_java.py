"""Where Java is missing or too old, one sentence says what to install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "import holdfast as hf\nhf.session('x')\n"
FAKE = "#!/bin/sh\necho 'openjdk version \"{version}\" 2019-01-15' >&2\n"


@pytest.fixture(params=["none", "11.0.2", "1.8.0_392", "wrong JAVA_HOME"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """An environment whose Java is missing or too old, and that has what a shell script needs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "sed", "head", "cat", "id"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    if request.param[0] == "1":
        (tools / "java").write_text(FAKE.format(version=request.param))
        (tools / "java").chmod(0o755)
    found = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    home = {"JAVA_HOME": str(tmp_path / "nowhere")} if request.param == "wrong JAVA_HOME" else {}
    return {**found, "PATH": str(tools), "PYTHONPATH": os.pathsep.join(sys.path), **home}


def said(command: list[str], environment: dict[str, str]) -> str:
    """Run a command that has to fail with one line on standard error; return the line."""
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize("command", ["run", "demo", "setup"])
def test_java_is_missing_or_too_old(command: str, environment: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    holdfast = [sys.executable, "-m", "holdfast.cli.main"]
    line = said(
        {
            "run": [*holdfast, "run", str(script)],
            "demo": [*holdfast, "demo"],
            "setup": [str(ROOT / ".ci" / "setup"), sys.executable, str(tmp_path / "venv")],
        }[command],
        environment,
    )
    assert "Spark needs Java 17 or newer" in line and "openjdk-17-jre-headless" in line
    expected = "JAVA_HOME" if "JAVA_HOME" in environment else "java" if (tmp_path / "tools" / "java").exists() else "no"
    assert expected in line
    assert not (tmp_path / "venv").exists()
