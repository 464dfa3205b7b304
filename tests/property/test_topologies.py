"""Generated topologies, run by the real operators in waves of any size, beside an evaluation in plain Python."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.property.topologies import (
    SCHEMA,
    SOURCES,
    Buckets,
    Spec,
    batch_of,
    compiled,
    expected,
    some_rows,
    some_specs,
)
from tests.unit.node.slot_session import SlotSession
from tests.unit.operators.harness import WIDTH_US

from holdfast import plan
from holdfast.model import FIRST_BUCKET, Ended
from holdfast.node.messages import Processed
from holdfast.node.ranges import rows_in_order
from holdfast.operators import destinations

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FIRST, LAST = 100, 108
Digests = dict[str, dict[tuple[int, int], tuple[int, int]]]


def some_input(chooser: random.Random) -> dict[str, Buckets]:
    """Return rows that come about when they happened; some are later than a watermark waits for."""
    found: dict[str, Buckets] = {}
    for name in SOURCES:
        buckets = [bucket for bucket in range(FIRST, LAST) if chooser.random() < 0.8] or [FIRST]
        found[name] = {
            bucket: some_rows(chooser, (bucket - 2) * WIDTH_US, (bucket + 1) * WIDTH_US, chooser.randint(1, 12))
            for bucket in buckets
        }
    return found


def run(
    folder: Path, specs: list[Spec], sources: dict[str, Buckets], shards: int, chooser: random.Random
) -> tuple[dict[str, dict[int, Counter[Any]]], Digests]:
    """Run all stages, each in waves of its own; return the rows of each by bucket, and the digests."""
    topology, functions = compiled(specs, shards, WIDTH_US)
    session = SlotSession(folder, topology, functions)
    for bucket in range(FIRST, LAST):
        for name, buckets in sources.items():
            if bucket in buckets:
                session.feed(name, batch_of(buckets[bucket]), bucket)
    session.promise(LAST)
    for stage in topology.stages:
        session.turn_to(stage.name).attach_all()
        session.commit(Ended(stage.name, LAST))
        for end in [*sorted(chooser.sample(range(FIRST + 1, LAST), chooser.randint(0, 4))), LAST]:
            # A slot may have some of the units only.
            cut = chooser.randint(0, shards)
            for some in (range(cut), range(cut, shards)):
                if some:
                    work = session.work(end, some, ended=end == LAST)
                    (done,) = session.perform(work)
                    assert isinstance(done, Processed), done
                    session.take(work, done)
    rows = {stage.name: by_bucket(session, stage) for stage in topology.stages}
    digests = {stage.name: session.log.ledger.digests(stage.name) for stage in topology.stages}
    session.close()
    return rows, digests


def by_bucket(session: SlotSession, stage: plan.Stage) -> dict[int, Counter[Any]]:
    """Return how often each row of a stream is in each bucket."""
    frames = session.log.ledger.frames(stage.name, FIRST_BUCKET, 2**62)
    found = {}
    for bucket in range(FIRST, LAST):
        rows = pa.Table.from_batches(rows_in_order(session.store, frames, SCHEMA, bucket, bucket + 1), SCHEMA)
        times = rows["at"].cast(pa.int64()).to_pylist()
        found[bucket] = Counter(zip(rows["item"].to_pylist(), rows["n"].to_pylist(), times, strict=True))
    return {bucket: counted for bucket, counted in found.items() if counted}


@QUICK
@given(st.randoms(use_true_random=False), st.sampled_from([1, 3, 5]))
def test_a_topology_by_chance_gives_what_its_rules_say_in_waves_of_any_size(
    chooser: random.Random, shards: int
) -> None:
    specs, sources = some_specs(chooser, WIDTH_US), some_input(chooser)
    # So few rows are never put in the order of the shards they go to, unless it is asked for.
    least = chooser.choice([0, 0.4, 16])
    with (
        tempfile.TemporaryDirectory() as first,
        tempfile.TemporaryDirectory() as second,
        mock.patch.object(destinations, "ROWS_OF_SHARD_MIN", least),
    ):
        rows, digests = run(Path(first), specs, sources, shards, chooser)
        for name, buckets in expected(specs, sources, LAST - 1).items():
            assert rows[name] == {bucket: Counter(some) for bucket, some in buckets.items()}, name
        assert run(Path(second), specs, sources, shards, chooser) == (rows, digests)
