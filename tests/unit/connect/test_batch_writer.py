"""The writer of a query's batches: what its tasks are writing is never taken for left over."""

from __future__ import annotations

from holdfast.connect.batch_writer import FoldersOf
from holdfast.log.ledger import Ledger
from holdfast.log.retention import Need, decide


def test_a_segment_that_a_task_has_just_made_is_not_deleted() -> None:
    mine, other = "streams/s/query-1/host-5-000009/000000.seg", "streams/s/query-0/host-4-000008/000000.seg"
    found = decide(Ledger(1, 1), {"s": [Need("reader", 5)]}, {"s": {mine: 10, other: 10}}, FoldersOf("query-1"))
    assert [decision.delete for decision in found] == [[other]]
