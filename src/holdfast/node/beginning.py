"""Where stages and sinks begin that came to a pipeline which has run before.

Invariants:
    * A stage begins once, when all of its inputs can be read: at the first bucket that is kept of every one of them.
      Nothing of it runs before that is decided; it is in the journal before anything else of the stage.
    * A stage that was away goes on from its place, or is refused where rows that it has not seen are gone.
    * What a sink was not given is said: by the journal for good, by a warning once.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime

from holdfast.connect.catalog import fillers_of_late, fillers_of_rejects
from holdfast.errors import StoreUnfit
from holdfast.model import FIRST_BUCKET, JournalItem, SinkBegun, StageBegun, bucket_start_us
from holdfast.node.delivery import Delivery
from holdfast.node.situation import Situation
from holdfast.plan import Sink, Stage


class Beginning:
    """Decides where what is new begins."""

    def __init__(self, situation: Situation, added: Collection[str]) -> None:
        self._situation = situation
        ledger = situation.ledger
        self._new = {
            name for name in situation.stages if name in added and not ledger.units(name) and ledger.begun(name) is None
        }
        situation.waiting |= self._new

    def begin(self, unread: Collection[str]) -> tuple[list[JournalItem], list[str]]:
        """Let stages begin whose inputs can all be read; return what to commit, and what to tell the user."""
        here = self._situation
        items: list[JournalItem] = []
        messages: list[str] = []
        for name in [name for name in here.stages if name in here.waiting]:
            stage = here.stages[name]
            if any(read.stream in unread for read in stage.inputs):
                continue
            here.waiting.discard(name)
            begun = StageBegun(name, here.kept_from(stage), self._sides_from(stage))
            here.begun[name] = begun
            for unit in here.units_of(name):
                unit.bucket_committed = unit.bucket_memory = begun.bucket_start
            items.append(begun)
            messages.append(self._said(begun))
        return items, messages

    def check_returned(self) -> None:
        """Raise for a stage that was away, and whose next rows are not kept any more."""
        here = self._situation
        for name, stage in here.stages.items():
            committed = min(unit.bucket_committed for unit in here.units_of(name))
            kept_from = here.kept_from(stage)
            if FIRST_BUCKET < committed < kept_from:
                raise StoreUnfit(
                    f"the stage {name!r} was not part of the pipeline for a while: it has seen its inputs up to "
                    f"{self._text(committed)}, and they are kept from {self._text(kept_from)} on. Give it a new name, "
                    "and it begins with what is kept"
                )

    def begin_sinks(self) -> tuple[list[JournalItem], list[str]]:
        """Let sinks begin that have no place yet, or whose place is kept no more."""
        items: list[JournalItem] = []
        messages: list[str] = []
        for delivery in self._situation.deliveries.values():
            begun = self._sink_begins(delivery)
            if begun is not None:
                delivery.begin(begun)
                items.append(SinkBegun(delivery.sink.name, delivery.sink.stream, begun))
                if begun > FIRST_BUCKET:
                    messages.append(self._said_of_sink(delivery.sink, begun))
        return items, messages

    def _sink_begins(self, delivery: Delivery) -> int | None:
        """Return where a sink begins that cannot have everything from its place on."""
        here = self._situation
        stream = delivery.sink.stream
        kept_from = here.ledger.trimmed_before(stream) or FIRST_BUCKET
        if here.ledger.sinks.get(delivery.sink.name) is None and delivery.sink.start == "latest":
            # Also where that is the beginning: once it is decided, a restart changes nothing.
            return here.output_end(stream)
        if delivery.intent is not None:
            # Between its place and what was intended there were no rows, so they need not be kept.
            if delivery.intent.bucket_start >= kept_from:
                return None
            # A part of what was under way is gone: whether its file is there nobody knows, so it does not go out twice.
            return max(kept_from, delivery.intent.bucket_end)
        return kept_from if delivery.bucket_done < kept_from else None

    def _said_of_sink(self, sink: Sink, begun: int) -> str:
        asked = sink.start == "latest" and self._situation.ledger.sinks.get(sink.name) is None
        why = ", as it was asked to" if asked else ": what it has not put out before that is not kept any more"
        return f"the sink {sink.name!r} has the rows of {sink.stream!r} from {self._text(begun)} on{why}"

    def _sides_from(self, stage: Stage) -> int:
        """Return from where on the stage may put rows into side streams that others fill too."""
        here = self._situation
        ends = [FIRST_BUCKET]
        for read in stage.inputs:
            for fillers in (
                fillers_of_late(here.topology, read.stream),
                fillers_of_rejects(here.topology, read.stream),
            ):
                others = [name for name in fillers if name not in self._new]
                if stage.name in fillers and others:
                    ends.append(min(map(here.output_end, others)))
        return max(ends)

    def _said(self, begun: StageBegun) -> str:
        stage = self._situation.stages[begun.stage]
        inputs = ", ".join(repr(read.stream) for read in stage.inputs)
        text = f"the stage {begun.stage!r} is new and catches up with {inputs}"
        if begun.bucket_start > FIRST_BUCKET:
            text += f" from {self._text(begun.bucket_start)} on: rows before that are not kept any more"
        if begun.sides_from > begun.bucket_start:
            text += f". Late and rejected rows of it are kept from {self._text(begun.sides_from)} on"
        return text

    def _text(self, bucket: int) -> str:
        at_us = bucket_start_us(bucket, self._situation.topology.bucket_width_us)
        return f"{datetime.fromtimestamp(at_us / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f} UTC"
