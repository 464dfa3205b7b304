"""A slot at work on stages that read stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.unit.node.chain import BUCKETS, FIRST, chain_of, schema_of
from tests.unit.node.slot_session import SlotSession

from holdfast.model import FIRST_BUCKET, NO_WATERMARK
from holdfast.node.ranges import rows_in_order
from holdfast.operators import destinations
from holdfast.operators.keys import shard_of
from holdfast.operators.sharding import hash_rows


def run(session: SlotSession, ends: Sequence[int]) -> SlotSession:
    """Run both stages up to each of the buckets."""
    for stage in ("totals", "behind"):
        session.turn_to(stage).attach_all()
    for end in ends:
        for stage in ("totals", "behind"):
            session.turn_to(stage).process(end)
    return session


def made_by_bucket(session: SlotSession) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of `totals` in the stream's order: shard by shard within each bucket."""
    frames = session.log.ledger.frames("totals", FIRST_BUCKET, 2**62)
    schema = schema_of(session.topology.stages[0])
    found = {}
    for bucket in range(FIRST, FIRST + BUCKETS):
        batches = rows_in_order(session.store, frames, schema, bucket, bucket + 1)
        found[bucket] = [row for batch in batches for row in batch.to_pylist()]
    return found


@pytest.mark.parametrize("key", ["item", "least", None])
@pytest.mark.parametrize("ends", [[FIRST + BUCKETS], [*range(FIRST + 1, FIRST + BUCKETS + 1)]])
def test_every_row_is_read_by_one_unit_in_the_order_of_bucket_shard_and_position(
    tmp_path: Path, key: str | None, ends: list[int]
) -> None:
    session = run(chain_of(tmp_path, key), ends)
    expected: list[tuple[Any, ...]] = []
    groups: dict[Any, list[Any]] = {}
    for rows in made_by_bucket(session).values():
        changed = {}
        for row in rows:
            group = row[key] if key else ()
            groups.setdefault(group, []).append(row["total"])
            changed[group] = (group, len(groups[group]), groups[group][0], groups[group][-1])
        expected += changed.values()
    found = [(row[key] if key else (), row["rows"], row["first"], row["last"]) for row in session.rows("behind")]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert len(groups) > 3 or key is None
    session.close()


def test_frames_carry_the_highest_event_time_of_each_bucket(tmp_path: Path) -> None:
    session = run(chain_of(tmp_path, "least", windowed=True), [FIRST + 4, FIRST + BUCKETS])
    schema = schema_of(session.topology.stages[0])
    tables: list[tuple[int, int]] = []
    for frame in session.log.ledger.frames("totals", FIRST_BUCKET, 2**62):
        header, batch = session.read(frame, schema)
        times = batch.column("latest").cast(pa.int64()).to_pylist()
        starts = [0, *header.bucket_row_ends[:-1]]
        for (bucket, highest), start, end in zip(header.bucket_table, starts, header.bucket_row_ends, strict=True):
            assert highest == max((time for time in times[start:end] if time is not None), default=NO_WATERMARK)
            tables.append((bucket, highest))
    assert len({bucket for bucket, _ in tables}) > 5
    # Windows behind them close by these alone, and none is lost.
    assert len(session.rows("behind")) > 5
    session.close()


@pytest.mark.parametrize("key", ["item", "least"])
def test_without_memory_a_later_stage_is_rebuilt_from_what_the_one_before_has_put_out(tmp_path: Path, key: str) -> None:
    undisturbed = run(chain_of(tmp_path / "a", key, windowed=True), [FIRST + BUCKETS])
    session = run(chain_of(tmp_path / "b", key, windowed=True), [FIRST + 2, FIRST + 5])
    session.restart(memory=False)
    for stage in ("totals", "behind"):
        session.turn_to(stage).attach_all()
        session.catch_up()
        session.process(FIRST + BUCKETS)
    assert session.digests() == undisturbed.turn_to("behind").digests()
    session.close()
    undisturbed.close()


def test_rows_in_the_order_of_where_they_go_stay_so_when_a_part_of_their_wave_is_out_already(tmp_path: Path) -> None:
    with mock.patch.object(destinations, "ROWS_OF_SHARD_MIN", 0):
        undisturbed = run(chain_of(tmp_path / "a", "least", ordered=True), [FIRST + BUCKETS])
        session = run(chain_of(tmp_path / "b", "least", ordered=True), [FIRST + 4])
        session.restart(memory=False)
        for stage in ("totals", "behind"):
            session.turn_to(stage).attach_all()
            session.process(FIRST + BUCKETS)
    schema = schema_of(session.topology.stages[0])
    frames = session.log.ledger.frames("totals", FIRST_BUCKET, 2**62)
    assert len(frames) > session.shards
    for frame in frames:
        header, batch = session.read(frame, schema)
        assert header.destination_by == ["least"]
        shard = shard_of(hash_rows(batch, ["least"]), session.shards)
        for destination in range(session.shards):
            rows, *_ = destinations.rows_for(header.destination_ends, len(header.bucket_table), [destination])
            assert rows.tolist() == [row for row in range(batch.num_rows) if shard[row] == destination]
    for stage in ("totals", "behind"):
        assert session.turn_to(stage).digests() == undisturbed.turn_to(stage).digests()
    # Whoever picks by hash gets the same rows in the same order.
    unordered = run(chain_of(tmp_path / "c", "least"), [FIRST + BUCKETS])
    assert session.digests() == unordered.digests()
    for each in (undisturbed, session, unordered):
        each.close()
