"""The function that runs in a Spark task: take the order from the job, carry it out, send the receipt.

Guarantees:
    * The iterator is drained, so Spark keeps the process for the next wave.
    * Whatever goes wrong in the work becomes a receipt; only the death of the process leaves none.
    * No task changes anything when it is not where it was sent (`Order.slot` names its executor).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.node.messages import ORDER_DECODER, Receipt, encode_receipt
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
    slot = _slots.get(key)
    if slot is None:
        _close_others(setup.pipeline_id)
        slot = _slots[key] = Slot(setup, order.node)
    results = slot.perform(order)
    seconds = time.perf_counter() - started
    return Receipt(order.wave, order.slot, order.node, socket.gethostname(), os.getpid(), results, seconds)


def _close_others(pipeline_id: str) -> None:
    """A process that serves a new node of a pipeline lets go of what it held for the old one."""
    for key in [key for key in _slots if key[0] == pipeline_id]:
        _slots.pop(key).close()
