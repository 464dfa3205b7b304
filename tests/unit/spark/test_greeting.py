"""Whether a store is shared is found out by writing and reading, not by the look of its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.log.local_store import LocalStore
from holdfast.spark.greeting import TOKENS, Token

SECRET = "0123"


def test_a_store_that_both_see_is_shared(tmp_path: Path) -> None:
    node = Token(LocalStore(tmp_path), "node-1", SECRET)
    node.write()
    assert Token(LocalStore(tmp_path), "node-1", SECRET).answer("3") == ""
    assert node.check("3") == ""
    node.remove()
    assert LocalStore(tmp_path).list(TOKENS) == []


def test_a_folder_of_the_same_name_on_another_host_is_not(tmp_path: Path) -> None:
    node = Token(LocalStore(tmp_path / "here"), "node-1", SECRET)
    node.write()
    there = Token(LocalStore(tmp_path / "there"), "node-1", SECRET)
    assert "the store is not shared" in there.answer("3")
    assert "has no tokens/node-1.node, which the node has just written" in there.answer("3")
    assert "the node does not see it" in node.check("3")


def test_what_an_older_life_left_does_not_count(tmp_path: Path) -> None:
    older = Token(LocalStore(tmp_path), "node-1", "old")
    older.write()
    assert older.answer("3") == ""
    node = Token(LocalStore(tmp_path), "node-1", SECRET)
    assert "another tokens/node-1.node" in node.answer("3")
    node.write()
    assert "does not see it" in node.check("3"), "tokens of nodes that are gone are removed"


def test_a_store_that_takes_no_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Token(LocalStore(tmp_path), "node-1", SECRET)
    node.write()
    store = LocalStore(tmp_path)

    def refuse(path: str, data: bytes) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store, "replace", refuse)
    assert "takes no files: [Errno 30] Read-only file system" in Token(store, "node-1", SECRET).answer("3")
