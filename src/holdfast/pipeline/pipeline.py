"""`Pipeline`: sources, named streams and sinks under one name, and how they are run.

Invariants:
    * Names are unique in a pipeline: a stream has one maker.
    * `topology()` is the whole pipeline as data; nothing is written or started before it has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from holdfast import plan
from holdfast.config import absolute, check_name, duration_us
from holdfast.errors import AlreadyExists, Misconfigured, UnsupportedQuery
from holdfast.node.listening import Listeners
from holdfast.operators.partition_function import PartitionFunction
from holdfast.pipeline.callsite import names_the_line, users_line
from holdfast.pipeline.checkpoints import checkpoint_every_us
from holdfast.pipeline.compile import DeclaredSource, DeclaredStage, Settings, compile_topology
from holdfast.pipeline.endpoints import Files, OtherStream
from holdfast.pipeline.lineage import Node, SourceNode, TransformNode, nodes, over
from holdfast.pipeline.lines import lines_of
from holdfast.pipeline.program import PROGRAM
from holdfast.pipeline.stream import Stream, refuse_later

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from holdfast.explain.facts import PipelineFacts
    from holdfast.node.handle import PipelineHandle

SHARDS_MAX: Final = 4096
CLUSTER_SHARDS: Final = 64
BUCKET_MIN_US: Final = 1_000
_DIALS: Final = ("available", "checkpoint", "recover", "precise", "priority")


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming DataFrame that feeds a source, and whether it may take over another one's stream."""

    frame: DataFrame
    adopt: bool


@dataclass(frozen=True, slots=True)
class DeclaredTransform:
    """What a stage of jobs does to the rows of its input, and where that was written."""

    function: Callable[[DataFrame], DataFrame]
    line: str


