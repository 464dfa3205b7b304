"""Sinks: which buckets go out next, under which name, and how often.

Invariants:
    * What goes out, and its name, is in the journal before a byte of it is written; after a crash the same buckets go
      out under the same name. So a sink that writes a name at most once puts every row out exactly once.
    * A range is delivered only when every unit of the stream has committed it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.model import SinkDone, SinkIntended
from holdfast.plan import ParquetSink, Sink


class DeliveryPhase(Enum):
    """Where a sink is with the range at hand."""

    IDLE = "idle"
    INTENDING = "intending"
    INTENDED = "intended"
    DELIVERING = "delivering"
    CONCLUDING = "concluding"


class DeliveryStep(Enum):
    """What happens to the range at hand."""

    INTEND = "intend"
    INTENT_COMMITTED = "intent committed"
    DELIVERY_ORDERED = "delivery ordered"
    DELIVERY_LOST = "delivery lost"
    DELIVERED = "delivered"
    CONCLUSION_COMMITTED = "conclusion committed"


DELIVERY_TRANSITIONS: Final[dict[tuple[DeliveryPhase, DeliveryStep], DeliveryPhase]] = {
    (DeliveryPhase.IDLE, DeliveryStep.INTEND): DeliveryPhase.INTENDING,
    (DeliveryPhase.INTENDING, DeliveryStep.INTENT_COMMITTED): DeliveryPhase.INTENDED,
    (DeliveryPhase.INTENDED, DeliveryStep.DELIVERY_ORDERED): DeliveryPhase.DELIVERING,
    (DeliveryPhase.DELIVERING, DeliveryStep.DELIVERY_LOST): DeliveryPhase.INTENDED,
    (DeliveryPhase.DELIVERING, DeliveryStep.DELIVERED): DeliveryPhase.CONCLUDING,
    (DeliveryPhase.CONCLUDING, DeliveryStep.CONCLUSION_COMMITTED): DeliveryPhase.IDLE,
}


@dataclass(slots=True)
class Delivery:
    """One sink."""

    sink: Sink
    bucket_done: int
    """Everything before it is out."""
    phase: DeliveryPhase = DeliveryPhase.IDLE
    intent: SinkIntended | None = None
    started_us: int = 0
    is_behind: bool = False
    """Whether there is more to put out than the range at hand: the next one follows at once."""

    def step(self, step: DeliveryStep) -> None:
        after = DELIVERY_TRANSITIONS.get((self.phase, step))
        assert after is not None, f"sink {self.sink.name} cannot take '{step.value}' when {self.phase.value}"
        self.phase = after

    @property
    def next_us(self) -> int:
        """When the next range may start: a sink of files collects rows for a while."""
        target = self.sink.target
        return self.started_us + (target.every_us if isinstance(target, ParquetSink) else 0)

    def due(self, now_us: int, hurry: bool) -> bool:
        """Return whether the next range may start now; everything goes out at once when all is ending (`hurry`)."""
        return self.phase is DeliveryPhase.IDLE and (hurry or self.is_behind or now_us >= self.next_us)

    def begin(self, bucket: int) -> None:
        """Leave out everything before `bucket`, also what was intended of it."""
        assert self.phase in (DeliveryPhase.IDLE, DeliveryPhase.INTENDED), "only before anything is under way"
        self.bucket_done, self.intent, self.phase = bucket, None, DeliveryPhase.IDLE

    def intend(self, bucket_from: int, bucket_end: int, now_us: int) -> SinkIntended:
        """Decide on a range; the answer is to be committed before anything of it is written."""
        self.step(DeliveryStep.INTEND)
        self.started_us = now_us
        name = f"{self.sink.stream}-{bucket_from}-{bucket_end}"
        self.intent = SinkIntended(self.sink.name, self.sink.stream, bucket_from, bucket_end, name)
        return self.intent

    def resume(self, intent: SinkIntended) -> None:
        """Take up an intent that an earlier node left behind."""
        self.intent = intent
        self.phase = DeliveryPhase.INTENDED

    def delivered(self, rows: int) -> SinkDone:
        self.step(DeliveryStep.DELIVERED)
        assert self.intent is not None
        return SinkDone(self.sink.name, self.sink.stream, self.intent.bucket_end, rows)

    def concluded(self) -> None:
        self.step(DeliveryStep.CONCLUSION_COMMITTED)
        assert self.intent is not None
        self.bucket_done = self.intent.bucket_end
        self.intent = None
