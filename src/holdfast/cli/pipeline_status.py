"""What a store says about a pipeline, gathered without taking, locking or changing anything.

Invariants:
    * No Spark is started, and no process is asked: only files are read.
    * A stream that cannot be read says so, and does not hide the others.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.connect.catalog import Catalog, load, locate, streams
from holdfast.connect.lease import Lease, leases
from holdfast.connect.query_state import QueryState, read_query_state
from holdfast.errors import HoldfastError
from holdfast.log.inspect import read_ledger, show_stream
from holdfast.log.ledger import Ledger, SinkPosition
from holdfast.log.local_store import LocalStore
from holdfast.log.terms import term_path, terms_folder
from holdfast.model import END_OF_TIME, FIRST_BUCKET, Reported
from holdfast.node.trouble import is_failing, is_passing, subject_of_report
from holdfast.plan import QuerySource, Source, Stage
from holdfast.ports import Store

State = Literal["running", "failing", "stopped", "failed", "finished", "never started", "unknown"]
REPORTS_SHOWN = 10


class WriterStatus(msgspec.Struct, frozen=True):
    """Who writes a stream, since when. `alive` and `since_us` are None where this machine cannot tell."""

    owner: str
    host: str
    pid: int
    term: int
    alive: bool | None
    since_us: int | None = None

    @property
    def name(self) -> str:
        """What a person calls it: a node's own name is for paths."""
        if self.owner.startswith("producer-"):
            return f"producer {self.owner.removeprefix('producer-')!r}"
        if self.owner.startswith("query-"):
            return "the node's query"
        return "the node" if self.owner.startswith("node-") else self.owner


class UnitsStatus(msgspec.Struct, frozen=True):
    """How far the units of a stage are, and what they have seen. `begun` is where it began, if rows were gone then."""

    count: int
    shards: int
    bucket_end_min: int | None
    bucket_end_max: int | None
    rows_in: int
    rows_late: int
    snapshots: int
    snapshot_bucket_end_min: int | None
    begun: int | None = None


class StreamStatus(msgspec.Struct, frozen=True):
    """A stream: `lag_s` is how far its boundary is behind the clock; `query` is how the one that feeds it is."""

    name: str
    kind: str
    writer: WriterStatus | None
    boundary_us: int | None
    lag_s: float | None
    ended: bool
    rows: int
    bytes: int
    inputs: list[str] = []
    units: UnitsStatus | None = None
    problem: str | None = None
    query: QueryState | None = None


class SinkStatus(msgspec.Struct, frozen=True):
    """A sink: everything before `bucket_end` is out, but for what came before `begun`, which it was not given."""

    name: str
    stream: str
    bucket_end: int | None
    rows: int
    lag_s: float | None
    begun: int | None = None


class ConsumerStatus(msgspec.Struct, frozen=True):
    """A named consumer's place."""

    stream: str
    name: str
    bucket: int
    expires_at_us: int
    expired: bool


class PipelineStatus(msgspec.Struct, frozen=True):
    """Everything that is known of a pipeline from its folder.

    `failure` is why its last node gave up, `troubles` what the node that runs is trying in vain.
    """

    name: str
    id: str
    url: str
    alive: bool | None
    now_us: int
    shards: int
    bucket_width_us: int
    disk_free_bytes: int | None
    streams: list[StreamStatus]
    sinks: list[SinkStatus]
    consumers: list[ConsumerStatus]
    reports: list[Reported]
    failure: Reported | None = None
    troubles: list[Reported] = []


def status_of(store: Store, now_us: int) -> PipelineStatus:
    """Return the status of the pipeline in a folder."""
    catalog = load(store)
    found: list[StreamStatus] = []
    consumers: list[ConsumerStatus] = []
    reports: set[Reported] = set()
    positions: dict[str, SinkPosition] = {}
    for name, (declared, _) in streams(catalog.topology).items():
        kind = "source" if isinstance(declared, Source) else "stage" if isinstance(declared, Stage) else "side"
        inputs = [read.stream for read in declared.inputs] if isinstance(declared, Stage) else []
        try:
            # What is only read here is written, and kept, in another pipeline's folder.
            lies = locate(store.url, name) if isinstance(declared, Source) and declared.is_foreign else None
            at, there = (store, name) if lies is None else (lies.store, lies.stream)
            ledger = read_ledger(at, there)
            shown = _stream_status(at, there, kind, inputs, ledger, now_us)
            found.append(msgspec.structs.replace(shown, name=name))
            if lies is not None:
                continue
            reports.update(ledger.reports)
            positions |= ledger.sinks
        except HoldfastError as error:
            found.append(StreamStatus(name, kind, None, None, None, False, 0, 0, inputs, None, str(error)))
        try:
            if isinstance(declared, Source) and isinstance(declared.origin, QuerySource):
                found[-1] = msgspec.structs.replace(found[-1], query=read_query_state(store, name))
            consumers += [_consumer_status(lease, now_us) for lease in leases(store, name)]
        except HoldfastError as error:
            # What is kept beside a stream and cannot be read does not hide the stream.
            found[-1] = msgspec.structs.replace(found[-1], problem=found[-1].problem or str(error))
    node = next((each.writer for each in found if each.writer is not None and each.kind == "stage"), None)
    said = sorted(reports, key=lambda report: report.at_us)
    return PipelineStatus(
        name=catalog.topology.name,
        id=catalog.pipeline_id,
        url=store.url,
        alive=False if node is None else node.alive,
        now_us=now_us,
        shards=catalog.topology.shards,
        bucket_width_us=catalog.topology.bucket_width_us,
        disk_free_bytes=shutil.disk_usage(store.root).free if isinstance(store, LocalStore) else None,
        streams=found,
        sinks=_sinks(catalog, positions, now_us),
        consumers=consumers,
        reports=said[-REPORTS_SHOWN:],
        failure=failure_in(said, [stage.name for stage in catalog.topology.stages], node),
        troubles=troubles_in(said, node),
    )


