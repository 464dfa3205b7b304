"""What a pipeline does, as plain data: the contract between the front end, the node and the slots.

The front end (`pipeline`, `spark.catalyst`) makes it, `pipeline.json` keeps it, operators run it. No I/O, no Spark.

Invariants:
    * Everything but the user's own functions is here and is JSON. A function is named by its number in the table
      that travels with the standing RDDs.
    * A type is Spark's own text for it (`DataType.simpleString()`); a schema is an Arrow schema, serialized.
"""

from __future__ import annotations

from typing import Literal as OneOf

import msgspec


class Column(msgspec.Struct, frozen=True, tag="column", tag_field="node"):
    """A column of the rows at hand, by name; names are unique there."""

    name: str
    type: str


class Constant(msgspec.Struct, frozen=True, tag="constant", tag_field="node"):
    """A literal. Text for decimals and strings, microseconds for timestamps, days for dates, base64 for binary."""

    value: bool | int | float | str | None
    type: str


class Call(msgspec.Struct, frozen=True, tag="call", tag_field="node"):
    """A function of our Arrow expression engine; `cast` is one too, with its target as `type`."""

    function: str
    arguments: list[Expression]
    type: str


Expression = Column | Constant | Call


class Named(msgspec.Struct, frozen=True):
    """An expression and the column it becomes."""

    name: str
    expression: Expression
    nullable: bool = True


class Project(msgspec.Struct, frozen=True, tag="project"):
    """New columns from each row."""

    columns: list[Named]


class Filter(msgspec.Struct, frozen=True, tag="filter"):
    """Keep the rows where the condition is true (not null)."""

    condition: Expression


class MapInArrow(msgspec.Struct, frozen=True, tag="map_in_arrow"):
    """A user's function from an iterator of batches to an iterator of batches, row by row as to its meaning."""

    function: int
    name: str
    schema: bytes
    on_error: OneOf["stop", "reject"] = "stop"


Step = Project | Filter | MapInArrow


class TimeWindow(msgspec.Struct, frozen=True, tag="time_window"):
    """`F.window`: half-open windows of event time, `[start, start + size)`, one every `slide`."""

    event_time: Expression
    size_us: int
    slide_us: int
    start_us: int = 0


class CountWindow(msgspec.Struct, frozen=True, tag="count_window"):
    """`hf.count_window`: window `k` of a key has its tuples `[k * slide, k * slide + size)`."""

    size: int
    slide: int


class Aggregate(msgspec.Struct, frozen=True):
    """One aggregate function over one expression. `name` is the column that `Aggregation.outputs` refer to.

    `function` is one of count, count_all, sum, min, max, avg, stddev_samp, stddev_pop, var_samp, var_pop, first, last.
    `type` is the result's; `ansi` says that an overflow is an error (Spark's default), else null or wrapped as Spark.
    """

    name: str
    function: str
    argument: Expression | None
    type: str
    ignore_nulls: bool = False
    ansi: bool = True


class Aggregation(msgspec.Struct, frozen=True):
    """The stateful step of a stage: keys, a window or none (a running aggregate), aggregates.

    `outputs` are over the columns named by `keys`, the aggregates' names, and `window_column` (a struct).
    """

    keys: list[Named]
    aggregates: list[Aggregate]
    outputs: list[Named]
    window: TimeWindow | CountWindow | None = None
    window_column: str = "window"


class StageInput(msgspec.Struct, frozen=True):
    """A stream that a stage reads, and what is done to its rows before the union.

    `stream` is a source or a stage before this one. `event_time` and `delay_us` come from `withWatermark`: a column of
    the stream's own rows.
    """

    stream: str
    schema: bytes
    steps: list[Step]
    late: OneOf["drop", "side"] = "drop"
    on_error: OneOf["stop", "reject"] = "stop"
    event_time: str | None = None
    delay_us: int = 0
    keyed_by: list[str] = []
    """The stream's columns that are the stage's keys, in order, where units pick their rows by the hash of these."""


class Partitioning(msgspec.Struct, frozen=True):
    """A user's function from a batch of keys to a whole number for each, which modulo the shards is the key's shard."""

    function: int
    name: str


class Transform(msgspec.Struct, frozen=True):
    """A user's function from DataFrame to DataFrame, which Spark runs as jobs over ranges of committed buckets.

    Only the program that declares the pipeline has the function; slots know of it by its name. `order_by` are columns
    of the result that order the rows within a bucket and shard, before the place of the rows they were made of.
    """

    name: str
    order_by: list[str] = []


