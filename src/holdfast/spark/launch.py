"""Start a pipeline on a Spark session: everything is checked before anything is touched.

1. The pipeline is compiled, the session's settings and the sinks' folders are checked.
2. `pipeline.json` is made, or compared with the one that is there and changed, where that may be.
3. The terms of the streams are taken; a node that lives is named and keeps them. What was changed since is refused.
4. The node's loop starts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.clock import WallClock
from holdfast.connect.batch_writer import WriterOptions
from holdfast.connect.catalog import CATALOG_PATH, Catalog, check_unchanged, create_or_check, load, locate
from holdfast.connect.folder import check_path
from holdfast.connect.foreign import hold
from holdfast.connect.parquet import prepare_folder
from holdfast.errors import Misconfigured, StreamTaken
from holdfast.log.store import open_store
from holdfast.log.stream_log import StreamLog
from holdfast.node import log_lines
from holdfast.node.handle import PipelineHandle, announce_start
from holdfast.node.metrics_port import chosen_port
from holdfast.node.options import NodeOptions
from holdfast.node.runner import NodeRunner
from holdfast.node.runner import Waves as AnyWaves
from holdfast.node.slot import SlotSetup
from holdfast.node.state_folder import claim, state_folder
from holdfast.plan import FilesSource, ParquetSink, QuerySource, Topology
from holdfast.ports import Store
from holdfast.spark.executors import Executors
from holdfast.spark.ingest import Ingest
from holdfast.spark.session import require
from holdfast.spark.waves import Waves

if TYPE_CHECKING:
    from holdfast.node.metrics import MetricsServer
    from holdfast.pipeline.pipeline import Pipeline


def start(
    pipeline: Pipeline,
    available_now: bool = False,
    options: NodeOptions | None = None,
    metrics_port: int | None = None,
) -> PipelineHandle:
    """Start the pipeline in this process and return its handle."""
    require(pipeline.spark)
    port = chosen_port(metrics_port)
    # A wrong wish is refused now, not when the streams are taken.
    log_lines.are_json()
    for source in pipeline.topology()[0].sources:
        if isinstance(source.origin, FilesSource):
            check_path(source.origin.path)
    if not pipeline.topology()[0].stages:
        raise Misconfigured(
            f"the pipeline {pipeline.name!r} has no stage, so there is nothing to run: give the stream that you made "
            "of its sources a name, with .named('...')"
        )
    store, catalog, functions = create(pipeline)
    topology = catalog.topology
    for source in topology.sources:
        if source.is_foreign:
            # Before its journal is read: what is named there has to stay.
            hold(source, topology)
    for sink in topology.sinks:
        if isinstance(sink.target, ParquetSink):
            prepare_folder(sink.target.path)
    states = state_folder()
    claim(states, catalog.pipeline_id, _local_path(store))
    setup = SlotSetup(
        catalog.pipeline_id,
        store.url,
        msgspec.json.encode(topology),
        states,
        tuple(functions),
        pipeline.lines(topology),
    )
    chosen = msgspec.structs.replace(options or NodeOptions(), available_now=available_now)
    ingests = _ingests(pipeline, store, catalog, setup, chosen)
    # What fails lets go of everything: this process may live on, and the streams would stay taken.
    with contextlib.ExitStack() as taken:
        for ingest in ingests:
            taken.callback(ingest.close)
        metrics = _metrics(port)
        for server in metrics:
            taken.callback(server.close)
        log = _open_log(store, topology, available_now)
        taken.callback(log.close)
        check_unchanged(store, catalog)
        runner = NodeRunner(
            topology,
            catalog.pipeline_id,
            store,
            log,
            _waves_of(pipeline, setup, topology, store, log),
            chosen,
            [*ingests, *metrics],
            pipeline.listeners,
        )
        taken.pop_all()
    log_lines.set_up(topology.name, log.term.owner)
    for server in metrics:
        server.show(runner.handle.statistics)
        runner.handle.metrics_url = server.url
    handle = runner.start()
    announce_start(handle)
    return handle


def _metrics(port: int | None) -> list[MetricsServer]:
    """Return what answers scrapes, where somebody asked for it: who does not, does not load it either."""
    if port is None:
        return []
    from holdfast.node.metrics import MetricsServer

    return [MetricsServer(port)]


def _executors(pipeline: Pipeline, store: Store, log: StreamLog) -> Executors | None:
    """Return who follows the session's executors; in local mode there is nobody to follow."""
    context = pipeline.spark.sparkContext
    if context._jsc.sc().isLocal():
        return None
    return Executors(context, log.term.owner, store, lambda text: logging.getLogger("holdfast").warning("%s", text))