def is_alive(store: Store, stream: str, host: str) -> bool | None:
    """Tell by its lock whether the writer of a stream lives; None where that cannot be seen from here."""
    if not isinstance(store, LocalStore) or host != socket.gethostname():
        return None
    try:
        inode = os.stat(store.absolute(f"{terms_folder(stream)}/lock")).st_ino
        held = Path("/proc/locks").read_text()
    except OSError:
        return None
    # A line is: number, kind, ..., device:device:inode, start, end. Taking the lock to see would be in the way.
    return any(f":{inode} " in line for line in held.splitlines() if "FLOCK" in line)


def _stream_status(store: Store, name: str, kind: str, inputs: list[str], ledger: Ledger, now_us: int) -> StreamStatus:
    shown = show_stream(store, name)
    if shown is None:
        return StreamStatus(name, kind, None, None, None, False, 0, 0, inputs)
    boundary_us = shown.boundary_us
    ended = boundary_us is not None and boundary_us >= END_OF_TIME
    lag_s = None if boundary_us is None or ended else round((now_us - boundary_us) / 1e6, 3)
    folded = sum(rows for rows, _ in ledger.digests_folded(name).values())
    alive = is_alive(store, name, shown.host)
    writer = WriterStatus(shown.owner, shown.host, shown.pid, shown.term, alive, _since_us(store, name, shown.term))
    units = _units_status(ledger, name) if kind == "stage" else None
    if kind == "stage":
        # Behind the end of an earlier run it goes on.
        ended = units is not None and units.bucket_end_min is not None and units.bucket_end_min == ledger.ended(name)
    return StreamStatus(name, kind, writer, boundary_us, lag_s, ended, shown.rows + folded, shown.bytes, inputs, units)


def _since_us(store: Store, stream: str, term: int) -> int | None:
    """Return when a term was taken: its file is written once."""
    if not isinstance(store, LocalStore):
        return None
    try:
        return os.stat(store.absolute(term_path(stream, term))).st_mtime_ns // 1000
    except OSError:
        return None


def failure_in(reports: list[Reported], stages: list[str], node: WriterStatus | None) -> Reported | None:
    """Return the report with which the last node gave up: it is about a stage. One of an earlier node is history."""
    if node is None or node.alive or node.since_us is None or not node.owner.startswith("node-"):
        return None
    last = [report for report in reports if report.subject in stages and report.at_us >= node.since_us]
    last = [report for report in last if not is_passing(report.message)]
    return last[-1] if last else None


def troubles_in(reports: list[Reported], node: WriterStatus | None) -> list[Reported]:
    """Return the newest report of everything that this node is still trying in vain."""
    since_us = 0 if node is None else node.since_us or 0
    newest = {
        subject: report
        for report in reports
        if report.at_us >= since_us and (subject := subject_of_report(report.message)) is not None
    }
    return [report for report in newest.values() if is_failing(report.message)]


def _units_status(ledger: Ledger, stage: str) -> UnitsStatus:
    units = ledger.units(stage)
    begun = ledger.begun(stage)
    ends = [unit.bucket_end for unit in units.values()]
    snapshots = [kept[-1].bucket_end for shard in range(ledger.shards) if (kept := ledger.snapshots(stage, shard))]
    return UnitsStatus(
        count=len(units),
        shards=ledger.shards,
        bucket_end_min=min(ends, default=None),
        bucket_end_max=max(ends, default=None),
        rows_in=sum(unit.rows_in for unit in units.values()),
        rows_late=sum(unit.rows_late for unit in units.values()),
        snapshots=len(snapshots),
        snapshot_bucket_end_min=min(snapshots, default=None),
        begun=None if begun is None else _late_start(begun.bucket_start),
    )


def _late_start(bucket: int | None) -> int | None:
    """Return where something began, None where that was the beginning of its input."""
    return None if bucket is None or bucket <= FIRST_BUCKET else bucket


def _sinks(catalog: Catalog, positions: dict[str, SinkPosition], now_us: int) -> list[SinkStatus]:
    width_us = catalog.topology.bucket_width_us
    result = []
    for sink in catalog.topology.sinks:
        position = positions.get(sink.name)
        if position is None or position.bucket_end is None:
            result.append(SinkStatus(sink.name, sink.stream, None, 0, None))
            continue
        lag_s = round((now_us - position.bucket_end * width_us) / 1e6, 3)
        result.append(
            SinkStatus(sink.name, sink.stream, position.bucket_end, position.rows, lag_s, _late_start(position.begun))
        )
    return result


def _consumer_status(lease: Lease, now_us: int) -> ConsumerStatus:
    return ConsumerStatus(lease.stream, lease.name, lease.bucket, lease.expires_at_us, not lease.holds(now_us))