class Stage(msgspec.Struct, frozen=True):
    """Inputs with the same columns, at most one stateful step, then row-wise steps; its output stream has its name.

    `union_schema` is that of the rows that reach the aggregation (or, without one, `steps`).
    """

    name: str
    inputs: list[StageInput]
    union_schema: bytes
    aggregation: Aggregation | None
    steps: list[Step]
    schema: bytes
    checkpoint_every_us: int | None = 10_000_000
    sharded: bool = False
    """Whether every input is sharded by the aggregation's keys when it is logged, so that a shard reads its rows."""
    event_time: str | None = None
    """The column of the output that a stage behind this one has a watermark on: frames carry its highest value."""
    event_time_edge: OneOf["start", "end"] | None = None
    """Which edge of this stage's own windows that column is, if one: then its watermark says which may still come."""
    partition_by: Partitioning | None = None
    """What decides the shard of a key instead of its hash."""
    shard_by: list[str] = []
    """The output's columns by whose hash all stages behind pick; a bucket's rows are in the order of those shards."""
    transform: Transform | None = None
    """Then there is one input and no step: Spark does all that stands between its rows and those of the stage."""


class FilesSource(msgspec.Struct, frozen=True, tag="files"):
    """`hf.files`."""

    path: str
    format: OneOf["parquet", "csv", "json"]
    options: dict[str, str] = {}
    settle_us: int = 500_000


class ProducerSource(msgspec.Struct, frozen=True, tag="producer"):
    """Rows come from `hf.Producer` in other processes."""

    size_bytes_max: int = 4 << 30


class QuerySource(msgspec.Struct, frozen=True, tag="query"):
    """Rows come from a Structured Streaming query, which the node's session runs."""

    size_bytes_max: int = 4 << 30


class StreamSource(msgspec.Struct, frozen=True, tag="stream"):
    """Rows are read where another pipeline keeps them: `url` is its folder. `kind` says how its frames are timed."""

    url: str
    stream: str
    kind: OneOf["source", "stage"]


class Source(msgspec.Struct, frozen=True):
    """A stream that enters the pipeline. The hash of its columns `shard_by` gives a row's shard (none: shard 0)."""

    name: str
    schema: bytes
    origin: FilesSource | ProducerSource | QuerySource | StreamSource
    shard_by: list[str] = []
    tuple_time: str | None = None
    event_time: str | None = None
    late: OneOf["drop", "side"] = "drop"
    on_error: OneOf["stop", "reject"] = "stop"
    rejects_max: int = 1000
    earlier: list[bytes] = []
    """The schemas that the source had before it got more columns, the oldest first: frames of each may be there."""

    @property
    def has_own_writer(self) -> bool:
        """Whether somebody with a journal of their own logs the rows in this store, and the node follows."""
        return isinstance(self.origin, ProducerSource | QuerySource)

    @property
    def is_foreign(self) -> bool:
        """Whether the rows are another pipeline's."""
        return isinstance(self.origin, StreamSource)


class ParquetSink(msgspec.Struct, frozen=True, tag="parquet"):
    """`hf.parquet`: one file for a range of buckets."""

    path: str
    every_us: int = 1_000_000


class ConsoleSink(msgspec.Struct, frozen=True, tag="console"):
    """`hf.console`."""

    rows: int = 20


class Sink(msgspec.Struct, frozen=True):
    """Where a stream goes. `start` is where a sink begins that the store has not seen before."""

    name: str
    stream: str
    target: ParquetSink | ConsoleSink
    start: OneOf["earliest", "latest"] = "earliest"


class Topology(msgspec.Struct, frozen=True):
    """The whole pipeline, as `pipeline.json` keeps it. A stage stands behind the stages that it reads."""

    name: str
    shards: int
    bucket_width_us: int
    sources: list[Source]
    stages: list[Stage]
    sinks: list[Sink]
    session_time_zone: str = "UTC"


REJECTS = ".rejects"
"""What follows the name of a stream in that of its rejected rows."""

REJECTS_COLUMNS = ("reason", "origin", "row")
"""All strings: why, where (file and row, or stream, shard, bucket and position), and the row as JSON text."""

BUCKET_COLUMN = "__holdfast_bucket"
PLACE_COLUMN = "__holdfast_place"
POSITION_BITS = 40
"""Rows on their way through a transform have these two columns besides: their bucket, and
`shard << POSITION_BITS | position` in it."""