def _waves_of(
    pipeline: Pipeline, setup: SlotSetup, topology: Topology, store: Store, log: StreamLog
) -> Callable[[Callable[[bytes], None]], AnyWaves]:
    """Return what makes the node's waves; functions of transforms are called now, before the node starts."""

    def waves(put: Callable[[bytes], None]) -> Waves:
        return Waves(pipeline.spark, setup, put, _executors(pipeline, store, log))

    transforms = pipeline.transforms()
    if not transforms:
        return waves
    # Only here, as it loads the kernels, which the node's own process does without.
    from holdfast.spark.transform import Jobs, WavesAndJobs

    jobs = Jobs(pipeline.spark, setup, topology, transforms)

    def waves_and_jobs(put: Callable[[bytes], None]) -> AnyWaves:
        jobs.start(put)
        return WavesAndJobs(waves(put), jobs)

    return waves_and_jobs


def _ingests(
    pipeline: Pipeline, store: Store, catalog: Catalog, setup: SlotSetup, options: NodeOptions
) -> list[Ingest]:
    """Return the queries that feed sources; with `available_now` they have run, and left what was there in the log."""
    writing = WriterOptions(options.trim_every_us, options.retain_us, options.segment_life_us)
    made: list[Ingest] = []
    over = True
    try:
        for source in catalog.topology.sources:
            if isinstance(source.origin, QuerySource):
                query = pipeline.queries[source.name]
                located = locate(store.url, source.name)
                owner = node_name("query")
                made.append(Ingest(query.frame, located, setup, owner, query.adopt, WallClock(), writing))
                if options.available_now:
                    made[-1].take_what_is_there()
        over = options.available_now
    finally:
        for ingest in made if over else ():
            ingest.close()
    return [] if over else made


def create(pipeline: Pipeline) -> tuple[Store, Catalog, list[Callable[..., Any]]]:
    """Make the pipeline's folder, or check that the one that is there fits or may change; nothing runs yet."""
    store = open_store(f"{pipeline.store.rstrip('/')}/{pipeline.name}")
    there = load(store).known if store.exists(CATALOG_PATH) else None
    if pipeline.shards is None and there is not None:
        # How many shards a store has is decided once; the machine of the day does not change it.
        pipeline.shards = there.shards
    topology, functions = pipeline.topology(there)
    return store, create_or_check(store, topology), functions


def _open_log(store: Store, topology: Topology, available_now: bool) -> StreamLog:
    """Take the node's own streams and, to end them, those of producers that are gone."""
    own = own_streams(topology)
    ownerless = [source.name for source in topology.sources if source.has_own_writer]
    while True:
        names = [*own, *(ownerless if available_now else [])]
        try:
            return StreamLog.open(
                store, names, node_name(), shards=topology.shards, bucket_width_us=topology.bucket_width_us
            )
        except StreamTaken as taken:
            # A producer that is there ends its buckets itself.
            if taken.stream in own:
                raise StreamTaken(f"the pipeline {topology.name!r} runs already, or is starting: {taken}") from taken
            if not available_now or taken.stream not in ownerless:
                raise
            ownerless.remove(taken.stream)


def run(handle: PipelineHandle) -> None:
    """Wait for the pipeline's end; Ctrl-C and SIGTERM stop it cleanly after the wave, a second Ctrl-C at once."""

    def stop(number: int, frame: object) -> None:
        handle.request_stop()
        signal.signal(signal.SIGINT, before.get(signal.SIGINT) or signal.SIG_DFL)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not handle.awaitTermination(3600.0):
            continue
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def own_streams(topology: Topology) -> list[str]:
    """Return the streams that the node writes: outputs, what it reads from files, and what went to the side."""
    names = [stage.name for stage in topology.stages]
    names += [source.name for source in topology.sources if isinstance(source.origin, FilesSource)]
    for stage in topology.stages:
        names.append(f"{stage.name}.rejects")
        for read in stage.inputs:
            names += [f"{read.stream}.late", f"{read.stream}.rejects"]
    return list(dict.fromkeys(names))


def node_name(kind: str = "node") -> str:
    """Return a name that no other life of a node has: it is in paths, and says whose files they are."""
    return f"{kind}-{os.uname().nodename}-{os.getpid()}-{time.time_ns():x}"


def _local_path(store: Store) -> str:
    return store.url.removeprefix("file://")
