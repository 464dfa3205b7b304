"""Rows of a stream that got more columns: bring what was written with one of its schemas to another one.

Invariants:
    * Columns are found by name, and a column never changes its type. One that a row was written without is null.
"""

from __future__ import annotations

import pyarrow as pa


def widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of `schema`: null where there is none, and no others."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    there = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
