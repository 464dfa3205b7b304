"""Two stages, one behind the other, whose input is logged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
from tests.unit.node.slot_session import SlotSession, topology_of
from tests.unit.node.stages import AGGREGATES, SCHEMA, some_rows
from tests.unit.operators.harness import WIDTH_US, aggregate, column, make_stage

from holdfast import plan

FIRST = 100
BUCKETS = 10
LATEST = aggregate("latest", "max", column("at", SCHEMA), "timestamp")


def schema_of(stage: plan.Stage) -> pa.Schema:
    """Return the schema of what a stage puts out."""
    return pa.ipc.read_schema(pa.py_buffer(stage.schema))


def chain_of(
    folder: Path, key: str | None, windowed: bool = False, shards: int = 3, seed: int = 1, ordered: bool = False
) -> SlotSession:
    """Return `totals`, count windows by item, and behind it a stage by `key`: "item" is one-to-one.

    Rows of `totals` may be ordered by where they go to.
    """
    totals = make_stage(SCHEMA, ["item"], [*AGGREGATES, LATEST], plan.CountWindow(3, 2), inputs=("north",))
    totals = msgspec.structs.replace(totals, name="totals", event_time="latest" if windowed else None)
    made = schema_of(totals)
    behind = make_stage(
        made,
        [key] if key else [],
        [
            aggregate("rows", "count_all", None, "bigint"),
            aggregate("first", "first", column("total", made), "bigint"),
            aggregate("last", "last", column("total", made), "bigint"),
        ],
        plan.TimeWindow(column("latest", made), 2 * WIDTH_US, WIDTH_US) if windowed else None,
        inputs=("totals",),
        event_time="latest" if windowed else None,
        delay_us=WIDTH_US if windowed else 0,
        sharded=key == "item",
    )
    behind = msgspec.structs.replace(behind, name="behind")
    if ordered and key is not None:
        totals = msgspec.structs.replace(totals, shard_by=[key])
        behind = msgspec.structs.replace(behind, inputs=[msgspec.structs.replace(behind.inputs[0], keyed_by=[key])])
    topology = topology_of(totals, shards)
    session = SlotSession(folder, msgspec.structs.replace(topology, stages=[totals, behind]))
    for bucket in range(FIRST, FIRST + BUCKETS):
        session.feed("north", some_rows(seed, bucket, 30), bucket)
    session.promise(FIRST + BUCKETS)
    return session
