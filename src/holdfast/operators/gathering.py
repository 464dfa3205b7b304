"""The rows of a wave as a stage's units see them: each input's, as its steps leave them, in the union's order.

Invariants:
    * What is gathered follows from the frames and the buckets. Where units pick their rows by key, it is the same for
      all of them: it is gathered once for a wave, and each unit takes what is its own.
    * A unit's own rows keep their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast import plan
from holdfast.model import bucket_of
from holdfast.operators.columns import Words
from holdfast.operators.keys import EncodedKeys, KeyLayout, encode_keys, shard_of
from holdfast.operators.partitioning import partition
from holdfast.operators.sharding import group_by_shard
from holdfast.operators.steps import StepRunner
from holdfast.operators.union import (
    InputRows,
    Seen,
    Slice,
    UnionRows,
    bucket_runs,
    merge,
    seen_event_times,
    tuple_times,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of the buckets `[bucket_from, bucket_to)`, and the event times of the frames they were in.

    `keys` are those of the rows, of a stage that has any. `by_shard` is the rows' numbers shard by shard, and where
    each shard's end, where units have to pick.
    """

    bucket_from: int
    bucket_to: int
    runners: Sequence[StepRunner]
    union: UnionRows
    seen: Seen
    keys: EncodedKeys | None = None
    by_shard: tuple[Words, Words] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether there is no row, nor has there been one that a step rejected."""
        return len(self.union.times) == 0 and not any(runner.rejects for runner in self.runners)

    def of(self, shard: int) -> Gathered:
        """Return what the unit of a shard works on."""
        if self.by_shard is None:
            return self
        assert self.keys is not None, "rows are picked by their keys"
        order, ends = self.by_shard
        rows = order[ends[shard - 1] if shard else 0 : ends[shard]]
        if len(rows) == len(self.union.times):
            return replace(self, by_shard=None)
        return replace(self, union=self.union.take(rows), keys=self.keys.take(rows), by_shard=None)


class Gatherer:
    """Gathers for the units of one stage. `columns` are what an aggregation needs of each row, its keys first."""

    def __init__(
        self,
        stage: plan.Stage,
        shards: int,
        functions: Sequence[Any],
        bucket_width_us: int,
        columns: plan.Project | None,
        keys: KeyLayout | None,
        schema: pa.Schema,
        lines: Mapping[str, str],
    ) -> None:
        self._stage = stage
        self._shards = shards
        self._functions = functions
        self._bucket_width_us = bucket_width_us
        self._columns = columns
        self._keys = keys
        self._schema = schema
        self._lines = lines

    def gather(
        self,
        runs: Sequence[Sequence[InputRows]],
        bucket_from: int,
        bucket_to: int,
        shard: int,
        seen: Seen | None = None,
    ) -> Gathered:
        """Bring the rows of each input's frames, in commit order, together. `shard` is whose rows they are, if one's.

        `seen` are the event times of all frames of the wave, where `runs` are not all of them.
        """
        assert len(runs) == len(self._stage.inputs), "one list of frames for each input"
        buckets = bucket_from, bucket_to
        if seen is None:
            timed = [source.event_time is not None for source in self._stage.inputs]
            seen = seen_event_times(runs, timed, self._bucket_width_us)
        seen = [each for each in seen if bucket_from <= each[0] < bucket_to]
        runners = [self._runner(number) for number in range(len(runs))]
        slices = [
            runners[number].run(part)
            for number, frames in enumerate(runs)
            for part in self._cut_all(number, frames, buckets, shard, runners[number].calls_functions)
        ]
        union = merge(slices, self._schema, self._bucket_width_us)
        gathered = Gathered(bucket_from, bucket_to, runners, union, seen)
        if self._keys is None:
            return gathered
        keys = encode_keys(self._keys, union.batch.columns[: len(self._keys.parts)], len(union.times))
        if self._stage.sharded or (self._shards == 1 and self._stage.partition_by is None):
            return replace(gathered, keys=keys)
        return replace(gathered, keys=keys, by_shard=group_by_shard(self._shards_of(union.batch, keys), self._shards))

    def _shards_of(self, batch: pa.RecordBatch, keys: EncodedKeys) -> Words:
        """Return the shard of each row's key."""
        partitioning = self._stage.partition_by
        if partitioning is None:
            return shard_of(keys.hashes, self._shards)
        assert self._stage.aggregation is not None, "what is partitioned is keys"
        names = [key.name for key in self._stage.aggregation.keys]
        by = self._functions[partitioning.function]
        return partition(by, names, batch.columns[: len(names)], keys, self._shards)

    def _runner(self, number: int) -> StepRunner:
        """Return what runs an input's steps and, as the last one, the aggregation's own expressions."""
        source = self._stage.inputs[number]
        steps = list(source.steps)
        if self._columns is not None:
            steps.append(self._columns)
        return StepRunner(source.stream, steps, source.on_error, self._functions, self._bucket_width_us, self._lines)

    def _cut_all(
        self, number: int, frames: Sequence[InputRows], buckets: tuple[int, int], shard: int, by_bucket: bool
    ) -> list[Slice]:
        positions: dict[tuple[int, int], int] = {}
        own = shard if self._stage.sharded else None
        return [part for frame in frames for part in self._cut(number, frame, buckets, own, positions, by_bucket)]

    def _cut(
        self,
        number: int,
        frame: InputRows,
        buckets: tuple[int, int],
        own: int | None,
        positions: dict[tuple[int, int], int],
        by_bucket: bool,
    ) -> list[Slice]:
        """Return a frame's rows of this wave's buckets: one slice, or one for each bucket."""
        if frame.batch.num_rows == 0:
            return []
        width = self._bucket_width_us
        times = tuple_times(frame)
        if frame.stamp_us is not None:
            inside = buckets[0] <= bucket_of(frame.stamp_us, width) < buckets[1]
            cuts = [0, frame.batch.num_rows] if inside else []
        else:
            cuts = self._cuts(times, buckets)
        shard = frame.shard if own is None else own
        slices = []
        starts = cuts if by_bucket else [*cuts[:1], *cuts[-1:]]
        for first, last in pairwise(starts):
            source = frame.batch.slice(first, last - first)
            position = positions.get((shard, bucket_of(int(times[first]), width)), 0)
            rows = np.arange(last - first, dtype=np.int64)
            part = times[first:last]
            places = None if frame.places is None else frame.places[first:last]
            slices.append(Slice(number, shard, position, source, part, source, part, rows, places))
        for first, last in pairwise(cuts):
            place = (shard, bucket_of(int(times[first]), width))
            positions[place] = positions.get(place, 0) + last - first
        return slices

    def _cuts(self, times: Words, buckets: tuple[int, int]) -> list[int]:
        """Return where each bucket of this wave begins in ascending tuple_times, and where the last one ends."""
        start = int(np.searchsorted(times, buckets[0] * self._bucket_width_us))
        end = int(np.searchsorted(times, buckets[1] * self._bucket_width_us))
        if start == end:
            return []
        return [start, *(bucket_runs(times[start:end], self._bucket_width_us).ends + start).tolist()]
