"""`holdfast log`: look into the log of a pipeline, verify it, repair it.

Invariants:
    * Looking and verifying change nothing and may be done while the pipeline runs.
    * Repairing takes the streams, so it is refused while somebody writes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import click
import msgspec

from holdfast.cli.output import bytes_text, common_options, example, print_grid, print_json, print_message, time_text
from holdfast.cli.stores import check_format, pipelines_in
from holdfast.errors import Misconfigured, SegmentCorrupt
from holdfast.log import inspect
from holdfast.log.reconcile import Damage
from holdfast.model import FIRST_BUCKET, Entry, FrameKind
from holdfast.ports import Store

ROWS_AT_ONCE: Final = 1000


@click.group("log", epilog=example("holdfast log show retail-store"))
def command() -> None:
    """Look into the log of a pipeline, verify it, repair it."""


def chosen(store: str, streams: tuple[str, ...]) -> Iterator[tuple[str, Store, list[str]]]:
    """Yield each pipeline of a store with the streams that were asked for; all of them where none were."""
    folders = pipelines_in(store)
    check_format(folders)
    there = {name: list(folder.list("terms")) for name, folder in folders.items()}
    for asked in streams:
        pipeline, _, name = asked.rpartition("/")
        if not any(name in names for folder, names in there.items() if pipeline in ("", folder)):
            known = ", ".join(f"{folder}/{name}" for folder, names in there.items() for name in names) or "none yet"
            raise Misconfigured(f"the store {store!r} has no stream {asked!r} that was written. There are: {known}.")
    for folder, names in there.items():
        wanted = [name for name in names if not streams or name in streams or f"{folder}/{name}" in streams]
        if wanted:
            yield folder, folders[folder], wanted


@command.command("show", epilog=example("holdfast log show retail-store averages --frames"))
@click.argument("store")
@click.argument("streams", nargs=-1)
@click.option("--frames", is_flag=True, help="List the committed frames.")
@click.option("--segment", help="Walk this segment (a path below the pipeline's folder) instead.")
@click.option("--journal", help="List the entries of this journal instead.")
@common_options
def show(
    store: str, streams: tuple[str, ...], frames: bool, segment: str | None, journal: str | None, as_json: bool
) -> None:
    """Show the STREAMS of a STORE: who writes them, and what is in them."""
    if segment or journal:
        _show_file(store, segment, journal, as_json)
        return
    for pipeline, folder, names in chosen(store, streams):
        shown = [each for name in names if (each := inspect.show_stream(folder, name)) is not None]
        if as_json:
            for each in shown:
                print_json({"pipeline": pipeline, **msgspec.structs.asdict(each)})
                for frame in inspect.show_frames(folder, each.stream) if frames else ():
                    print_json(frame)
            continue
        _print_streams(pipeline, shown)
        for each in shown if frames else []:
            _print_frames(folder, each.stream)


def _print_streams(pipeline: str, shown: list[inspect.StreamShown]) -> None:
    print_grid(
        pipeline,
        ["stream", "term", "owner", "frames", "rows", "bytes", "segments", "first bucket", "end", "boundary"],
        [
            [
                each.stream,
                each.term,
                f"{each.owner} ({each.pid} on {each.host})",
                each.frames,
                each.rows,
                bytes_text(each.bytes),
                each.segments,
                "" if each.bucket_first is None else str(each.bucket_first),
                "" if each.bucket_end is None else str(each.bucket_end),
                "" if each.boundary_us is None else time_text(each.boundary_us),
            ]
            for each in shown
        ],
    )


def _print_frames(folder: Store, stream: str) -> None:
    rows = (
        [
            FrameKind(each.kind).name,
            "many" if each.shard < 0 else str(each.shard),
            f"[{each.bucket_start}, {each.bucket_end})",
            each.rows,
            each.frame.length,
            each.frame.segment,
            each.frame.offset,
        ]
        for each in inspect.show_frames(folder, stream)
    )
    _print_long(f"frames of {stream}", ["kind", "shard", "buckets", "rows", "bytes", "segment", "offset"], rows)


def _print_long(title: str, headings: list[str], rows: Iterator[list[Any]]) -> None:
    """Print rows as they come, with the headings now and then: there may be more than fit in memory."""
    while some := list(islice(rows, ROWS_AT_ONCE)):
        print_grid(title, headings, some)


def _show_file(store: str, segment: str | None, journal: str | None, as_json: bool) -> None:
    """Show a segment or a journal of the one pipeline that has it."""
    path = segment or journal or ""
    folders = pipelines_in(store)
    check_format(folders)
    for folder in folders.values():
        if segment is not None and folder.exists(segment):
            _print_segment(folder, segment, as_json)
            return
        if journal is not None and folder.list(journal):
            for file, entries in inspect.show_journal(folder, journal):
                _print_journal(file, entries, as_json)
            return
    raise Misconfigured(f"no pipeline of the store {store!r} has {path!r}. `holdfast log show --json` names the files.")


def _print_segment(folder: Store, path: str, as_json: bool) -> None:
    """Print a segment's frames, with JSON one a line, and at the end where and why bytes were no more frames."""
    stopped = None
    headings = ["offset", "bytes", "kind", "stream", "shard", "generation", "buckets", "rows"]
    try:
        frames = inspect.show_segment(folder, path, verify=True)
        if as_json:
            for each in frames:
                print_json(each)
        else:
            _print_long(f"{path}, {bytes_text(folder.size(path))}", headings, map(_frame_row, frames))
    except SegmentCorrupt as error:
        stopped = str(error)
    if as_json:
        print_json({"path": path, "bytes": folder.size(path), "stopped": stopped})
    elif stopped is not None:
        click.echo(f"stopped: {stopped}")


