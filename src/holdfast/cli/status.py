"""`holdfast status`: what a store's pipelines are doing, read from the store alone.

Invariants:
    * Nothing is taken, locked or changed; no Spark is started.
    * What is wrong comes first. A pipeline that cannot be read is said, and does not hide the rest.
"""

from __future__ import annotations

import time

import click
import msgspec

from holdfast.cli.output import (
    bytes_text,
    common_options,
    example,
    print_grid,
    print_json,
    print_message,
    time_text,
)
from holdfast.cli.pipeline_status import PipelineStatus, StreamStatus, WriterStatus, status_of
from holdfast.cli.stores import pipelines_in
from holdfast.cli.verdict import Verdict, verdict_of
from holdfast.errors import HoldfastError
from holdfast.model import FIRST_BUCKET


@click.command("status", epilog=example("holdfast status retail-store"))
@click.argument("store")
@common_options
def command(store: str, as_json: bool) -> int:
    """Show what the pipelines in STORE are doing; it needs neither Spark nor a running pipeline."""
    folders = pipelines_in(store)
    now_us = time.time_ns() // 1000
    unread = 0
    for name, folder in folders.items():
        try:
            status = status_of(folder, now_us)
        except HoldfastError as error:
            if len(folders) == 1:
                raise
            unread += 1
            print_message(f"holdfast: {name}: {type(error).__name__}: {error}")
            continue
        verdict = verdict_of(status)
        if as_json:
            print_json({**msgspec.structs.asdict(status), **msgspec.structs.asdict(verdict)})
        else:
            show(status, verdict)
    return 1 if unread else 0


def show(status: PipelineStatus, verdict: Verdict) -> None:
    """Print a pipeline for a person."""
    click.echo(f"{status.name}: {verdict.state}{_node(status)}")
    for problem in verdict.problems:
        click.echo(f"  ! {problem}")
    room = "" if status.disk_free_bytes is None else f", {bytes_text(status.disk_free_bytes)} free"
    click.echo(f"  {status.url} ({status.shards} shards, buckets of {status.bucket_width_us / 1000:g} ms{room})")
    _show_streams(status)
    _show_units(status)
    _show_edges(status)
    print_grid(
        "reports",
        ["at", "subject", "message"],
        [[time_text(each.at_us), each.subject, each.message] for each in status.reports],
    )


def _show_streams(status: PipelineStatus) -> None:
    # Where rows of the side would go is of interest once there are any.
    shown = [each for each in status.streams if each.kind != "side" or each.rows]
    print_grid(
        "streams",
        ["stream", "kind", "written by", "boundary", "lag", "rows", "bytes"],
        [
            [
                each.name,
                each.kind,
                _writer(each.writer),
                _boundary(each),
                "" if each.ended else _lag(each.lag_s),
                each.rows,
                bytes_text(each.bytes),
            ]
            for each in shown
        ],
    )


def _show_units(status: PipelineStatus) -> None:
    print_grid(
        "units",
        ["stage", "units", "rows from", "committed up to", "rows in", "late", "snapshots", "oldest snapshot"],
        [
            [
                each.name,
                f"{each.units.count} of {each.units.shards}",
                _from(each.units.begun, status),
                _bucket(each.units.bucket_end_min, status),
                each.units.rows_in,
                each.units.rows_late,
                f"{each.units.snapshots} of {each.units.shards}",
                _bucket(each.units.snapshot_bucket_end_min, status),
            ]
            for each in status.streams
            if each.units is not None
        ],
    )


def _show_edges(status: PipelineStatus) -> None:
    print_grid(
        "sinks",
        ["sink", "stream", "rows from", "out up to", "rows"],
        [
            [each.name, each.stream, _from(each.begun, status), _bucket(each.bucket_end, status), each.rows]
            for each in status.sinks
        ],
    )
    print_grid(
        "consumers",
        ["stream", "name", "read up to", "kept until"],
        [
            [
                each.stream,
                each.name,
                _bucket(each.bucket, status),
                "expired" if each.expired else time_text(each.expires_at_us),
            ]
            for each in status.consumers
        ],
    )


def _node(status: PipelineStatus) -> str:
    writers = [each.writer for each in status.streams if each.kind == "stage" and each.writer is not None]
    if not status.alive or not writers:
        return ""
    since = "" if writers[0].since_us is None else f" since {time_text(writers[0].since_us)}"
    return f"{since} (process {writers[0].pid} on {writers[0].host})"


def _writer(writer: WriterStatus | None) -> str:
    if writer is None:
        return "nobody yet"
    state = {True: "", False: ", gone", None: ", not known whether alive"}[writer.alive]
    return f"{writer.name} ({writer.pid} on {writer.host}{state})"


def _boundary(stream: StreamStatus) -> str:
    if stream.ended:
        return "the end"
    return "" if stream.boundary_us is None else time_text(stream.boundary_us)


def _bucket(bucket: int | None, status: PipelineStatus) -> str:
    """Return the time at which a bucket begins: nobody knows buckets by their numbers."""
    if bucket is None:
        return "nothing"
    return "the beginning" if bucket <= FIRST_BUCKET else time_text(bucket * status.bucket_width_us)


def _from(bucket: int | None, status: PipelineStatus) -> str:
    """Return from where on something has rows: it may have come when the first ones were gone."""
    return _bucket(FIRST_BUCKET if bucket is None else bucket, status)


def _lag(lag_s: float | None) -> str:
    return "" if lag_s is None else f"{max(0.0, lag_s):.1f} s"
