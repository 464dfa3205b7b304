"""The views of a stream: its rows alone, with what is tentative, or as changes.

Invariants:
    * `stable` has the columns of the stream and nothing else; the other views put theirs behind.
    * An `_id` is the row's identity: bucket, shard, and position among the data rows of both.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from holdfast.connect.reading import ID_TYPE, TIME_TYPE, RangeRows
from holdfast.errors import Misconfigured

View = Literal["stable", "latest", "changes"]
VIEWS: Final = get_args(View)


def check_view(view: str) -> None:
    """Raise for a view that is not known."""
    if view not in VIEWS:
        raise Misconfigured(f"view {view!r} is not known; expected 'stable', 'latest' or 'changes'.")


def view_schema(schema: pa.Schema, view: View) -> pa.Schema:
    """Return the columns of a view of a stream with that schema."""
    if view == "latest":
        return schema.append(pa.field("_tentative", pa.bool_(), nullable=False))
    if view == "changes":
        for name, kind in (("_type", pa.string()), ("_time", TIME_TYPE), ("_id", ID_TYPE)):
            schema = schema.append(pa.field(name, kind, nullable=False))
    return schema


def viewed(rows: RangeRows, schema: pa.Schema, view: View) -> pa.Table:
    """Return stable rows with the columns of the view."""
    table, count = rows.table, rows.table.num_rows
    columns = list(table.columns)
    if view == "latest":
        columns.append(pa.array(np.zeros(count, bool)))
    elif view == "changes":
        columns.append(pa.repeat(pa.scalar("STABLE"), count))
        columns.append(pa.array(rows.times_us).cast(TIME_TYPE))
        parts = [pa.array(rows.buckets), pa.array(rows.shards.astype(np.int32)), pa.array(rows.positions())]
        columns.append(pa.StructArray.from_arrays(parts, fields=list(ID_TYPE)))
    return pa.Table.from_arrays(columns, schema=view_schema(schema, view))
