"""What a user's function from DataFrame to DataFrame made: checked, and changed so that rows keep their place.

Invariants:
    * Only what treats each row on its own is let through; whatever else is in the analysed plan, known or not, is
      refused by name, before anything runs.
    * The two columns that say which row of the log a row was made of are in every projection of the plan, and the
      function never sees them.
    * What sees many rows in one call (a function over batches) sees those of one bucket and shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructField, StructType

from holdfast.errors import HoldfastError, Misconfigured, UnsupportedQuery
from holdfast.plan import BUCKET_COLUMN as BUCKET
from holdfast.plan import PLACE_COLUMN as PLACE
from holdfast.plan import POSITION_BITS
from holdfast.spark.catalyst_expression import JavaObject, class_name, is_java_instance, members

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FrameFunction = Callable[[DataFrame], Any]

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."


_OF_THE_RUN: Final = ("Current", "LocalTime", "Now")
"""How the names of expressions begin that are one value for a query: the time, the user, the database."""

_ROW_WISE_UDFS: Final = frozenset({100, 101})
"""The kinds of Python UDF that are called with one row: pickled and by Arrow."""

_CARRYING: Final = frozenset({"Filter", "SubqueryAlias", "View", "Generate"})
"""Nodes whose output has all that their child has: the places too, once the child has them."""

_BATCHES: Final = frozenset({"MapInArrow", "MapInPandas"})
_JOINS_LEFT: Final = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_JOINS_RIGHT: Final = frozenset({"Inner", "Cross", "RightOuter"})
_ROW_NUMBER_BITS: Final = 33

_GROUPS: Final = "what is one group depends on which rows are there together; call groupBy on the stream behind it"
_KEPT_ROWS: Final = "which rows it keeps depends on which are there together; filter by what a row itself says"
_ADVICE: Final = {
    "Aggregate": _GROUPS,
    "Deduplicate": "which row is the first depends on which are there together; call groupBy on the stream behind it",
    "Distinct": "which row is the first depends on which are there together; call groupBy on the stream behind it",
    "FlatMapGroupsInPandas": _GROUPS,
    "FlatMapGroupsInArrow": _GROUPS,
    "FlatMapCoGroupsInPandas": _GROUPS,
    "FlatMapCoGroupsInArrow": _GROUPS,
    "Pivot": _GROUPS,
    "Expand": "it is made for groups; for unpivot use selectExpr('stack(...)')",
    "Sort": "an order over all rows depends on which are there together; to order the rows of a bucket give "
    "transform(..., order_by=[...])",
    "GlobalLimit": _KEPT_ROWS,
    "LocalLimit": _KEPT_ROWS,
    "Offset": _KEPT_ROWS,
    "Tail": _KEPT_ROWS,
    "Sample": "which rows it takes depends on how they are divided; filter by a hash: F.xxhash64('key') % 10 == 0",
    "Window": "its frames depend on which rows are there together; call groupBy with F.window on the stream behind it",
    "Repartition": "how rows are divided is not the function's to say; leave it out",
    "RepartitionByExpression": "how rows are divided is not the function's to say; leave it out",
    "RebalancePartitions": "how rows are divided is not the function's to say; leave it out",
    "Intersect": _KEPT_ROWS,
    "Except": _KEPT_ROWS,
    "CollectMetrics": "what it observes is of one job; look at lastProgress of the pipeline",
    "LateralJoin": "join with a table, or use explode",
    "EventTimeWatermark": "call withWatermark on the stream behind it",
}


@dataclass(frozen=True, slots=True)
class Carried:
    """An analysed function whose rows keep their places."""

    node: JavaObject
    schema: StructType
    kept: dict[str, str]
    """The columns that are columns of the input, unchanged: new name to old."""
    by_bucket: bool
    """Whether a part of it sees more than one row in a call, so that it has to run bucket by bucket."""
    joined: bool
    united: bool


def leaf_frame(spark: SparkSession, schema: StructType, read: Callable[..., Any], partitions: int) -> DataFrame:
    """Return the rows that `read` gives in tasks, with their places; `schema` is that of the rows themselves."""
    taken = [name for name in schema.names if name.lower() in (BUCKET, PLACE)]
    if taken:
        raise Misconfigured(f"the column {taken[0]!r} has a name that holdfast uses for itself; rename it")
    whole = StructType([*schema.fields, StructField(BUCKET, LongType(), False), StructField(PLACE, LongType(), False)])
    return spark.range(0, partitions, 1, partitions).mapInArrow(read, whole)


def no_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand for the rows of a stream where the function is only analysed."""
    raise RuntimeError(RAN_A_JOB)