class Pipeline:
    """A stateful stream program: add sources, make streams of them, name them, and send them to sinks."""

    @names_the_line
    def __init__(
        self,
        name: str,
        store: str,
        shards: int | None = None,
        bucket: str = "200 milliseconds",
        protect: Mapping[str, Any] | None = None,
    ) -> None:
        """Name a pipeline and the folder (a path or fsspec URL) that keeps it.

        `shards` is how many ways streams are split (by default the session's cores, on a cluster at least 64),
        `bucket` the unit of order, `protect` the defaults of `Stream.protect`, as a dict.
        """
        self.name = check_name(name, "a pipeline")
        self.store = absolute(store, "store")
        self.bucket_width_us = duration_us(bucket, "bucket")
        if self.bucket_width_us < BUCKET_MIN_US:
            raise Misconfigured(f"bucket is {bucket!r} and must be at least 1 millisecond")
        if shards is not None and (type(shards) is not int or not 1 <= shards <= SHARDS_MAX):
            raise Misconfigured(f"shards is {shards!r} and must be a whole number from 1 to {SHARDS_MAX}")
        self.shards = shards
        self._checkpoint_every_us = _defaults(protect or {})
        self._sources: dict[str, DeclaredSource] = {}
        self._stages: dict[str, DeclaredStage] = {}
        self._sinks: list[plan.Sink] = []
        self._spark: SparkSession | None = None
        self.queries: dict[str, Query] = {}
        PROGRAM.made(self)
        self.listeners = Listeners(self.name)

    @property
    def spark(self) -> SparkSession:
        """The Spark session that analyses the query: the active one, or one made now."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            from holdfast.spark.session import require_classic, session

            active = SparkSession.getActiveSession() or session(self.name)
            require_classic(active)
            self._spark = active
        return self._spark

    @names_the_line
    def source(
        self,
        name: str,
        data: DataFrame | Files | OtherStream | StructType | str,
        tuple_time: str | None = None,
        late: str = "drop",
        on_error: str = "stop",
        replica_of: str | None = None,
        rejects_max: int = 1000,
        adopt: bool = False,
    ) -> Stream:
        """Add a source: a streaming DataFrame, `hf.files(...)`, another pipeline's `hf.stream(...)`, or a schema
        (StructType or text) for a `Producer`.

        With `on_error="reject"` up to `rejects_max` rows of a run are put into `<name>.rejects`; one more stops it.
        `adopt=True` takes over a stream that another query has written, where a DataFrame's checkpoint is new.
        """
        from holdfast.spark import catalyst, types

        self._check_new(name)
        refuse_later(replica_of=replica_of)
        _check_choice("late", late, ("drop", "side"))
        _check_choice("on_error", on_error, ("stop", "reject"))
        if type(rejects_max) is not int or rejects_max < 0:
            raise Misconfigured(f"rejects_max is {rejects_max!r} and must be a whole number from 0")
        schema, origin = self._declared(data)
        if isinstance(origin, plan.QuerySource):
            if on_error != "stop":
                raise UnsupportedQuery("on_error= is for files; drop unreadable rows in the DataFrame itself")
            self.queries[name] = Query(cast("DataFrame", data), adopt)
        elif isinstance(data, OtherStream):
            if tuple_time is not None or on_error != "stop":
                raise UnsupportedQuery(
                    "tuple_time= and on_error= are for rows that come in; those of hf.stream are logged already"
                )
            tuple_time = data.declared().tuple_time
        elif adopt:
            raise Misconfigured("adopt=True is for a source that is a streaming DataFrame")
        _check_columns(name, schema)
        _check_tuple_time(tuple_time, schema)
        source = plan.Source(
            name=name,
            # Another pipeline's frames are read as they were written.
            schema=(data.declared().schema if isinstance(data, OtherStream) else types.arrow_schema(schema))
            .serialize()
            .to_pybytes(),
            origin=origin,
            tuple_time=tuple_time,
            late=cast("Literal['drop', 'side']", late),
            on_error=cast("Literal['stop', 'reject']", on_error),
            rejects_max=rejects_max,
        )
        frame = catalyst.empty_frame(self.spark, schema)
        self._sources[name] = DeclaredSource(source, tuple(schema.names))
        return Stream(self, frame, SourceNode(name, users_line()), name)

    @names_the_line
    def topology(self, there: plan.Topology | None = None) -> tuple[plan.Topology, list[Callable[..., Any]]]:
        """Return the whole pipeline as data, and the user's functions that it names by number.

        What is `there` in the store decides how rows are sharded that were logged before.
        """
        from holdfast.spark.catalyst import session_time_zone

        if not self._sources:
            raise Misconfigured(f"the pipeline {self.name!r} has no source; call pipeline.source(...) first")
        shards = self.shards or min(SHARDS_MAX, self._shards_by_default())
        settings = Settings(self.name, shards, self.bucket_width_us, session_time_zone(self.spark))
        return compile_topology(settings, self._sources, list(self._stages.values()), self._sinks, there)

    def _shards_by_default(self) -> int:
        context = self.spark.sparkContext
        # How many executors a cluster will have is not known yet, and many units cost little more than few.
        least = 1 if (context.master or "local").startswith("local") else CLUSTER_SHARDS
        return max(least, context.defaultParallelism)

    def lines(self, topology: plan.Topology) -> dict[str, str]:
        """Return where in the user's program the steps of the plan stand."""
        return lines_of(topology, self._stages.values())

    @names_the_line
    def create(self) -> None:
        """Make the pipeline's folder in the store, so that producers may send before its first start."""
        from holdfast.spark import launch

        if PROGRAM.is_only_explained:
            return
        launch.create(self)

    def run(self, available_now: bool = False, metrics_port: int | None = None) -> None:
        """Run until stopped; with `available_now`, take what is there, end every window, and return.

        With `metrics_port` (0: any that is free) Prometheus finds metrics there, on this machine alone.
        """
        from holdfast.spark import launch

        launch.run(self.start(available_now=available_now, metrics_port=metrics_port))

    @names_the_line
    def start(self, available_now: bool = False, metrics_port: int | None = None) -> PipelineHandle:
        """Start, and return a handle like PySpark's StreamingQuery."""
        from holdfast.spark import launch

        PROGRAM.starts(self)
        ends = available_now or PROGRAM.available_now
        return PROGRAM.started(launch.start(self, available_now=ends, metrics_port=metrics_port))

    @names_the_line
    def facts(self) -> PipelineFacts:
        """Return what `explain` shows, as data; no store has to be there, and nothing is started."""
        from holdfast.connect.catalog import kept_shards
        from holdfast.explain.facts import facts_of

        topology, _ = self.topology()
        kept = kept_shards(self.store, self.name) if self.shards is None else None
        return facts_of(topology if kept is None else msgspec.structs.replace(topology, shards=kept))

    def explain(self) -> None:
        """Print sources, stages and sinks, what each keeps and what it promises; `holdfast explain` does the same."""
        from holdfast.explain.terminal import print_text

        print_text(self.facts())

    def addListener(self, listener: Any) -> None:
        """Tell a `hf.Listener`, or a StreamingQueryListener of PySpark's, how every run of this pipeline is doing."""
        self.listeners.add(listener)

    def removeListener(self, listener: Any) -> None:
        """Tell a listener nothing more."""
        self.listeners.remove(listener)

    def struct_type(self, schema: StructType | str) -> StructType:
        """Return a schema that was given as StructType or DDL text."""
        from pyspark.sql.types import StructType, _parse_datatype_string

        if isinstance(schema, str):
            # The text is read by Spark itself, which needs a session.
            _ = self.spark
            schema = cast("StructType", _parse_datatype_string(schema))
        if not isinstance(schema, StructType):
            raise Misconfigured(f"{schema!r} is not a schema; give a StructType or text: 'item string, price double'")
        return schema

    def register_stage(
        self, name: str, node: Node, schema: StructType, partition_by: PartitionFunction | None = None
    ) -> None:
        """Keep a stream that was given a name, as the stage that makes it."""
        from holdfast.spark.types import arrow_schema

        self._check_new(name)
        _check_columns(name, schema)
        stored = arrow_schema(schema).serialize().to_pybytes()
        declared = DeclaredStage(name, node, stored, self._checkpoint_every_us, partition_by)
        # What cannot be is said at the line of the stage that asks for it, not when the pipeline starts.
        stages = [*self._stages.values(), declared]
        compile_topology(Settings(self.name, 1, self.bucket_width_us, "UTC"), self._sources, stages, [])
        self._stages[name] = declared

    def set_checkpoint(self, stage: str, every_us: int | None) -> None:
        """Set how often a stage's state is written; None for never."""
        self._stages[stage] = replace(self._stages[stage], checkpoint_every_us=every_us)

    def add_sink(
        self, stream: str, target: plan.ParquetSink | plan.ConsoleSink, start: Literal["earliest", "latest"]
    ) -> None:
        """Send a named stream to a sink. Its name is the store's to give, where it knows the sink by its folder."""
        kind = "parquet" if isinstance(target, plan.ParquetSink) else "console"
        if isinstance(target, plan.ParquetSink):
            self._check_folder(target.path)
        count = sum(sink.name.startswith(f"{stream}-{kind}") and sink.stream == stream for sink in self._sinks)
        name = f"{stream}-{kind}" if not count else f"{stream}-{kind}-{count + 1}"
        self._sinks.append(plan.Sink(name, stream, target, start))

    def _check_folder(self, path: str) -> None:
        """Refuse a sink's folder that is another's already, or that a source reads from."""
        for sink in self._sinks:
            if isinstance(sink.target, plan.ParquetSink) and sink.target.path == path:
                raise AlreadyExists(
                    f"the stream {sink.stream!r} goes to {path!r} already; give each sink a folder of its own"
                )
        for name, declared in self._sources.items():
            origin = declared.source.origin
            if isinstance(origin, plan.FilesSource) and origin.path == path:
                raise Misconfigured(f"the source {name!r} reads from {path!r}; give the sink a folder of its own")

    def transforms(self) -> dict[str, DeclaredTransform]:
        """Return the stages that Spark runs as jobs, each with what is done to its input's rows, as one function."""
        return {
            name: DeclaredTransform(partial(over, declared.node), found[0].line)
            for name, declared in self._stages.items()
            if (found := nodes(declared.node, TransformNode))
        }

    def logged_input(self, source: str) -> DataFrame:
        """Return what was logged of a source, as an ordinary DataFrame."""
        from holdfast.spark.logged import logged_input

        return logged_input(self.spark, self.store, f"{self.name}/{source}")

    def _declared(
        self, data: Any
    ) -> tuple[StructType, plan.FilesSource | plan.ProducerSource | plan.QuerySource | plan.StreamSource]:
        if isinstance(data, OtherStream):
            from holdfast.spark import types

            declared = data.declared()
            return types.struct_type(declared.schema), declared.origin
        if isinstance(data, Files):
            return self._declared_files(data), data.source()
        if hasattr(data, "isStreaming"):
            if not data.isStreaming:
                raise Misconfigured(
                    "a batch DataFrame ends, and a source does not: use spark.readStream, or hf.files for a folder"
                )
            return data.schema, plan.QuerySource()
        return self.struct_type(data), plan.ProducerSource()

    def _declared_files(self, files: Files) -> StructType:
        """Return the schema of a folder's rows: as declared, or as Spark infers it from the files that are there."""
        from holdfast.connect.folder import check_path
        from holdfast.connect.text_format import check_declared
        from holdfast.spark import inferred, types

        if files.schema is None:
            check_path(files.path)
            schema = inferred.schema_of_files(self.spark, files.path, files.format, files.options)
        else:
            schema = self.struct_type(files.schema)
        check_declared(files.format, files.options, types.arrow_schema(schema))
        return schema

    def _check_new(self, name: str) -> None:
        check_name(name, "a stream")
        if name in self._sources or name in self._stages:
            raise AlreadyExists(f"the pipeline {self.name!r} has a stream {name!r} already; choose another name")


