"""`Stream`: a stream with the methods of a PySpark DataFrame.

Invariants:
    * A stream never changes; every method gives a new one.
    * Every step is called on a real DataFrame without rows, so Spark checks names and types at the call, and its errors
      are Spark's own.
    * What holdfast cannot do yet is refused at the call, never taken and left undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from holdfast import plan
from holdfast.config import check_name, interval_us
from holdfast.errors import Misconfigured, UnsupportedQuery
from holdfast.operators.partition_function import PartitionFunction
from holdfast.pipeline.callsite import names_the_line, users_line
from holdfast.pipeline.checkpoints import Checkpoint, checkpoint_every_us
from holdfast.pipeline.lineage import (
    MapNode,
    Node,
    SourceNode,
    StageNode,
    StepNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    has_aggregation,
    has_count_window,
    has_transform,
    has_watermark,
    nodes,
    replay,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from holdfast.pipeline.grouped import GroupedStream
    from holdfast.pipeline.pipeline import Pipeline

_METHODS: Final = (
    "select, filter, where, withColumn, withColumns, withColumnRenamed, drop, union, unionByName, groupBy, "
    "withWatermark, mapInArrow, transform, named, protect, to and toSpark"
)
_LOOKS: Final = (
    "it goes on for ever: stream.toSpark().{name}(...) has what is logged so far, stream.to(hf.console()) prints rows "
    "as they come, hf.Consumer reads them"
)
_SENDS: Final = "send it to a sink, with .named('...').to(hf.parquet(path))"
_INSTEAD: Final = {
    **{name: _LOOKS.format(name=name) for name in ("show", "collect", "toPandas", "toArrow", "count", "take", "head")},
    **{name: _LOOKS.format(name=name) for name in ("first", "tail", "foreach", "foreachPartition", "toLocalIterator")},
    **{name: _SENDS for name in ("write", "writeStream", "writeTo")},
    "printSchema": "stream.schema.simpleString() is its schema",
    "explain": "pipeline.explain() draws all of it",
    "cache": "a stream with a name is kept as it is: .named('...')",
    "persist": "a stream with a name is kept as it is: .named('...')",
    "distinct": "group by the columns and take F.first, in windows",
}
"""What to do instead of what a DataFrame does at once, or a stream need not do."""


class Stream:
    """A stream of rows in a pipeline; made by `Pipeline.source` and by the methods below."""

    def __init__(self, pipeline: Pipeline, frame: DataFrame, node: Node, name: str | None = None) -> None:
        self._pipeline = pipeline
        self._frame = frame
        self._node = node
        self._name = name

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in self.schema.fields)
        return f"Stream[{f'{self._name}; ' if self._name else ''}{fields}]"

    def __getattr__(self, name: str) -> NoReturn:
        if name in _INSTEAD:
            raise AttributeError(f"a Stream has no {name!r}: {_INSTEAD[name]}")
        raise AttributeError(f"a Stream has no {name!r}; it has the columns {self.columns} and {_METHODS}")

    @property
    def schema(self) -> StructType:
        """The columns and their types, as Spark has them."""
        return self._frame.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._frame.columns

    @property
    def name(self) -> str | None:
        """The stream's name; None if it has none yet."""
        return self._name

    @names_the_line
    def select(self, *columns: Any) -> Stream:
        """As `DataFrame.select`."""
        return self._rows(lambda frame: frame.select(*columns))

    @names_the_line
    def filter(self, condition: Column | str) -> Stream:
        """As `DataFrame.filter`."""
        return self._rows(lambda frame: frame.filter(condition))

    @names_the_line
    def where(self, condition: Column | str) -> Stream:
        """As `DataFrame.where`."""
        return self._rows(lambda frame: frame.where(condition))

    @names_the_line
    def withColumn(self, name: str, column: Column) -> Stream:
        """As `DataFrame.withColumn`."""
        return self._rows(lambda frame: frame.withColumn(name, column))

    @names_the_line
    def withColumns(self, columns: dict[str, Column]) -> Stream:
        """As `DataFrame.withColumns`."""
        return self._rows(lambda frame: frame.withColumns(columns))

    @names_the_line
    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """As `DataFrame.withColumnRenamed`."""
        return self._rows(lambda frame: frame.withColumnRenamed(existing, new))

    @names_the_line
    def drop(self, *columns: Any) -> Stream:
        """As `DataFrame.drop`."""
        return self._rows(lambda frame: frame.drop(*columns))

    @names_the_line
    def union(self, other: Stream) -> Stream:
        """As `DataFrame.union`: by the place of the columns."""
        return self._with(other, lambda left, right: left.union(right))

    @names_the_line
    def unionByName(self, other: Stream, allowMissingColumns: bool = False) -> Stream:
        """As `DataFrame.unionByName`."""
        return self._with(other, lambda left, right: left.unionByName(right, allowMissingColumns=allowMissingColumns))

    @names_the_line
    def groupBy(self, *columns: Any) -> GroupedStream:
        """As `DataFrame.groupBy`, with `F.window` or `hf.count_window` among the columns, or neither."""
        from holdfast.pipeline.grouped import GroupedStream

        self._check_untransformed("groupBy")
        if has_aggregation(self._node):
            raise UnsupportedQuery(
                "this stream is aggregated already, and a stage has one groupBy; give the result a name, with "
                ".named('...'), and call the second groupBy on that"
            )
        return GroupedStream(self, columns)

    @names_the_line
    def withWatermark(self, eventTime: str, delayThreshold: str) -> Stream:
        """As `DataFrame.withWatermark`: rows may come this much later than the latest one seen."""
        self._check_untransformed("withWatermark")
        if has_aggregation(self._node):
            raise UnsupportedQuery(
                "withWatermark has to stand before groupBy, or behind the .named('...') of its result"
            )
        if has_watermark(self._node):
            raise UnsupportedQuery("this stream has a watermark already; one for each input is possible")
        if not isinstance(eventTime, str):
            raise Misconfigured(f"withWatermark needs the name of a column, and {eventTime!r} is none")
        field = self._frame.select(eventTime).schema.fields[0]
        if field.name not in self.columns or field.dataType.simpleString() not in ("timestamp", "timestamp_ntz"):
            raise Misconfigured(
                f"withWatermark needs a timestamp column, and {eventTime!r} is {field.dataType.simpleString()}"
            )
        try:
            delay_us = interval_us(delayThreshold)
        except Misconfigured as error:
            raise Misconfigured(f"the delay of withWatermark: {error}") from error
        if delay_us < 0:
            raise Misconfigured(f"the delay of a watermark is {delayThreshold!r} and must not be negative")
        return self._next(self._frame, WatermarkNode(self._node, field.name, delay_us, users_line()))

    @names_the_line
    def mapInArrow(
        self, func: Callable[..., Any], schema: StructType | str, barrier: bool = False, profile: Any = None
    ) -> Stream:
        """As `DataFrame.mapInArrow`: `func` takes an iterator of Arrow batches and gives one.

        It may be called with any cut of the rows into batches, so its result must not depend on the cut.
        """
        from holdfast.spark import catalyst, types

        if barrier or profile is not None:
            raise UnsupportedQuery("barrier and profile of mapInArrow are for batch jobs; leave them out")
        if not callable(func):
            raise Misconfigured(f"mapInArrow needs a function, and {func!r} is none")
        result = self._pipeline.struct_type(schema)
        name = _name_of(func)
        node = MapNode(
            self._node,
            func,
            name,
            types.arrow_schema(result).serialize().to_pybytes(),
            lambda frame: frame.mapInArrow(func, result),
            users_line(),
        )
        return self._next(catalyst.empty_frame(self._pipeline.spark, result), node)

    @names_the_line
    def named(self, name: str, partition_by: Callable[..., Any] | None = None) -> Stream:
        """Give the stream a name: it becomes a durable stream of the pipeline, with a stage that makes it.

        `partition_by` says where the keys of its groupBy go: a function from a RecordBatch of the key columns to an
        Arrow array of whole numbers. A row's shard is its number modulo the shards; without it, the hash of the keys.
        """
        check_name(name, "a stream")
        if partition_by is not None and not callable(partition_by):
            raise Misconfigured(f"partition_by needs a function, and {partition_by!r} is none")
        if isinstance(self._node, (SourceNode, StageNode)):
            kind = "source" if isinstance(self._node, SourceNode) else "stream"
            raise Misconfigured(f"the {kind} {self._node.name!r} has a name already; select from it for a new stream")
        by = None if partition_by is None else PartitionFunction(partition_by, _name_of(partition_by), users_line())
        self._pipeline.register_stage(name, self._node, self.schema, by)
        return Stream(self._pipeline, self._frame, StageNode(name, self._node, users_line()), name)

    @names_the_line
    def protect(
        self,
        available: str | None = None,
        checkpoint: Checkpoint = "auto",
        recover: str | None = None,
        precise: bool | None = None,
        priority: int | None = None,
    ) -> Stream:
        """Set the dials of a named stream. In this version `checkpoint` is hf.snapshot(every=...), "auto" or None."""
        if self._name is None or isinstance(self._node, SourceNode):
            raise Misconfigured("protect sets the dials of a stage; give the stream a name first, with .named('...')")
        refuse_later(available=available, recover=recover, precise=precise, priority=priority)
        self._pipeline.set_checkpoint(self._name, checkpoint_every_us(checkpoint))
        return self

    @names_the_line
    def to(self, sink: plan.ParquetSink | plan.ConsoleSink, view: str = "stable", start: str = "earliest") -> Stream:
        """Send the stream's rows to a sink.

        `start` is where a sink begins that is new: with the first rows that are kept, or "latest": with those to come.
        """
        if self._name is None:
            raise Misconfigured("a sink needs a stream with a name; call .named('...') before .to(...)")
        if view != "stable":
            raise UnsupportedQuery(f"view={view!r} comes with a later version; this one has view='stable'")
        if not isinstance(sink, (plan.ParquetSink, plan.ConsoleSink)):
            raise Misconfigured(f"{sink!r} is not a sink; it can be hf.parquet(path) or hf.console()")
        if isinstance(self._node, SourceNode):
            raise UnsupportedQuery(
                f"the source {self._name!r} cannot go to a sink as it is; make a stream of it and send that: "
                ".select('*').named('...').to(...)"
            )
        if start not in ("earliest", "latest"):
            raise Misconfigured(f"start is {start!r} and can be 'earliest' or 'latest'")
        self._pipeline.add_sink(self._name, sink, cast("Literal['earliest', 'latest']", start))
        return self

    @names_the_line
    def toSpark(self) -> DataFrame:
        """Return the very same query as an ordinary batch DataFrame over the logged input."""
        if has_count_window(self._node):
            raise UnsupportedQuery("toSpark cannot say hf.count_window, which Spark does not have")
        return replay(self._node, self._pipeline.logged_input)

    def join(self, *arguments: Any, **options: Any) -> NoReturn:
        """Comes with a later version."""
        raise _later("join", "join the DataFrames in the program that fills the source")

    @names_the_line
    def transform(
        self,
        func: Callable[..., DataFrame],
        *args: Any,
        order_by: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> Stream:
        """As `DataFrame.transform`: `func` takes a DataFrame and gives one. Spark runs it over committed buckets.

        It has to treat each row on its own; what does not is refused. `order_by` names columns of the result that order
        the rows of a bucket; without it they come in the order of the rows they were made of.
        """
        from holdfast.spark import catalyst, transform_plan

        self._check_transformable()
        if not callable(func):
            raise Misconfigured(f"transform needs a function from DataFrame to DataFrame, and {func!r} is none")
        name = getattr(func, "__qualname__", type(func).__qualname__)
        columns = _names(order_by)

        def whole(frame: DataFrame) -> DataFrame:
            return func(frame, *args, **kwargs)

        leaf = transform_plan.leaf_frame(self._pipeline.spark, self.schema, transform_plan.no_rows, 1)
        found = transform_plan.analysed(whole, leaf, columns, name)
        node = TransformNode(self._node, name, columns, found.kept, whole, users_line())
        return self._next(catalyst.empty_frame(self._pipeline.spark, found.schema), node)

    def _check_transformable(self) -> None:
        if has_aggregation(self._node) or nodes(self._node, UnionNode):
            what = "aggregated" if has_aggregation(self._node) else "a union"
            raise UnsupportedQuery(
                f"transform reads the committed buckets of one stream, and this is {what}; give it a name, with "
                ".named('...'), and call transform on that"
            )

    def _check_untransformed(self, method: str) -> None:
        if has_transform(self._node):
            raise UnsupportedQuery(
                f"{method} behind transform needs a stage of its own; give the result of transform a name, with "
                f".named('...'), and call {method} on that"
            )

    def dropDuplicatesWithinWatermark(self, *arguments: Any, **options: Any) -> NoReturn:
        """Comes with a later version."""
        raise _later(
            "dropDuplicatesWithinWatermark", "group by the columns and take F.first, or let Producer drop repeats"
        )

    def _rows(self, method: Callable[[DataFrame], DataFrame]) -> Stream:
        from holdfast.spark import catalyst

        result = method(self._frame)
        node = StepNode(self._node, tuple(catalyst.row_steps(result)), method, users_line())
        return self._next(catalyst.empty_frame(self._pipeline.spark, result.schema), node)

    def _with(self, other: Stream, method: Callable[[DataFrame, DataFrame], DataFrame]) -> Stream:
        from holdfast.spark import catalyst

        if not isinstance(other, Stream):
            raise Misconfigured(f"a stream can only be joined with a stream by union, and {other!r} is none")
        if other._pipeline is not self._pipeline:
            raise Misconfigured("the two streams of a union belong to different pipelines")
        for each in (self, other):
            each._check_untransformed("union")
        if has_aggregation(self._node) or has_aggregation(other._node):
            raise UnsupportedQuery(
                "a union behind groupBy needs a stage of its own; give each result a name, with .named('...'), and "
                "call union on those"
            )
        # Two frames of their own, so that Spark also takes a stream and something made from it.
        spark = self._pipeline.spark
        frames = [catalyst.empty_frame(spark, stream.schema) for stream in (self, other)]
        result = method(frames[0], frames[1])
        left, right = catalyst.union_steps(result)
        node = UnionNode((self._node, other._node), (tuple(left), tuple(right)), method, users_line())
        return self._next(catalyst.empty_frame(spark, result.schema), node)

    def _next(self, frame: DataFrame, node: Node) -> Stream:
        return Stream(self._pipeline, frame, node)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def refuse_later(**dials: object) -> None:
    """Refuse the dials that are not there yet."""
    for dial, value in dials.items():
        if value is not None:
            raise UnsupportedQuery(f"{dial}={value!r} comes with a later version; leave it out")


def _names(order_by: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
    if not all(isinstance(name, str) for name in names):
        raise Misconfigured(f"order_by is {order_by!r} and must be names of columns, such as ['item', 'price']")
    return names


def _later(method: str, instead: str) -> UnsupportedQuery:
    line = users_line()
    return UnsupportedQuery(f"{method} on a stream comes with a later version; until then {instead} (at {line})")
