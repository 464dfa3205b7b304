from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import inotify_simple
import pytest

from holdfast.log.watch import Watch

LONG_S = 10.0


def test_a_change_in_a_folder_that_appears_later_ends_the_wait(tmp_path: Path) -> None:
    folder = tmp_path / "later" / "deep"
    watch = Watch([folder])
    assert not watch.wait(0)
    folder.mkdir(parents=True)
    while watch.wait(0):
        pass
    (folder / "file").write_bytes(b"1")
    assert watch.wait(LONG_S)
    while watch.wait(0):
        pass
    with open(folder / "file", "ab") as file:
        file.write(b"2")
    assert watch.wait(LONG_S)
    watch.close()
    watch.close()


def test_wake_ends_a_wait_from_another_thread_and_is_remembered(tmp_path: Path) -> None:
    watch = Watch([tmp_path])
    watch.wake()
    assert select.select([watch.fileno()], [], [], 0)[0]
    assert watch.wait(LONG_S) and not watch.wait(0)
    thread = threading.Thread(target=watch.wake)
    thread.start()
    assert watch.wait(LONG_S)
    thread.join()
    watch.close()


def test_a_folder_that_is_made_again_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    watch = Watch([folder])
    os.rmdir(folder)
    while watch.wait(0):
        pass
    folder.mkdir()
    while watch.wait(0):
        pass
    (folder / "file").touch()
    assert watch.wait(LONG_S)
    watch.close()


def test_folders_no_longer_wanted_do_not_end_a_wait(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    watch = Watch([tmp_path / "a"])
    watch.watch_only(tmp_path / "b")
    while watch.wait(0):
        pass
    (tmp_path / "a" / "file").touch()
    assert not watch.wait(0)
    (tmp_path / "b" / "file").touch()
    assert watch.wait(LONG_S)
    watch.close()


def test_without_inotify_a_wait_returns_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify_simple, "INotify", refuse)
    watch = Watch([tmp_path])
    assert watch.wait(LONG_S)
    watch.close()
