"""What the program of this process does with its pipelines: for the commands that run a program, and want to know.

Invariants:
    * `python retail.py` runs unwatched: nothing is kept, and nothing is different.
    * Where a program is only explained, nothing of it touches a store or starts a node: `run` and `start` end it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from holdfast.pipeline.pipeline import Pipeline

_Handle = TypeVar("_Handle")


class ExplainedInstead(BaseException):
    """Ends a program at its `run` or `start`; not an `Exception`, so that a program does not take it for an error."""


@dataclass(slots=True)
class Program:
    """The pipelines of a program, once a command watches it."""

    is_watched: bool = False
    is_only_explained: bool = False
    available_now: bool = False
    """Whether every start is to take what is there, and end."""
    pipelines: list[Pipeline] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    def made(self, pipeline: Pipeline) -> None:
        """Note a pipeline that the program has made."""
        if self.is_watched:
            self.pipelines.append(pipeline)

    def starts(self, pipeline: Pipeline) -> None:
        """Note that a pipeline is about to be started; raise where it must not be."""
        if self.is_only_explained:
            raise ExplainedInstead(pipeline.name)

    def started(self, handle: _Handle) -> _Handle:
        """Note the handle of a pipeline that was started, and return it."""
        if self.is_watched:
            self.handles.append(handle)
        return handle


PROGRAM = Program()
"""That of this process."""


@contextmanager
def watched(only_explained: bool = False, available_now: bool = False) -> Iterator[Program]:
    """Watch the program that runs inside."""
    PROGRAM.is_watched, PROGRAM.is_only_explained, PROGRAM.available_now = True, only_explained, available_now
    PROGRAM.pipelines, PROGRAM.handles = [], []
    try:
        yield PROGRAM
    finally:
        PROGRAM.is_watched = PROGRAM.is_only_explained = PROGRAM.available_now = False
