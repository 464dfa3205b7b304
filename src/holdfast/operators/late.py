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
from holdfast.operators.columns import Words, fixed_words, plain
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
            rows = _sources(part, inside, runners[part.input])
            found.setdefault(part.input, []).append((take_rows(part.source, rows), part.source_times[rows]))
    for number, parts in sorted(found.items()):
        times = np.concatenate([times for _, times in parts])
        batch = pa.concat_batches([batch for batch, _ in parts])
        order = np.argsort(times // bucket_width_us, kind="stable")
        yield number, (take_rows(batch, order), bucket_runs(times[order] // bucket_width_us, 1))


def _sources(part: Slice, late: Words, runner: StepRunner) -> Words:
    """Return the source rows that the given late rows of the slice come from."""
    if part.origin is not None:
        return np.unique(part.origin[late])
    # Within a slice, which is one bucket here, the event time alone says what is late. Only for the few slices with
    # late rows, a function is asked again, row by row, which event times it makes of each.
    again = replace(runner, rejects=[], on_error="reject")
    late_times = np.unique(_event_times(part)[late])
    found = []
    for row in range(part.source.num_rows):
        source = part.source.slice(row, 1)
        times = part.source_times[row : row + 1]
        single = Slice(part.input, part.shard, part.position, source, times, source, times, np.zeros(1, np.int64))
        if bool(np.isin(_event_times(again.run(single)), late_times).any()):
            found.append(row)
    return np.array(found, np.int64)


def _event_times(part: Slice) -> Words:
    """Return the event times of rows as the steps leave them: their last column."""
    return fixed_words(plain(part.batch.columns[-1]))
