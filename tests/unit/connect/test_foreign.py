"""Another pipeline's stream, as a node sees it: under its own name, complete when it is complete over there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from tests.unit.node.slot_session import SlotSession, topology_of
from tests.unit.node.stages import some_rows, stage_of
from tests.unit.operators.harness import WIDTH_US

from holdfast import plan
from holdfast.connect.catalog import create_or_check, locate
from holdfast.connect.foreign import ForeignStream, declared_as, hold
from holdfast.connect.lease import leases
from holdfast.errors import Misconfigured, SchemaMismatch
from holdfast.log.ledger import Ledger
from holdfast.log.local_store import LocalStore
from holdfast.model import FIRST_BUCKET

SHARDS = 3
STAGE = stage_of("running")


@pytest.fixture
def first(tmp_path: Path) -> Iterator[SlotSession]:
    """A pipeline of three shards with rows in buckets 100 to 104."""
    store = LocalStore(tmp_path / "first")
    topology = topology_of(STAGE, SHARDS)
    create_or_check(store, topology)
    session = SlotSession(tmp_path, topology, store=store)
    for bucket in range(100, 105):
        session.feed("north", some_rows(1, bucket, 30), bucket)
    session.promise(110)
    session.attach_all()
    yield session
    session.close()


def reading(first: SlotSession, stream: str) -> tuple[plan.Source, plan.Topology]:
    """Return a source of another pipeline, of two shards, that reads the stream as `theirs`."""
    found = declared_as(locate(first.store.url, stream))
    source = plan.Source("theirs", found.schema.serialize().to_pybytes(), found.origin, tuple_time=found.tuple_time)
    return source, plan.Topology("second", 2, WIDTH_US, [source], [], [])


def followed(stream: ForeignStream, ledger: Ledger) -> Ledger:
    for item in stream.poll():
        ledger.apply(item)
    return ledger


def test_a_bucket_is_complete_here_when_every_unit_over_there_has_it(first: SlotSession) -> None:
    foreign = ForeignStream(*reading(first, STAGE.name))
    ledger = followed(foreign, Ledger(2, WIDTH_US))
    assert ledger.stream_bucket_end("theirs") is None
    first.process(103, [0, 1])
    assert followed(foreign, ledger).stream_bucket_end("theirs") is None, "one of three units has not begun"
    first.process(102, [2])
    assert followed(foreign, ledger).stream_bucket_end("theirs") == 102
    theirs = [frame.frame for frame in first.log.ledger.all_frames(STAGE.name)]
    assert [frame.frame for frame in ledger.all_frames("theirs")] == theirs
    foreign.close()


def test_who_comes_later_is_told_all_of_it_and_what_was_trimmed(first: SlotSession) -> None:
    first.process(104)
    foreign = ForeignStream(*reading(first, "north"))
    ledger = followed(foreign, Ledger(2, WIDTH_US))
    assert ledger.stream_bucket_end("theirs") == 110
    assert len(ledger.frames("theirs", FIRST_BUCKET, 110)) == 5
    first.trim(102)
    assert followed(foreign, ledger).trimmed_before("theirs") == 102
    later = ForeignStream(*reading(first, "north"))
    assert followed(later, Ledger(2, WIDTH_US)).trimmed_before("theirs") == 102
    foreign.close()
    later.close()


def test_what_is_held_never_goes_back(first: SlotSession) -> None:
    source, topology = reading(first, "north")
    hold(source, topology)
    (lease,) = leases(first.store, "north")
    assert (lease.name, lease.bucket) == ("second.theirs", FIRST_BUCKET)
    hold(source, topology, 103)
    hold(source, topology)
    (renewed,) = leases(first.store, "north")
    assert renewed.bucket == 103 and renewed.expires_at_us > lease.expires_at_us


def test_other_buckets_and_other_columns_are_refused(first: SlotSession) -> None:
    source, topology = reading(first, "north")
    with pytest.raises(Misconfigured, match="this pipeline of 50 ms"):
        ForeignStream(source, msgspec.structs.replace(topology, bucket_width_us=50_000))
    other = pa.schema([("item", pa.int64())]).serialize().to_pybytes()
    with pytest.raises(SchemaMismatch, match="was made for item int64"):
        ForeignStream(msgspec.structs.replace(source, schema=other), topology)


def test_what_is_held_no_more_does_not_count_as_kept(first: SlotSession) -> None:
    """The other pipeline may delete it at any moment: no stage begins there."""
    source, topology = reading(first, "north")
    hold(source, topology, 103)
    foreign = ForeignStream(source, topology)
    assert followed(foreign, Ledger(2, WIDTH_US)).trimmed_before("theirs") == 103
    foreign.close()
