"""Find the pipelines of a store that somebody named on the command line.

Invariants:
    * Where there is none, the error says what is there instead.
    * A pipeline's folder of a newer format is refused before anything else of it is read. One whose `pipeline.json` is
      damaged is shown all the same: its log may be whole.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.output import print_message
from holdfast.connect.catalog import load, pipelines
from holdfast.errors import Misconfigured, StoreCorrupt
from holdfast.log.local_store import LocalStore
from holdfast.log.store import open_store
from holdfast.ports import Store


def check_folder(url: str) -> None:
    """Raise if no pipeline can ever be at this place."""
    store = open_store(url)
    if not url:
        raise Misconfigured("the store '' holds no pipeline: the name is empty. Give the folder of the pipeline.")
    if isinstance(store, LocalStore) and store.root.exists() and not store.root.is_dir():
        raise Misconfigured(f"the store {url!r} holds no pipeline: it is a file. Give the folder of the pipeline.")


def pipelines_in(url: str) -> dict[str, Store]:
    """Return the folders of a store's pipelines by name; there is at least one."""
    check_folder(url)
    folders = pipelines(url)
    if folders:
        return folders
    store = open_store(url)
    root = store.root if isinstance(store, LocalStore) else Path(url)
    found = "there is no such folder" if not root.exists() else "no folder in it has a pipeline.json"
    raise Misconfigured(f"the store {url!r} holds no pipeline: {found}. Check the path, or run the pipeline first.")


def check_format(folders: dict[str, Store]) -> None:
    """Raise for a pipeline of a newer format; warn of one whose `pipeline.json` cannot be read."""
    for folder in folders.values():
        try:
            load(folder)
        except StoreCorrupt as error:
            print_message(f"holdfast: {error}")
