"""Spark's plan of a batch is durable before the batch is logged: each of its files and their names, once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.spark.spark_checkpoint import SparkCheckpoint


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of what is synced from now on."""
    found: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return found


def test_new_plans_are_synced_with_their_folders_and_old_ones_are_not_synced_again(
    tmp_path: Path, synced: list[str]
) -> None:
    for name in ("metadata", "offsets/0", "sources/0/0", "commits/0", "state/0/0/1.delta"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    checkpoint = SparkCheckpoint(tmp_path)
    checkpoint.sync()
    plan = ["metadata", "offsets", "offsets/0", "sources/0", "sources/0/0"]
    assert {str(tmp_path), *(str(tmp_path / name) for name in plan)} <= set(synced)
    assert not [path for path in synced if "commits" in path or "state" in path]
    synced.clear()
    (tmp_path / "offsets" / "1").write_text("x")
    (tmp_path / "offsets" / "0").unlink()
    checkpoint.sync()
    assert synced == [str(tmp_path / "offsets" / "1"), str(tmp_path / "offsets")]
    synced.clear()
    checkpoint.sync()
    assert synced == []
