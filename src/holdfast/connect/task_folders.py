"""The folders that a query's tasks write segments to, by lives: which of them somebody may still be writing to.

    streams/<stream>/<owner>-<life>/<process>-<time>/000000.seg

Invariants:
    * What a task writes is named by no entry yet, and a task may begin a segment at any moment: so a folder is open by
      its name, whether it is there or not.
    * A life ends only between two batches. Nothing of an ended life is ever committed: what is not named by then, is
      nobody's.
    * Lives only ascend: a folder that was closed once stays closed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator


class TaskFolders(Collection[str]):
    """The open folders of an owner, as of one moment: those of life `first_open` and of all later ones."""

    def __init__(self, owner: str, first_open: int) -> None:
        self._prefix = f"{owner}-"
        self._first_open = first_open

    @property
    def writer(self) -> str:
        """What the tasks of this life are to call themselves."""
        return f"{self._prefix}{self._first_open:06d}"

    def __contains__(self, folder: object) -> bool:
        life = self._life(folder)
        return life is not None and life >= self._first_open

    def has_closed(self, folder: str) -> bool:
        """Return whether a folder is of one of the owner's lives that have ended."""
        life = self._life(folder)
        return life is not None and life < self._first_open

    def _life(self, folder: object) -> int | None:
        parts = folder.split("/") if isinstance(folder, str) else []
        name = parts[2] if len(parts) > 2 else ""
        number = name.removeprefix(self._prefix)
        return int(number) if name != number and number.isdecimal() else None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