RAN_A_JOB: Final = "holdfast: a job over the rows of a transform was started outside of the pipeline"


def analysed(function: FrameFunction, leaf: DataFrame, order_by: Sequence[str], name: str) -> Carried:
    """Call the function on the rows of a leaf; return what it made of them, or raise what is wrong with it."""
    rows = leaf.drop(BUCKET, PLACE)
    try:
        made = function(rows)
    except (HoldfastError, PySparkException) as error:
        if RAN_A_JOB in str(error):
            raise UnsupportedQuery(
                f"transform({name}): the function runs a Spark job on its rows itself (count, collect, write); it has "
                "to return a DataFrame and leave running it to holdfast"
            ) from error
        raise
    if not isinstance(made, DataFrame):
        raise Misconfigured(f"transform({name}): the function gave a {type(made).__name__}, expected a DataFrame")
    if made.isStreaming:
        raise UnsupportedQuery(
            f"transform({name}): the function joins with a streaming DataFrame; make that a source of its own"
        )
    walk = _Walk(name, leaf.sparkSession)
    top = made._jdf.queryExecution().analyzed()
    way = walk.carry(top)
    if way.places is None:
        raise UnsupportedQuery(
            f"transform({name}): the DataFrame that the function gave is not made of the stream's rows"
        )
    missing = [column for column in order_by if column not in made.columns]
    if missing:
        raise Misconfigured(f"transform({name}): order_by has {missing[0]!r}, and the result has {made.columns}")
    if walk.united and not order_by:
        raise UnsupportedQuery(
            f"transform({name}): rows of a union come from several sides, in no order; give transform(..., "
            "order_by=[...]) so that the rows of a bucket have one, or name the parts as streams of their own and call "
            "union on these"
        )
    node = _project(leaf.sparkSession, [*members(top.output()), *way.places], way.node)
    kept = {} if walk.united else walk.kept(top, leaf)
    return Carried(node, made.schema, kept, walk.by_bucket, walk.joined, walk.united)


@dataclass(frozen=True, slots=True)
class _Way:
    """A node as it was changed, and its two columns of places; None for what is not made of the stream's rows."""

    node: JavaObject
    places: list[JavaObject] | None


