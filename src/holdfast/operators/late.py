"""Late rows as they are in the log, for the side stream of their input.

Invariants:
    * A late row is put out whole, with its source's columns, in the bucket it was logged in, once.
    * Where a function of the user's made the row, the source row it made it of is put out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast import plan
from holdfast.operators.columns import Words
from holdfast.operators.sharding import take_rows
from holdfast.operators.steps import StepRunner
from holdfast.operators.union import BucketRuns, Slice, UnionRows, bucket_runs


def late_rows(
    union: UnionRows,
    late: np.ndarray[Any, np.dtype[np.bool_]],
    inputs: Sequence[plan.StageInput],
    runners: Sequence[StepRunner],
    bucket_width_us: int,
) -> Iterator[tuple[int, tuple[pa.RecordBatch, BucketRuns]]]:
    """Yield each input that keeps late rows, with those among the union's rows that `late` marks."""
    places = np.flatnonzero(late)
    if union.places is not None:
        places = np.sort(union.places[places])
    found: dict[int, list[tuple[pa.RecordBatch, Words]]] = {}
    first = 0
    for part in union.slices:
        end = first + len(part.times)
        inside = places[np.searchsorted(places, first) : np.searchsorted(places, end)] - first
        first = end
        if len(inside) and inputs[part.input].late == "side":
            rows = np.unique(_origins(part, runners[part.input])[inside])
            found.setdefault(part.input, []).append((take_rows(part.source, rows), part.source_times[rows]))
    for number, parts in sorted(found.items()):
        times = np.concatenate([times for _, times in parts])
        batch = pa.concat_batches([batch for batch, _ in parts])
        order = np.argsort(times // bucket_width_us, kind="stable")
        yield number, (take_rows(batch, order), bucket_runs(times[order] // bucket_width_us, 1))


def _origins(part: Slice, runner: StepRunner) -> Words:
    """Return which source row each row of the slice comes from."""
    if part.origin is not None:
        return part.origin
    # Only here, for the few slices with late rows, a function is asked again, row by row.
    again = replace(runner, rejects=[])
    counts = np.zeros(part.source.num_rows, np.int64)
    for row in range(part.source.num_rows):
        source = part.source.slice(row, 1)
        times = part.source_times[row : row + 1]
        single = Slice(part.input, part.shard, part.position, source, times, source, times, np.zeros(1, np.int64))
        counts[row] = len(again.run(single).times)
    if int(counts.sum()) != len(part.times):
        # The function does not treat each row on its own: any row of the slice may have made the late ones.
        return np.resize(np.arange(part.source.num_rows), len(part.times))
    return np.repeat(np.arange(part.source.num_rows), counts)
