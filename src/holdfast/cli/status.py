"""`holdfast status`: what a store's pipelines are doing, read from the store alone.

Invariants:
    * Nothing is taken, locked or changed; no Spark is started.
    * What cannot be read is said, and does not hide the rest.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.output import bytes_text, common_options, example, print_grid, print_json, time_text
from holdfast.connect.catalog import Catalog, load, pipelines, streams
from holdfast.connect.lease import Lease, leases
from holdfast.errors import HoldfastError, Misconfigured
from holdfast.log.inspect import read_ledger, show_stream
from holdfast.log.ledger import Ledger, SinkPosition
from holdfast.log.local_store import LocalStore
from holdfast.log.terms import terms_folder
from holdfast.model import END_OF_TIME, Reported
from holdfast.plan import Source, Stage
from holdfast.ports import Store

REPORTS_SHOWN = 10


class WriterStatus(msgspec.Struct, frozen=True):
    """Who writes a stream. `alive` is None where this machine cannot tell."""

    owner: str
    host: str
    pid: int
    term: int
    alive: bool | None


class UnitsStatus(msgspec.Struct, frozen=True):
    """How far the units of a stage are, and what they have seen."""

    count: int
    shards: int
    bucket_end_min: int | None
    bucket_end_max: int | None
    rows_in: int
    rows_late: int
    snapshots: int
    snapshot_bucket_end_min: int | None


class StreamStatus(msgspec.Struct, frozen=True):
    """A stream: `lag_s` is how far its boundary is behind the clock."""

    name: str
    kind: str
    writer: WriterStatus | None
    boundary_us: int | None
    lag_s: float | None
    ended: bool
    rows: int
    bytes: int
    units: UnitsStatus | None = None
    problem: str | None = None


class SinkStatus(msgspec.Struct, frozen=True):
    name: str
    stream: str
    bucket_end: int | None
    rows: int
    lag_s: float | None


class ConsumerStatus(msgspec.Struct, frozen=True):
    stream: str
    name: str
    bucket: int
    expires_at_us: int
    expired: bool


class PipelineStatus(msgspec.Struct, frozen=True):
    """Everything that is known of a pipeline from its folder."""

    name: str
    id: str
    url: str
    alive: bool | None
    shards: int
    bucket_width_us: int
    streams: list[StreamStatus]
    sinks: list[SinkStatus]
    consumers: list[ConsumerStatus]
    reports: list[Reported]


def status_of(store: Store, now_us: int) -> PipelineStatus:
    """Return the status of the pipeline in a folder."""
    catalog = load(store)
    topology = catalog.topology
    found: list[StreamStatus] = []
    consumers: list[ConsumerStatus] = []
    reports: set[Reported] = set()
    positions: dict[str, SinkPosition] = {}
    for name, (declared, _) in streams(topology).items():
        try:
            ledger = read_ledger(store, name)
            found.append(_stream_status(store, name, _kind(declared), ledger, now_us))
            consumers += [_consumer_status(lease, now_us) for lease in leases(store, name)]
            reports.update(ledger.reports)
            positions |= ledger.sinks
        except HoldfastError as error:
            found.append(StreamStatus(name, _kind(declared), None, None, None, False, 0, 0, None, str(error)))
    stages = {stage.name for stage in topology.stages}
    writers = [each.writer for each in found if each.writer is not None and each.name in stages]
    return PipelineStatus(
        name=topology.name,
        id=catalog.pipeline_id,
        url=store.url,
        alive=writers[0].alive if writers else False,
        shards=topology.shards,
        bucket_width_us=topology.bucket_width_us,
        streams=found,
        sinks=_sinks(catalog, positions, now_us),
        consumers=consumers,
        reports=sorted(reports, key=lambda report: report.at_us)[-REPORTS_SHOWN:],
    )


def _kind(declared: object) -> str:
    if isinstance(declared, Source):
        return "source"
    return "stage" if isinstance(declared, Stage) else "side"


def _stream_status(store: Store, name: str, kind: str, ledger: Ledger, now_us: int) -> StreamStatus:
    shown = show_stream(store, name)
    if shown is None:
        return StreamStatus(name, kind, None, None, None, False, 0, 0)
    boundary_us = shown.boundary_us
    ended = boundary_us is not None and boundary_us >= END_OF_TIME
    lag_s = None if boundary_us is None or ended else round((now_us - boundary_us) / 1e6, 3)
    folded = sum(rows for rows, _ in ledger.digests_folded(name).values())
    alive = is_alive(store, name, shown.host)
    writer = WriterStatus(shown.owner, shown.host, shown.pid, shown.term, alive)
    units = _units_status(ledger, name) if kind == "stage" else None
    return StreamStatus(name, kind, writer, boundary_us, lag_s, ended, shown.rows + folded, shown.bytes, units)


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


def _units_status(ledger: Ledger, stage: str) -> UnitsStatus:
    units = ledger.units(stage)
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
    )


def _sinks(catalog: Catalog, positions: dict[str, SinkPosition], now_us: int) -> list[SinkStatus]:
    width_us = catalog.topology.bucket_width_us
    result = []
    for sink in catalog.topology.sinks:
        position = positions.get(sink.name)
        if position is None or position.bucket_end is None:
            result.append(SinkStatus(sink.name, sink.stream, None, 0, None))
            continue
        lag_s = round((now_us - position.bucket_end * width_us) / 1e6, 3)
        result.append(SinkStatus(sink.name, sink.stream, position.bucket_end, position.rows, lag_s))
    return result


def _consumer_status(lease: Lease, now_us: int) -> ConsumerStatus:
    return ConsumerStatus(lease.stream, lease.name, lease.bucket, lease.expires_at_us, not lease.holds(now_us))


@click.command("status", epilog=example("holdfast status retail-store"))
@click.argument("store")
@common_options
def command(store: str, as_json: bool) -> None:
    """Show what the pipelines in STORE are doing; it needs neither Spark nor a running pipeline."""
    folders = pipelines(store)
    if not folders:
        raise Misconfigured(f"the store {store!r} holds no pipeline. Check the path, or run the pipeline first.")
    now_us = time.time_ns() // 1000
    for folder in folders.values():
        status = status_of(folder, now_us)
        if as_json:
            print_json(status)
        else:
            _print(status)


def _print(status: PipelineStatus) -> None:
    state = {True: "running", False: "not running", None: "unknown"}[status.alive]
    click.echo(f"{status.name}: {state} ({status.url}, {status.shards} shards, buckets of {_width(status)})")
    print_grid(
        "streams",
        ["stream", "kind", "written by", "boundary", "lag", "rows", "bytes"],
        [
            [
                each.name,
                each.kind,
                _writer(each.writer),
                "end" if each.ended else ("" if each.boundary_us is None else time_text(each.boundary_us)),
                _lag(each.lag_s),
                each.rows,
                bytes_text(each.bytes),
            ]
            for each in status.streams
        ],
    )
    print_grid(
        "units",
        ["stage", "units", "bucket", "rows in", "late", "snapshots", "oldest"],
        [
            [
                each.name,
                f"{each.units.count} of {each.units.shards}",
                _number(each.units.bucket_end_min),
                each.units.rows_in,
                each.units.rows_late,
                each.units.snapshots,
                _number(each.units.snapshot_bucket_end_min),
            ]
            for each in status.streams
            if each.units is not None
        ],
    )
    print_grid(
        "sinks",
        ["sink", "stream", "bucket", "rows", "lag"],
        [[each.name, each.stream, _number(each.bucket_end), each.rows, _lag(each.lag_s)] for each in status.sinks],
    )
    print_grid(
        "consumers",
        ["stream", "name", "bucket", "kept until"],
        [
            [each.stream, each.name, str(each.bucket), "expired" if each.expired else time_text(each.expires_at_us)]
            for each in status.consumers
        ],
    )
    print_grid(
        "reports",
        ["at", "subject", "message"],
        [[time_text(each.at_us), each.subject, each.message] for each in status.reports],
    )
    for each in status.streams:
        if each.problem is not None:
            click.echo(f"{each.name}: cannot be read: {each.problem}")


def _writer(writer: WriterStatus | None) -> str:
    if writer is None:
        return ""
    state = {True: "", False: ", gone", None: ", not known whether alive"}[writer.alive]
    return f"{writer.owner} (process {writer.pid} on {writer.host}{state})"


def _number(value: Any) -> str:
    return "" if value is None else str(value)


def _lag(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{lag_s:.1f} s"


def _width(status: PipelineStatus) -> str:
    return f"{status.bucket_width_us / 1000:g} ms"
