"""What executors get that do not have this package."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from holdfast.spark import shipping


def test_the_archive_is_the_package_and_its_name_is_its_content(tmp_path: Path) -> None:
    archive, name = shipping.pack(tmp_path)
    files = set(zipfile.ZipFile(archive).namelist())
    assert {"holdfast/__init__.py", "holdfast/spark/daemon.py", "pyspark_holdfast/__init__.py"} <= files
    assert not any("__pycache__" in file for file in files)
    (tmp_path / "again").mkdir()
    assert shipping.pack(tmp_path / "again")[1] == name


def test_only_a_missing_package_is_taken_for_one() -> None:
    assert shipping.is_missing("/usr/bin/python3: Error while finding module specification for 'holdfast.spark.daemon'")
    assert shipping.is_missing("ModuleNotFoundError: No module named 'holdfast'")
    assert not shipping.is_missing("ModuleNotFoundError: No module named 'numba'")


def test_a_daemon_from_the_archive_goes_on_from_a_place_of_its_own(tmp_path: Path) -> None:
    archive, name = shipping.pack(tmp_path)
    unpacked = tmp_path / "work" / shipping.FOLDER
    zipfile.ZipFile(archive).extractall(unpacked)
    program = "import holdfast, holdfast.spark.shipping as s; s.settle(); print(holdfast.__file__)"
    environment = os.environ | {
        "PYTHONPATH": shipping.FOLDER,
        shipping.VARIABLE: name,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for file in ("holdfast/spark/daemon.py",):
        # What goes on is the daemon: here it only says where it is from.
        (unpacked / file).write_text("import holdfast\nprint(holdfast.__file__)\n")
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=unpacked.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    home = tmp_path / "cache" / "holdfast" / "packages" / name
    assert found.stdout.strip() == str(home / "holdfast" / "__init__.py"), found.stderr
