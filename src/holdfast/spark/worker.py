"""The function that runs in a Spark task: take the order from the job, carry it out, send the receipt.

Guarantees:
    * The iterator is drained, so Spark keeps the process for the next wave.
    * Whatever goes wrong in the work becomes a receipt; only the death of the process leaves none.
    * A task that runs elsewhere than it was sent touches nothing, and says so.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.node.messages import ORDER_DECODER, Failed, Order, Receipt, Result, encode_order, encode_receipt
from holdfast.node.slot import Slot, SlotSetup
from holdfast.node.state_folder import state_folder
from holdfast.spark.greeting import own_executor

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
        sent_to, _, order = text.partition(" ")
        here = own_executor()
        if here is None or here == sent_to:
            receipt = perform(self.setup, order)
        else:
            receipt = refuse(order, f"a task ran at executor {here}, as executor {sent_to} was busy for too long")
        self.receipts.add([encode_receipt(receipt)])
        return iter(())


def order_text(executor: str, order: Order) -> str:
    """Return what travels with a job: whom the order is for, and the order."""
    return f"{executor} {encode_order(order)}"


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


def refuse(text: str, why: str) -> Receipt:
    """Return the receipt of an order that is not for this executor: nothing of it was done."""
    order = ORDER_DECODER.decode(text)
    results: list[Result] = [Failed(number, "StateAbsent", why, retry=True) for number in range(len(order.works))]
    return Receipt(order.wave, order.slot, order.node, socket.gethostname(), os.getpid(), results)


def _slot(setup: SlotSetup, node: str, key: tuple[str, str]) -> Slot:
    """Return this process's slot for a node; what it held for an older node of the pipeline goes."""
    slot = _slots.get(key)
    if slot is None:
        for other in [other for other in _slots if other[0] == setup.pipeline_id]:
            _close(other)
        slot = _slots[key] = Slot(_here(setup), node)
    return slot


def _here(setup: SlotSetup) -> SlotSetup:
    """Return the setup with this host's own folder for state, if it has one."""
    own = os.environ.get("HOLDFAST_STATE_DIR")
    return msgspec.structs.replace(setup, state_folder=state_folder(own)) if own else setup


def _close(key: tuple[str, str]) -> None:
    slot = _slots.pop(key, None)
    if slot is not None:
        slot.close()
