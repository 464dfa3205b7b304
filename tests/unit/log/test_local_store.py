from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import AlreadyExists, NameInvalid, StoreUnavailable, StoreUnfit
from holdfast.log.local_store import LocalStore
from holdfast.log.store import open_store


def failing(number: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_appends_are_read_back_at_their_offsets(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "not" / "there")
    file = store.create("a/b/file")
    assert file.append([b"one", bytearray(b"two")]) == 0
    first = store.read("a/b/file", 0, 100)
    assert file.append([memoryview(b"three")]) == 6
    file.sync()
    assert bytes(store.read("a/b/file", 6)) == b"three"
    assert bytes(first) == b"onetwo", "an older view stays as it was"
    file.write_at(0, b"ONE")
    assert bytes(store.read("a/b/file", 0, 6)) == b"ONEtwo"
    assert store.size("a/b/file") == 11
    file.close()
    with pytest.raises(AlreadyExists):
        store.create("a/b/file")
    assert store.list("a") == ["b"] and store.list("a/b") == ["file"] and store.list("nothing") == []


def test_many_buffers_go_out_in_order(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    file = store.create("f")
    file.append([b"%d," % number for number in range(3000)])
    assert bytes(store.read("f")) == b"".join(b"%d," % number for number in range(3000))
    file.close()


def test_views_outlive_deletion_and_replacement(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write_new("f", b"old")
    view = store.read("f")
    store.replace("f", b"new!")
    assert bytes(view) == b"old" and bytes(store.read("f")) == b"new!"
    store.delete("f")
    store.delete("f")
    with pytest.raises(FileNotFoundError):
        store.read("f")
    store.write_new("f", b"")
    assert bytes(store.read("f")) == b""
    store.write_new("folder/f", b"x")
    store.rename("folder/f", "other/g")
    store.delete("folder")
    assert bytes(store.read("other/g")) == b"x" and not store.exists("folder")


def test_another_process_sees_a_replaced_file(tmp_path: Path) -> None:
    mine, other = LocalStore(tmp_path), LocalStore(tmp_path)
    mine.replace("f", b"1111")
    assert bytes(other.read("f")) == b"1111"
    mine.replace("f", b"2222")
    assert bytes(other.read("f")) == b"2222"


def test_exactly_one_of_many_writes_a_new_file(tmp_path: Path) -> None:
    won: list[int] = []

    def work(number: int) -> None:
        try:
            LocalStore(tmp_path).write_new("prize", b"%d" % number)
            won.append(number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert bytes(LocalStore(tmp_path).read("prize")) == b"%d" % won[0]
    assert os.listdir(tmp_path) == ["prize"], "no temporary files stay"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_what_was_asked_for_and_cuts_the_torn_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = LocalStore(tmp_path)
    file = store.create("f")
    file.append([b"kept"])
    real = os.writev

    def half(descriptor: int, buffers: list[memoryview]) -> int:
        if len(buffers[0]) == 3:
            raise OSError(number, os.strerror(number))
        return real(descriptor, [buffers[0][:7]])

    monkeypatch.setattr(os, "writev", half)
    with pytest.raises(StoreUnavailable, match=r"appending 10 bytes at offset 4 to .*/f failed: the disk is full"):
        file.append([b"0123456789"])
    monkeypatch.undo()
    assert store.size("f") == 4
    assert file.append([b"more"]) == 4
    file.sync()
    assert bytes(store.read("f")) == b"keptmore"
    file.close()


def test_a_failed_sync_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    file = store.create("f")
    file.append([b"x"])
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with pytest.raises(StoreUnavailable, match="syncing"):
        file.sync()
    monkeypatch.undo()
    for call in (file.sync, lambda: file.append([b"y"])):
        with pytest.raises(StoreUnavailable, match="takes nothing more"):
            call()
    file.close()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "a/../b", "", ".x", "a\0b", "a\nb", "-x"])
def test_paths_cannot_leave_the_folder(tmp_path: Path, path: str) -> None:
    store = LocalStore(tmp_path)
    for call in (store.create, store.read, store.exists, store.delete, store.lock):
        with pytest.raises(NameInvalid):
            call(path)


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    one, two = LocalStore(tmp_path), LocalStore(tmp_path)
    lock = one.lock("locks/l")
    assert lock is not None and two.lock("locks/l") is None
    lock.release()
    again = two.lock("locks/l")
    assert again is not None
    again.release()


def test_a_store_is_chosen_by_its_url(tmp_path: Path) -> None:
    assert open_store(tmp_path.as_uri()).url == open_store(str(tmp_path)).url == tmp_path.as_uri()
    with pytest.raises(StoreUnfit, match="'s3'"):
        open_store("s3://bucket/x")
    with pytest.raises(StoreUnfit, match="three slashes"):
        open_store("file://tmp/x")


def synced_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which files and folders are synced from now on."""
    synced: list[str] = []
    sync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    return synced


def test_a_folder_that_another_process_made_and_did_not_sync_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed between making and syncing: the name of our file would hang on nothing."""
    store = LocalStore(tmp_path)
    (tmp_path / "streams" / "north" / "node").mkdir(parents=True)
    synced = synced_folders(monkeypatch)
    file = store.create("streams/north/node/f")
    file.append([b"x"])
    file.sync()
    expected = [tmp_path, tmp_path / "streams", tmp_path / "streams" / "north", tmp_path / "streams" / "north" / "node"]
    assert set(map(str, expected)) <= set(synced)
    synced.clear()
    store.write_new("streams/north/node/g", b"x")
    assert str(tmp_path) not in synced, "what is durable is not synced again"
    file.close()


def test_a_folder_goes_with_its_last_file_and_comes_with_the_next(tmp_path: Path) -> None:
    """Each life of a slot has a folder of its own: empty ones would be listed for ever."""
    store = LocalStore(tmp_path)
    store.write_new("streams/north/a/one", b"1")
    store.write_new("streams/north/b/two", b"2")
    store.delete("streams/north/a/one")
    assert store.list("streams/north") == ["b"] and not (tmp_path / "streams/north/a").exists()
    store.delete("streams/north/b/two")
    assert list(tmp_path.iterdir()) == []
    store.write_new("streams/north/a/three", b"3")
    assert bytes(store.read("streams/north/a/three")) == b"3"


def test_files_are_made_while_others_empty_their_folder(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path), LocalStore(tmp_path)]
    failures: list[BaseException] = []

    def work(store: LocalStore, number: int) -> None:
        try:
            for turn in range(300):
                store.write_new(f"a/b/{number}-{turn}", b"x")
                store.delete(f"a/b/{number}-{turn}")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(store, number)) for number, store in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def mapped_and_deleted(folder: Path) -> int:
    maps = Path("/proc/self/maps").read_text()
    return sum(str(folder) in line and line.endswith("(deleted)") for line in maps.splitlines())


