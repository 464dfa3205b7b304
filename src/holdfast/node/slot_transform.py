"""The rows of a transform on both sides of Spark: out of the frames of its input, into the frames of its own stream.

Invariants:
    * A row goes out with its place in the log in two columns, and what is made of it comes back with them. So the
      bucket and shard of a row that comes out are those of the row that it was made of.
    * Rows come back shard by shard, each in the order of its buckets. Any other order is an error, never a frame.
    * No pyspark: the same code runs in a Spark task and in a test.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import PipelineFailed
from holdfast.node.messages import ProcessWork, UnitProcessed
from holdfast.node.slot_context import SlotContext
from holdfast.node.slot_input import FrameReader, input_rows
from holdfast.node.slot_units import append_output
from holdfast.operators.columns import Words
from holdfast.operators.digest import digest_rows
from holdfast.operators.phases import Phases
from holdfast.operators.stage import StreamRows, UnitOperator
from holdfast.operators.union import BucketRuns, conform, read_schema
from holdfast.plan import BUCKET_COLUMN, PLACE_COLUMN, POSITION_BITS, Stage


class TransformReader:
    """Reads what transforms of one pipeline read."""

    def __init__(self, context: SlotContext) -> None:
        self._context = context
        self._frames = FrameReader(context.store, context.sources, context.topology.bucket_width_us)

    def rows(self, work: ProcessWork, shard: int) -> pa.RecordBatch:
        """Return the input's rows of one shard with their places, in the order of the stream."""
        stage = self._context.stages[work.stage]
        frames = self._frames.read(stage, work.frames)
        topology = self._context.topology
        width_us = topology.bucket_width_us
        runs = input_rows(stage, self._context.sources, [shard], frames, width_us, topology.shards)
        found = self._operator(stage, shard).ordered(runs, work.bucket_from, work.bucket_to)
        return with_places(found.batch, found.runs, shard)

    def _operator(self, stage: Stage, shard: int) -> UnitOperator:
        """Return what orders rows of the input; it does nothing else to them."""
        schema = stage.inputs[0].schema
        alone = msgspec.structs.replace(stage, schema=schema, union_schema=schema)
        topology = self._context.topology
        width_us = topology.bucket_width_us
        return UnitOperator(alone, shard, topology.shards, None, (), topology.session_time_zone, width_us)


def with_places(batch: pa.RecordBatch, runs: BucketRuns, shard: int) -> pa.RecordBatch:
    """Return rows, which are in runs of buckets, with the two columns of their places."""
    counts = np.diff(runs.ends, prepend=0)
    starts = np.repeat(runs.ends - counts, counts)
    places = np.arange(batch.num_rows, dtype=np.int64) - starts + (shard << POSITION_BITS)
    columns = [*batch.columns, pa.array(np.repeat(runs.buckets, counts)), pa.array(places)]
    return pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, BUCKET_COLUMN, PLACE_COLUMN])


class TransformWriter:
    """Takes the rows that one task made, and appends them to its own segment."""

    def __init__(self, context: SlotContext, work: ProcessWork, ordered: bool) -> None:
        self._context = context
        self._work = work
        self._ordered = ordered
        self._stage = context.stages[work.stage]
        self._schema = read_schema(self._stage.schema)
        self._units = {unit.shard: unit for unit in work.units}

    def write(self, batches: Iterable[pa.RecordBatch], bucket: int | None = None) -> list[UnitProcessed]:
        """Append the rows, sync them, and return what became of each shard that has some.

        `bucket` is that of all rows, where the function has seen one bucket at a time: then their places do not say it.
        """
        found = [batch for batch in batches if batch.num_rows]
        if not found:
            return []
        whole = pa.concat_batches(found)
        places = np.asarray(whole.column(PLACE_COLUMN))
        buckets = np.asarray(whole.column(BUCKET_COLUMN)) if bucket is None else np.full(len(places), bucket, np.int64)
        what = f"the rows of transform {self._stage.name!r}"
        rows = conform(whole.select(whole.schema.names[:-2]), self._schema, what)
        shards = places >> POSITION_BITS
        self._check(shards, buckets, places)
        ends = [*(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)]
        units = [
            self._write_unit(int(shards[start]), rows.slice(start, end - start), buckets[start:end])
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        self._context.sync()
        return units

    def _write_unit(self, shard: int, batch: pa.RecordBatch, buckets: Words) -> UnitProcessed:
        ends = np.append(np.flatnonzero(np.diff(buckets)) + 1, len(buckets))
        names = buckets[ends - 1].tolist()
        work = self._work
        rows = StreamRows(self._stage.name, work.bucket_from, work.bucket_to, batch, names, ends.tolist())
        unit = self._units[shard]
        published = append_output(self._context, Phases(), unit, rows, self._stage.name, unit.publish_from)
        counts = np.diff(ends, prepend=0).tolist()
        digests = list(zip(names, counts, digest_rows(batch, rows.row_ends), strict=True))
        return UnitProcessed(shard, published, digests, 0, 0)

    def _check(self, shards: Words, buckets: Words, places: Words) -> None:
        """Raise where rows do not come in the order that makes their positions the same in every grouping."""
        inside = (buckets >= self._work.bucket_from) & (buckets < self._work.bucket_to)
        falls = (np.diff(shards) < 0) | ((np.diff(shards) == 0) & (np.diff(buckets) < 0))
        if not self._ordered:
            falls |= (np.diff(shards) == 0) & (np.diff(buckets) == 0) & (np.diff(places) < 0)
        if not inside.all() or falls.any() or not set(np.unique(shards).tolist()) <= self._units.keys():
            raise PipelineFailed(
                f"the rows of transform {self._stage.name!r} came back from Spark in another order than they went, for "
                f"the buckets [{self._work.bucket_from}, {self._work.bucket_to}); nothing of them was committed. Split "
                "the function into simpler ones, each with a name of its own, and please report this"
            )
