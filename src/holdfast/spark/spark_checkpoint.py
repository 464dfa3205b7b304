"""A query's spark_checkpoint, made to survive a crash of the machine: Spark renames its files into place, unsynced.

A batch is known by its number. Were a batch in our journal, and Spark's plan of it lost with the machine's memory, the
next life would plan other rows under the same number, and they would be dropped as logged already. So the plan is
durable before the batch is.

What a batch reads is in `offsets`, and in `sources` for those that keep more; who the query is, in `metadata`. Whether
Spark calls a batch done (`commits`) may be forgotten: then it comes again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = ("offsets", "sources")


class SparkCheckpoint:
    """The checkpoint in a folder. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[str, set[str]] = {}

    def sync(self) -> None:
        """Return when every plan that is there now is durable. Such a file never changes: it is synced once."""
        for folder in self._folders():
            names = {entry.name for entry in os.scandir(folder) if entry.is_file()}
            known = self._synced.get(folder, set())
            for name in sorted(names - known):
                _sync(os.path.join(folder, name))
            if names != known:
                _sync(folder)
            self._synced[folder] = names

    def _folders(self) -> Iterator[str]:
        yield str(self._folder)
        for name in FOLDERS:
            for folder, _, _ in os.walk(self._folder / name):
                yield folder


def _sync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        # Spark deletes plans of old batches, and gives a file its name when it is whole.
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
