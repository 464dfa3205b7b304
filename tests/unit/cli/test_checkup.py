"""What the doctor makes of what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import checkup
from holdfast.cli.main import main


def test_a_good_store_is_good_and_left_as_it_was(tmp_path: Path) -> None:
    findings = list(checkup.check_store(str(tmp_path / "store")))
    assert {finding.what for finding in findings} == {
        "address",
        "exclusive files",
        "durable appends",
        "locks",
        "file system",
    }
    assert not [finding for finding in findings if finding.grade == "bad"]
    assert not list((tmp_path / "store").iterdir())


def test_a_store_that_cannot_be_opened_is_bad_and_says_why() -> None:
    (finding,) = checkup.check_store("s3://bucket/store")
    assert finding.grade == "bad" and "scheme 's3'" in finding.advice


def test_a_folder_without_room_for_state_says_what_to_do(tmp_path: Path) -> None:
    finding = checkup.state_finding("machine", "memory for state", str(tmp_path), free=64 << 20)
    assert finding.grade == "doubtful" and "--shm-size" in finding.advice


def test_exit_status_says_whether_something_will_not_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["doctor", "--no-spark", str(tmp_path / "store")]) == 0
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", "--no-spark"]) == 1
    assert "install it, for example" in capsys.readouterr().out
