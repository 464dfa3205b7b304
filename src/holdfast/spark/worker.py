"""The function that runs in a Spark task: take the order from the job, carry it out, send the receipt.

Guarantees:
    * The iterator is drained, so Spark keeps the process for the next wave.
    * Whatever goes wrong in the work becomes a receipt; only the death of the process leaves none.
    * A task that runs elsewhere than it was sent finds no state there, and answers that it is absent.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.node.messages import ORDER_DECODER, Failed, Receipt, Result, encode_receipt
from holdfast.node.slot import Slot, SlotSetup

ORDER_PROPERTY = "holdfast.order"
_slots: dict[tuple[str, str], Slot] = {}
"""One per pipeline and node in this process: open maps, segments and compiled plans outlive the task."""


class Work:
    """What a standing RDD runs. It travels once, by Spark's own closure serializer, with the user's functions in it."""

    def __init__(self, setup: SlotSetup, receipts: Any) -> None:
        self.setup = setup
        self.receipts = receipts

    def __call__(self, rows: Iterable[int]) -> Iterator[int]:
        from pyspark import TaskContext

        for _ in rows:
            pass
        context = TaskContext.get()
        assert context is not None
        text = context.getLocalProperty(ORDER_PROPERTY)
        assert text is not None
        self.receipts.add([encode_receipt(perform(self.setup, text))])
        return iter(())


def perform(setup: SlotSetup, text: str) -> Receipt:
    """Carry out an order in this process and return its receipt."""
    started = time.perf_counter()
    order = ORDER_DECODER.decode(text)
    key = (setup.pipeline_id, order.node)
    results: list[Result]
    try:
        results = _slot(setup, order.node, key).perform(order)
    except Exception:
        # The slot could not be made, or has a bug outside of any piece of work: a retry would meet the same again.
        _close(key)
        reason = traceback.format_exc()
        results = [Failed(number, "PipelineFailed", reason, retry=False) for number in range(len(order.works))]
    seconds = time.perf_counter() - started
    return Receipt(order.wave, order.slot, order.node, socket.gethostname(), os.getpid(), results, seconds)


def _slot(setup: SlotSetup, node: str, key: tuple[str, str]) -> Slot:
    """Return this process's slot for a node; what it held for an older node of the pipeline goes."""
    slot = _slots.get(key)
    if slot is None:
        for other in [other for other in _slots if other[0] == setup.pipeline_id]:
            _close(other)
        slot = _slots[key] = Slot(setup, node)
    return slot


def _close(key: tuple[str, str]) -> None:
    slot = _slots.pop(key, None)
    if slot is not None:
        slot.close()