class _Walk:
    """One walk from the top of an analysed plan down to its leaf."""

    def __init__(self, name: str, spark: SparkSession) -> None:
        self._name = name
        self._spark = spark
        self._aliases: dict[int, int] = {}
        self.by_bucket = False
        self.joined = False
        self.united = False

    def carry(self, node: JavaObject) -> _Way:
        """Return the node with the places in its output."""
        kind = class_name(node)
        places = _places_of(node)
        if places is not None:
            # The leaf itself, whatever it is made of.
            return _Way(node, places)
        children = list(members(node.children()))
        below = [self.carry(child) for child in children]
        if all(way.places is None for way in below):
            return _Way(node, None)
        if kind == "ResolvedHint":
            # Joins get the one hint that keeps the stream's rows where they are.
            return below[0]
        if kind not in (*_CARRYING, *_BATCHES, "Project", "Join", "Union"):
            raise self._refusal(node, _ADVICE.get(kind, "holdfast does not know that it treats each row on its own"))
        self._check_expressions(node)
        if kind == "Project":
            return self._projection(node, below[0])
        if kind == "Join":
            return self._join(node, below)
        if kind == "Union":
            return self._union(node, below)
        if kind in _BATCHES:
            return self._over_batches(node, kind)
        return self._same(node, below)

    def kept(self, top: JavaObject, leaf: DataFrame) -> dict[str, str]:
        """Return which columns of the result are columns of the leaf."""
        own = {_number(each): str(each.name()) for each in members(leaf._jdf.queryExecution().analyzed().output())}
        found = {}
        for each in members(top.output()):
            number = _number(each)
            while number in self._aliases and number not in own:
                number = self._aliases[number]
            if number in own:
                found[str(each.name())] = own[number]
        return found

    # Kinds of nodes

    def _projection(self, node: JavaObject, below: _Way) -> _Way:
        assert below.places is not None, "it is made of the stream's rows"
        columns = list(members(node.projectList()))
        for column in columns:
            if class_name(column) == "Alias" and class_name(column.child()) == "AttributeReference":
                self._aliases[_number(column)] = _number(column.child())
        return _Way(_project(self._spark, [*columns, *below.places], below.node), below.places)

    def _same(self, node: JavaObject, below: Sequence[_Way]) -> _Way:
        changed = node.withNewChildren(_sequence(self._spark, [way.node for way in below]))
        places = _places_of(changed)
        if places is None:
            raise self._refusal(node, "its rows cannot be told from each other behind it")
        return _Way(changed, places)

    def _join(self, node: JavaObject, below: Sequence[_Way]) -> _Way:
        kind = str(node.joinType().toString())
        ours = [way.places is not None for way in below]
        if all(ours):
            raise self._refusal(node, "which of its own rows a row meets depends on which are there together")
        if kind not in (_JOINS_LEFT if ours[0] else _JOINS_RIGHT):
            raise self._refusal(
                node, "which rows of the table stay without a partner depends on which are there together"
            )
        self.joined = True
        jvm: Any = self._spark._jvm
        plans = jvm.org.apache.spark.sql.catalyst.plans.logical
        hint = jvm.scala.Some(plans.HintInfo(jvm.scala.Some(_object(plans, "BROADCAST"))))
        none = _object(jvm.scala, "None")
        hints = plans.JoinHint(none, hint) if ours[0] else plans.JoinHint(hint, none)
        join = plans.Join(below[0].node, below[1].node, node.joinType(), node.condition(), hints)
        return _Way(join, below[0].places if ours[0] else below[1].places)

    def _union(self, node: JavaObject, below: Sequence[_Way]) -> _Way:
        if any(way.places is None for way in below):
            raise self._refusal(node, "the rows of a table belong to no bucket; send them to a source")
        self.united = True
        children = [
            _project(self._spark, [*members(child.output()), *(way.places or [])], way.node)
            for child, way in zip(members(node.children()), below, strict=True)
        ]
        return self._same(node, [_Way(child, None) for child in children])

    def _over_batches(self, node: JavaObject, kind: str) -> _Way:
        """Number the rows that come out of a function over batches; the places of those that went in are lost."""
        if self.joined or self.united:
            raise self._refusal(node, f"a join or union stands before it; give {kind} a transform of its own")
        if node.isBarrier():
            raise self._refusal(node, "barrier=True is for jobs that hold all rows at once")
        self.by_bucket = True
        shard = F.shiftleft(F.spark_partition_id().cast("bigint"), POSITION_BITS)
        number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_NUMBER_BITS) - 1))
        # As the function left it: what is below it does not have the places, or it would see them.
        rows = frame_of(self._spark, node)
        numbered = rows.select("*", F.lit(0).cast("bigint").alias(BUCKET), shard.bitwiseOR(number).alias(PLACE))
        changed = numbered._jdf.queryExecution().analyzed()
        return _Way(changed, _places_of(changed))

    # Expressions

    def _check_expressions(self, node: JavaObject) -> None:
        waiting = list(members(node.expressions()))
        while waiting:
            expression = waiting.pop()
            kind = class_name(expression)
            if kind in ("AttributeReference", "Literal"):
                continue
            self._check_expression(expression, kind)
            waiting += members(expression.children())

    def _check_expression(self, expression: JavaObject, kind: str) -> None:
        if kind.startswith(_OF_THE_RUN) and kind != "CurrentTimeZone":
            raise self._refused(
                str(expression.sql()), "it depends on when the job runs; use a column of the rows, as their event time"
            )
        if is_java_instance(expression, f"{_EXPRESSIONS}PlanExpression"):
            raise self._refused(
                str(expression.sql()), "a subquery in an expression is not there yet; join with the table instead"
            )
        if "UDTF" in kind:
            raise self._refused(
                str(expression.sql()), "a table function may keep something from row to row; use explode or mapInArrow"
            )
        if kind.startswith("PythonUDF") and int(expression.evalType()) not in _ROW_WISE_UDFS:
            self.by_bucket = True
        if not expression.deterministic() and all(each.deterministic() for each in members(expression.children())):
            raise self._refused(
                str(expression.sql()),
                "it gives something else each time or place it runs; use a hash of the row: F.xxhash64('key')",
            )

    def _refusal(self, node: JavaObject, why: str) -> UnsupportedQuery:
        shown = " ".join(str(node.simpleString(5)).split())[:200]
        return self._refused(f"{class_name(node)} ({shown})", why)

    def _refused(self, what: str, why: str) -> UnsupportedQuery:
        return UnsupportedQuery(
            f"transform({self._name}): {what} would make the result depend on how rows are divided into jobs: {why}"
        )