def _frame_row(each: inspect.FrameShown) -> list[Any]:
    return [
        each.offset,
        each.length,
        each.kind,
        each.stream,
        "many" if each.shard < 0 else str(each.shard),
        each.generation,
        f"[{each.bucket_start}, {each.bucket_end})",
        each.rows,
    ]


def _print_journal(file: inspect.JournalShown, entries: Iterator[tuple[Entry, bool]], as_json: bool) -> None:
    """Print a file of a journal and its entries, with JSON one a line."""
    if as_json:
        print_json(file)
    else:
        click.echo(f"{file.path}: {bytes_text(file.bytes)}, streams {', '.join(file.names)}, mark at {file.mark}")
    for entry, visible in entries:
        if as_json:
            print_json({"number": entry.number, "visible": visible, "items": entry.items})
        else:
            hidden = "" if visible else "(not visible) "
            click.echo(f"  {entry.number}  {hidden}" + "; ".join(map(_item_text, entry.items)))


def _item_text(item: Any) -> str:
    fields = ", ".join(f"{name}={getattr(item, name)!r}" for name in item.__struct_fields__)
    return f"{type(item).__name__}({fields})"


@command.command("verify", epilog=example("holdfast log verify retail-store"))
@click.argument("store")
@click.argument("streams", nargs=-1)
@common_options
def verify(store: str, streams: tuple[str, ...], as_json: bool) -> int:
    """Read every committed byte of the STREAMS of a STORE, and name what is damaged (exit status 1)."""
    damaged = 0
    for pipeline, folder, names in chosen(store, streams):
        for found in inspect.verify(folder, names):
            damaged += len(found.damaged)
            if as_json:
                print_json({"pipeline": pipeline, **msgspec.structs.asdict(found)})
                continue
            state = f"{len(found.damaged)} damaged" if found.damaged else "good"
            spare = f", {bytes_text(found.torn_bytes)} never committed" if found.torn_bytes else ""
            names_text = ", ".join(found.streams)
            size = bytes_text(found.bytes)
            click.echo(f"{pipeline}/{names_text}: {found.frames:,} frames, {size}: {state}{spare}")
            for damage in found.damaged:
                click.echo(f"  {damage_text(damage)}")
    if damaged and not as_json:
        print_message("holdfast: run `holdfast log repair` to mend from copies what can be mended")
    return 1 if damaged else 0


@command.command("repair", epilog=example("holdfast log repair retail-store north"))
@click.argument("store")
@click.argument("streams", nargs=-1, required=True)
@common_options
def repair(store: str, streams: tuple[str, ...], as_json: bool) -> int:
    """Mend STREAMS that nobody writes: damaged frames from copies; what has none is named (exit status 1)."""
    lost = 0
    for pipeline, folder, names in chosen(store, streams):
        for name, result in zip(names, inspect.repair(folder, names, time.time_ns() // 1000), strict=True):
            lost += len(result.lost)
            if as_json:
                print_json({"pipeline": pipeline, "stream": name, **msgspec.structs.asdict(result)})
                continue
            cut = bytes_text(result.cut_bytes)
            click.echo(f"{pipeline}/{name}: {result.mended} frames mended, {len(result.lost)} lost, {cut} cut off")
            for damage in result.lost:
                click.echo(f"  {damage_text(damage)}")
    if lost and not as_json:
        print_message(
            "holdfast: no copy of what is lost is in the store. Bring the segments back from a backup; until then a "
            "reader that comes to them stops and names them"
        )
    return 1 if lost else 0


def damage_text(damage: Damage) -> str:
    """Return one line that names a damaged frame."""
    frame = damage.frame
    shard = "many" if frame.shard < 0 else str(frame.shard)
    start = "?" if frame.bucket_start < FIRST_BUCKET else str(frame.bucket_start)
    return (
        f"stream {damage.stream}, shard {shard}, buckets [{start}, {frame.bucket_end}), {frame.rows:,} rows: "
        f"{frame.frame.segment} at {frame.frame.offset}: {damage.found}"
    )
