"""A unit's phases, as a table.

Invariants:
    * Only the transitions of `TRANSITIONS` happen; any other is our own bug and carries the unit's story.
    * `bucket_memory` is what the state in memory is as of; `bucket_committed` what the journal says. Memory is behind
      while a unit catches up, and ahead only between a wave's receipt and its commit.
    * A unit is in at most one order at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

UnitKey = tuple[str, int]
"""Stage and shard."""


class Phase(Enum):
    """Where a unit is in its life on a slot."""

    ABSENT = "absent"
    ATTACHING = "attaching"
    READY = "ready"
    RUNNING = "running"
    COMMITTING = "committing"


class Step(Enum):
    """What happens to a unit."""

    ATTACH_ORDERED = "attach ordered"
    ATTACHED = "attached"
    WAVE_ORDERED = "wave ordered"
    PROCESSED = "processed"
    COMMITTED = "committed"
    WORK_LOST = "work lost"
    STATE_LOST = "state lost"


TRANSITIONS: Final[dict[tuple[Phase, Step], Phase]] = {
    (Phase.ABSENT, Step.ATTACH_ORDERED): Phase.ATTACHING,
    (Phase.ATTACHING, Step.ATTACHED): Phase.READY,
    (Phase.ATTACHING, Step.WORK_LOST): Phase.ABSENT,
    (Phase.READY, Step.WAVE_ORDERED): Phase.RUNNING,
    (Phase.RUNNING, Step.PROCESSED): Phase.COMMITTING,
    (Phase.RUNNING, Step.WORK_LOST): Phase.READY,
    (Phase.COMMITTING, Step.COMMITTED): Phase.READY,
    (Phase.ABSENT, Step.STATE_LOST): Phase.ABSENT,
    (Phase.ATTACHING, Step.STATE_LOST): Phase.ABSENT,
    (Phase.READY, Step.STATE_LOST): Phase.ABSENT,
    (Phase.RUNNING, Step.STATE_LOST): Phase.ABSENT,
    (Phase.COMMITTING, Step.STATE_LOST): Phase.COMMITTING,
}
"""A lost wave leaves the unit ready: the next wave rolls its state back, or answers that it is absent."""

STORY_LENGTH = 16


@dataclass(slots=True)
class Unit:
    """One shard of one stage, as the node sees it."""

    stage: str
    shard: int
    bucket_committed: int
    bucket_memory: int
    generation: int = 0
    slot: int | None = None
    host: str | None = None
    """Where its state was last; a slot there need not build it again."""
    phase: Phase = Phase.ABSENT
    moved: bool = False
    """Its slot is gone, but its last wave is still being committed; it is absent after that."""
    snapshot_due_us: int = 0
    snapshot_pending: tuple[int, str, int] | None = None
    """(bucket, path, asked at) of a snapshot that is being written."""
    snapshot_look_us: int = 0
    story: list[str] = field(default_factory=list)

    @property
    def key(self) -> UnitKey:
        return self.stage, self.shard

    def step(self, step: Step) -> None:
        """Move to the next phase."""
        after = TRANSITIONS.get((self.phase, step))
        assert after is not None, f"unit {self.key} cannot take '{step.value}' when {self.phase.value}: {self.story}"
        self.story.append(f"{step.value} -> {after.value}")
        del self.story[:-STORY_LENGTH]
        self.phase = after
