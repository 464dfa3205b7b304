"""Ways to break holdfast on purpose, each in a few lines: the simulator has to notice every one of them.

Some take back a repair of a bug that the simulator once found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.log import rewrite, segment, stream_reader, terms
from holdfast.log.journal import JournalReader, JournalWriter
from holdfast.log.ledger import Ledger
from holdfast.log.terms import Term
from holdfast.node import events, scheduling, trimming
from holdfast.node.decider import NodeDecider
from holdfast.node.delivery import Delivery
from holdfast.node.ending import Ending
from holdfast.node.messages import UnitWork
from holdfast.node.situation import Situation
from holdfast.ports import Store
from holdfast.testing.simulated_memory import MemoryState

Sabotage = Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, where something is to be left out."""


def skip_the_fence_check(patch: pytest.MonkeyPatch) -> None:
    """A writer does not look for a successor before it confirms."""
    patch.setattr(Term, "check_held", _nothing)


def read_behind_a_seal(patch: pytest.MonkeyPatch) -> None:
    """A reader takes entries without looking for a seal."""

    def is_succeeded(store: Store, stream: str, number: int) -> bool:
        newest = terms.standing(store, stream).newest
        return newest is not None and newest > number

    patch.setattr(stream_reader, "is_succeeded", is_succeeded)


def confirm_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Entries are shown and confirmed that a crash may still take."""

    def sync(writer: JournalWriter) -> None:
        writer._mark()

    patch.setattr(JournalWriter, "sync", sync)


def leave_segments_unsynced(patch: pytest.MonkeyPatch) -> None:
    """A slot reports frames that it has not synced."""
    patch.setattr(segment.SegmentWriter, "sync", _nothing)


def leave_moved_frames_unsynced(patch: pytest.MonkeyPatch) -> None:
    """Copies of frames are named before they are on the disk."""
    original = rewrite.create_rewritten

    def create(store: Store, folder: str) -> Any:
        file = original(store, folder)
        file.sync = _nothing  # type: ignore[method-assign]
        return file

    patch.setattr(rewrite, "create_rewritten", create)


def accept_a_repeated_receipt(patch: pytest.MonkeyPatch) -> None:
    """A receipt counts whichever wave it is of."""

    def receipt_arrived(decider: NodeDecider, event: events.ReceiptArrived) -> None:
        slot = decider.situation.slots.get(event.receipt.slot)
        if slot is None or slot.order is None or len(slot.order.works) != len(event.receipt.results):
            return
        order, slot.order = slot.order, None
        for work, result in zip(order.works, event.receipt.results, strict=True):
            decider._result(slot, work, result)

    patch.setattr(NodeDecider, "_receipt_arrived", receipt_arrived)


def trim_what_a_replay_needs(patch: pytest.MonkeyPatch) -> None:
    """Input goes as soon as it is processed, whatever the snapshots say."""
    patch.setattr(Situation, "replay_from", lambda here, unit: unit.bucket_committed)


def trim_what_a_consumer_needs(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the places of consumers."""
    patch.setattr(trimming, "leases", lambda store, stream: [])


def publish_again_what_is_out(patch: pytest.MonkeyPatch) -> None:
    """What is computed again after a restart is written again."""

    def work(shard: int, generation: int, memory: int, publish_from: int, snapshot: bool) -> UnitWork:
        return UnitWork(shard, generation, memory, memory, snapshot)

    patch.setattr(scheduling, "UnitWork", work)


def forget_what_a_sink_intended(patch: pytest.MonkeyPatch) -> None:
    """After a restart a sink chooses its next range anew."""
    patch.setattr(Delivery, "resume", _nothing)


def forget_commits_that_failed(patch: pytest.MonkeyPatch) -> None:
    """What could not be written is not said again."""

    def log_reopened(decider: NodeDecider, event: events.LogReopened) -> None:
        decider.log_open, decider._reopen_us, decider._reopening = True, None, False

    patch.setattr(NodeDecider, "_log_reopened", log_reopened)


def leave_the_state_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """A wave that the journal does not name is not rolled back."""

    def begin(state: MemoryState, process: Any, generation: int, committed: int) -> bytes:
        state.bucket_end, state.before = committed, None
        return original(state, process, generation, committed)

    original = MemoryState.begin
    patch.setattr(MemoryState, "begin", begin)


def recover_below_the_mark_alone(patch: pytest.MonkeyPatch) -> None:
    """A successor believes the mark, which is not synced."""
    original = JournalReader.next_entries

    def next_entries(reader: JournalReader, beyond_mark: bool = False, entry_end: int | None = None) -> Any:
        return original(reader, False, entry_end)

    patch.setattr(JournalReader, "next_entries", next_entries)


# Repairs taken back


def look_for_the_next_term_alone(patch: pytest.MonkeyPatch) -> None:
    def is_succeeded(store: Store, stream: str, number: int) -> bool:
        names = store.list(terms.terms_folder(stream))
        return any(name in names for name in (f"{number + 1:06d}", f"{number + 1:06d}.sealing"))

    patch.setattr(terms, "is_succeeded", is_succeeded)
    patch.setattr(stream_reader, "is_succeeded", is_succeeded)


def remember_the_last_end_alone(patch: pytest.MonkeyPatch) -> None:
    original = Ledger.endings
    patch.setattr(Ledger, "endings", lambda ledger, stage: original(ledger, stage)[-1:])


def reopen_as_often_as_asked(patch: pytest.MonkeyPatch) -> None:
    original = NodeDecider._go_on

    def go_on(decider: NodeDecider) -> None:
        decider._reopening = False
        original(decider)

    patch.setattr(NodeDecider, "_go_on", go_on)


def hold_a_bucket_up_by_its_own_rows(patch: pytest.MonkeyPatch) -> None:
    def may_ingest(here: Situation, source: str) -> bool:
        return here.rows_ahead() <= here.options.ingest_ahead_rows

    patch.setattr(Situation, "may_ingest", may_ingest)


def end_before_all_is_logged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ending, "all_logged", lambda ending: True)


def rest_although_rows_came(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ending, "_had_rows", lambda ending, stage, bucket_from: False)


def rest_where_an_earlier_run_ended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ending, "_committed_ends", lambda ending, stage: iter(()))


def pass_the_end_before_it_is_logged(patch: pytest.MonkeyPatch) -> None:
    original = Situation.processable

    def processable(here: Situation, stage: Any) -> int:
        return original(here, stage) if here.ends is None else min(here.target(stage), here.ends[stage.name])

    patch.setattr(Situation, "processable", processable)


SABOTAGES: Sequence[Sabotage] = [
    skip_the_fence_check,
    read_behind_a_seal,
    confirm_before_the_sync,
    leave_segments_unsynced,
    leave_moved_frames_unsynced,
    accept_a_repeated_receipt,
    trim_what_a_replay_needs,
    trim_what_a_consumer_needs,
    publish_again_what_is_out,
    forget_what_a_sink_intended,
    forget_commits_that_failed,
    leave_the_state_as_it_is,
    recover_below_the_mark_alone,
]

REPAIRS_TAKEN_BACK: Sequence[Sabotage] = [
    look_for_the_next_term_alone,
    remember_the_last_end_alone,
    reopen_as_often_as_asked,
    hold_a_bucket_up_by_its_own_rows,
    end_before_all_is_logged,
    rest_although_rows_came,
    rest_where_an_earlier_run_ended,
    pass_the_end_before_it_is_logged,
]
