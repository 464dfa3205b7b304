"""`GroupedStream`: what `groupBy` gives, with the aggregate methods of PySpark's GroupedData."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

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
        """As `GroupedData.agg`."""
        from holdfast.spark.catalyst import is_column

        named = len(expressions) == 1 and isinstance(expressions[0], dict) and bool(expressions[0])
        if not named and not (expressions and all(is_column(each) for each in expressions)):
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

    mean = avg

    @names_the_line
    def min(self, *columns: str) -> Stream:
        """As `GroupedData.min`."""
        return self._aggregated(lambda group: group.min(*columns))

    @names_the_line
    def max(self, *columns: str) -> Stream:
        """As `GroupedData.max`."""
        return self._aggregated(lambda group: group.max(*columns))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a grouped Stream has no {name!r}; it has agg, count, sum, avg, mean, min and max")

    def applyInArrow(self, *arguments: Any, **options: Any) -> Stream:
        """Comes with a later version."""
        raise UnsupportedQuery(
            "applyInArrow on a grouped stream comes with a later version; until then aggregate with agg, and use "
            f"mapInArrow behind it (at {users_line()})"
        )

    def _aggregated(self, method: Callable[[GroupedData], DataFrame]) -> Stream:
        from holdfast.pipeline.stream import Stream
        from holdfast.spark import catalyst, types

        catalyst.check_windows(self._columns)
        stream, columns = self._stream, self._columns

        def whole(frame: DataFrame) -> DataFrame:
            return method(frame.groupBy(*columns))

        found = catalyst.grouped(whole(stream._frame), len(columns), self._count_window)
        rows = types.arrow_schema(stream.schema).serialize().to_pybytes()
        node = AggregationNode(stream._node, found.aggregation, rows, whole, users_line())
        frame = catalyst.empty_frame(stream._pipeline.spark, found.schema)
        return Stream(stream._pipeline, frame, node)
