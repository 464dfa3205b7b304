"""A consumer with a named position, as another program would have it."""

from __future__ import annotations

from typing import Any

from holdfast.connect.consumer import Consumer

NAME = "tally"


class Tally:
    """Another program that takes the results, remembers its place, and dies now and then before it has done so."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._consumer = Consumer(store, "totals", name=NAME, wait="120 seconds")
        self.rows: list[dict[str, Any]] = []

    def take(self, dies: bool) -> None:
        taken = []
        while (table := self._consumer.poll()) is not None:
            taken += table.to_pylist()
        if dies:
            # What was taken since the last commit is forgotten, and comes again.
            self._consumer.close()
            self._consumer = Consumer(self._store, "totals", name=NAME)
            return
        self._consumer.commit()
        self.rows += taken

    def close(self) -> None:
        self._consumer.close()
