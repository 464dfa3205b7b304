"""`GroupedStream`: what `groupBy` gives, with the aggregate methods of PySpark's GroupedData."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast import plan
from holdfast.errors import Misconfigured, UnsupportedQuery
from holdfast.pipeline.callsite import names_the_line, users_line
from holdfast.pipeline.lineage import AggregationNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.group import GroupedData

    from holdfast.pipeline.stream import Stream


class GroupedStream:
    """A stream grouped by columns and at most one window."""

    def __init__(self, stream: Stream, columns: tuple[Any, ...]) -> None:
        if len(columns) == 1 and isinstance(columns[0], list):
            columns = tuple(columns[0])
        windows = [index for index, column in enumerate(columns) if isinstance(column, plan.CountWindow)]
        if len(windows) > 1:
            raise Misconfigured("groupBy has two count windows; one is possible")
        self._stream = stream
        self._columns = [column for column in columns if not isinstance(column, plan.CountWindow)]
        self._count_window = (windows[0], columns[windows[0]]) if windows else None

    @names_the_line
    def agg(self, *expressions: Any) -> Stream:
        """As `GroupedData.agg`, without the form that takes a dict of names."""
        if not expressions or any(isinstance(each, dict) for each in expressions):
            raise Misconfigured("agg needs columns such as F.sum('price').alias('total')")
        return self._aggregated(lambda group: group.agg(*expressions))

    @names_the_line
    def count(self) -> Stream:
        """As `GroupedData.count`: rows of each group."""
        return self._aggregated(lambda group: group.count())

    @names_the_line
    def sum(self, *columns: str) -> Stream:
        """As `GroupedData.sum`."""
        return self._aggregated(lambda group: group.sum(*columns))

    @names_the_line
    def avg(self, *columns: str) -> Stream:
        """As `GroupedData.avg`."""
        return self._aggregated(lambda group: group.avg(*columns))

    @names_the_line
    def min(self, *columns: str) -> Stream:
        """As `GroupedData.min`."""
        return self._aggregated(lambda group: group.min(*columns))

    @names_the_line
    def max(self, *columns: str) -> Stream:
        """As `GroupedData.max`."""
        return self._aggregated(lambda group: group.max(*columns))

    def applyInArrow(self, *arguments: Any, **options: Any) -> Stream:
        """Comes with a later version."""
        raise UnsupportedQuery(f"applyInArrow on a stream comes with a later version (at {users_line()})")

    def _aggregated(self, method: Callable[[GroupedData], DataFrame]) -> Stream:
        from holdfast.pipeline.stream import Stream
        from holdfast.spark import catalyst, types

        stream, columns = self._stream, self._columns

        def whole(frame: DataFrame) -> DataFrame:
            return method(frame.groupBy(*columns))

        found = catalyst.grouped(whole(stream._frame), len(columns), self._count_window)
        rows = types.arrow_schema(stream.schema).serialize().to_pybytes()
        node = AggregationNode(stream._node, found.aggregation, rows, whole, users_line())
        frame = catalyst.empty_frame(stream._pipeline.spark, found.schema)
        return Stream(stream._pipeline, frame, node)