def frame_of(spark: SparkSession, node: JavaObject, session: JavaObject | None = None) -> DataFrame:
    """Return the DataFrame of a logical plan, in this session or in one with other settings."""
    jvm: Any = spark._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session or spark._jsparkSession, node), spark)


def in_order(frame: DataFrame, carried: Carried, order_by: Sequence[str], partitions: int) -> DataFrame:
    """Return the rows so that those of one shard are together, by bucket, and within it in an order that is theirs.

    Where the plan keeps the order of rows there is nothing to do.
    """
    if carried.united:
        # Where the rows of a union are brought together, few tasks are to send them.
        frame = frame.coalesce(partitions).repartition(partitions, F.shiftright(PLACE, POSITION_BITS))
    if not (carried.united or carried.joined or order_by):
        return frame
    ordering: list[Column] = [F.shiftright(PLACE, POSITION_BITS), F.col(BUCKET)]
    ordering += [_sortable(column, carried.schema[column].dataType) for column in order_by]
    ordering.append(F.col(PLACE))
    ordering += [_sortable(field.name, field.dataType) for field in carried.schema.fields]
    return frame.sortWithinPartitions(*ordering)


def check_standing(frame: DataFrame) -> None:
    """Raise where Spark's plan would divide the rows of the stream anew: their order would be gone."""
    plan = frame._jdf.queryExecution().executedPlan()
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        kind = class_name(node)
        if "Broadcast" in kind and "Exchange" in kind:
            continue
        if "Exchange" in kind or "InMemory" in kind:
            raise UnsupportedQuery(
                f"Spark plans a {kind} over the rows of the stream ({str(node.simpleString(5))[:200]}); leave out "
                "cache() in the function, and give the join's table fewer rows so that it can be broadcast"
            )
        waiting += members(node.children())


def _sortable(name: str, data_type: DataType) -> Column:
    column = F.col(f"`{name.replace('`', '``')}`")
    if isinstance(data_type, MapType):
        return F.array_sort(F.map_entries(column))
    if _holds_map(data_type):
        raise UnsupportedQuery(
            f"column {name!r} of a transform with a join, union or order_by has a map inside of "
            f"{data_type.simpleString()}, and such rows have no order; make the map a column of its own"
        )
    return column


def _holds_map(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_holds_map(field.dataType) for field in data_type.fields)
    return isinstance(data_type, MapType) or (isinstance(data_type, ArrayType) and _holds_map(data_type.elementType))


def _places_of(node: JavaObject) -> list[JavaObject] | None:
    found = {name: each for each in members(node.output()) if (name := str(each.name())) in (BUCKET, PLACE)}
    return [found[BUCKET], found[PLACE]] if len(found) == 2 else None


def _number(expression: JavaObject) -> int:
    return int(expression.exprId().id())


def _project(spark: SparkSession, columns: Iterable[JavaObject], child: JavaObject) -> JavaObject:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_sequence(spark, columns), child)


def _sequence(spark: SparkSession, items: Iterable[JavaObject]) -> JavaObject:
    jvm: Any = spark._jvm
    found = jvm.java.util.ArrayList()
    for item in items:
        found.add(item)
    return jvm.PythonUtils.toSeq(found)


def _object(package: Any, name: str) -> JavaObject:
    """Return a Scala object."""
    return cast("JavaObject", getattr(getattr(package, f"{name}$"), "MODULE$"))
