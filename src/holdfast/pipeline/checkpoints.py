"""The dial that says how a stage's state is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from holdfast.config import duration_us
from holdfast.errors import Misconfigured, UnsupportedQuery
from holdfast.pipeline.callsite import names_the_line

SNAPSHOT_EVERY_US: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Changed pages are written in the background, once in `every_us`."""

    every_us: int = SNAPSHOT_EVERY_US


@dataclass(frozen=True, slots=True)
class Continuous:
    """Window by window inside the output log."""

    extent: str | None = None
    replay: str | None = None
    share: float | None = None


Checkpoint = Snapshot | Continuous | Literal["auto"] | None


@names_the_line
def snapshot(every: str = "10 seconds") -> Snapshot:
    """Return the policy that writes the changed pages of a stage's state in the background, once in `every`."""
    return Snapshot(duration_us(every, "every of hf.snapshot"))


def continuous(extent: str | None = None, replay: str | None = None, share: float | None = None) -> Continuous:
    """Return the policy that checkpoints windows one by one inside the output log."""
    return Continuous(extent, replay, share)


def checkpoint_every_us(policy: Checkpoint) -> int | None:
    """Return how often a stage's state is written; None for never."""
    if policy is None:
        return None
    if isinstance(policy, Snapshot):
        return policy.every_us
    if policy == "auto":
        return SNAPSHOT_EVERY_US
    if isinstance(policy, Continuous):
        raise UnsupportedQuery(
            "checkpoint=hf.continuous() comes with a later version; use checkpoint=hf.snapshot(every='10 seconds')"
        )
    raise Misconfigured(f"checkpoint is {policy!r}; it can be hf.snapshot(every=...), 'auto' or None")