def _defaults(dials: Mapping[str, Any]) -> int | None:
    if not isinstance(dials, Mapping):
        raise Misconfigured(f"protect is {dials!r} and must be a dict of dials, such as {{'checkpoint': 'auto'}}")
    unknown = sorted(set(dials) - set(_DIALS))
    if unknown:
        raise Misconfigured(f"protect has no dial {unknown[0]!r}; it has {', '.join(_DIALS)}")
    refuse_later(**{name: value for name, value in dials.items() if name != "checkpoint"})
    return checkpoint_every_us(dials.get("checkpoint", "auto"))


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Misconfigured(f"{what} is {value!r} and can be {' or '.join(map(repr, choices))}")


def _check_columns(stream: str, schema: StructType) -> None:
    # Spark compares names without regard to case; so two columns must not differ in case alone.
    names = [name.lower() for name in schema.names]
    twice = next((name for name in schema.names if names.count(name.lower()) > 1), None)
    if not names:
        raise Misconfigured(f"the stream {stream!r} has no columns; a row without a column cannot be kept")
    if twice is not None:
        raise Misconfigured(f"the stream {stream!r} has two columns named {twice!r}; rename one of them")


def _check_tuple_time(tuple_time: str | None, schema: StructType) -> None:
    if tuple_time is None:
        return
    if not isinstance(tuple_time, str):
        raise Misconfigured(f"tuple_time is {tuple_time!r} and must be the name of a column of the source")
    found = next((field for field in schema.fields if field.name == tuple_time), None)
    if found is None or found.dataType.simpleString() != "timestamp":
        kind = "not there" if found is None else found.dataType.simpleString()
        raise Misconfigured(
            f"tuple_time has to be a timestamp column of the source, and {tuple_time!r} is {kind}; the source has "
            f"{schema.simpleString()}"
        )