def test_the_room_of_files_that_others_delete_is_given_back(tmp_path: Path) -> None:
    """A reader maps whole segments; retention, in another process, frees nothing as long as a map is there."""
    reader, writer = LocalStore(tmp_path), LocalStore(tmp_path)
    for number in range(20):
        writer.write_new(f"s/{number}", b"x" * 5000)
        assert reader.read(f"s/{number}").nbytes == 5000
        writer.delete(f"s/{number}")
    assert mapped_and_deleted(tmp_path) <= 1


def test_names_that_are_not_ours_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write_new("s/good", b"x")
    (tmp_path / "s" / "what~ is this").write_bytes(b"x")
    assert store.list("s") == ["good"]


def test_a_temporary_name_is_nobody_elses(tmp_path: Path) -> None:
    """Two containers may have the same process id: one would write into the other's unfinished term."""
    script = (
        "import os, sys; os.getpid = lambda: 1; link = os.link\n"
        "os.link = lambda source, target: print(source) or link(source, target)\n"
        "from holdfast.log.local_store import LocalStore\n"
        "store = LocalStore(sys.argv[1]); store.write_new('term', b'x'); store.delete('term')"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    names = [subprocess.run(command, capture_output=True, check=True, text=True).stdout for _ in range(2)]
    assert names[0] and names[0] != names[1]


def test_a_store_that_makes_folder_after_folder_does_not_remember_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.log.local_store.FOLDERS_MAX", 4)
    store = LocalStore(tmp_path / "store")
    for number in range(20):
        store.write_new(f"snapshots/{number}/manifest", b"x")
        store.delete(f"snapshots/{number}/manifest")
    assert len(store._durable_folders) == 4
