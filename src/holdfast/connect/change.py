"""From the pipeline that a folder holds to the one that somebody asks for: whether that may be, and what it becomes.

Pure.

Invariants:
    * What made the bytes in the folder stays what it was: names, types, shards, buckets, what a stage means. What is
      new has a new name, or the name and the meaning of something that was there before.
    * How a source is sharded, and which column frames carry the highest value of, stay as they were first written.
    * A folder of files has one sink, whatever order sinks have in the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from holdfast.connect.meaning import differences, field_text, schema_text
from holdfast.plan import ParquetSink, Sink, Source, Stage, StreamSource, Topology


class Removed(msgspec.Struct, frozen=True):
    """What a pipeline had once, and has left behind in its folder."""

    sources: list[Source] = []
    stages: list[Stage] = []
    sinks: list[Sink] = []


class Change(msgspec.Struct, frozen=True):
    """A pipeline as it may become, and what it leaves behind; or why it may not."""

    topology: Topology
    removed: Removed
    refused: list[str]


_Kind = TypeVar("_Kind", Source, Stage, Sink)


def change_of(there: Topology, removed: Removed, asked: Topology) -> Change:
    """Compare what is there with what is asked for."""
    refused = [*_whole(there, asked)]
    sources = _pairs([*there.sources, *removed.sources], asked.sources)
    stages = _pairs([*there.stages, *removed.stages], asked.stages)
    refused += _kinds_that_changed(there, removed, asked)
    for source, before in sources:
        refused += [] if before is None else _source(before, source)
    for stage, before_stage in stages:
        if before_stage is not None:
            refused += [f"stage {stage.name!r}: {text}" for text in differences(before_stage, stage)]
    sinks, refused_sinks = _sinks(there, removed, asked)
    topology = replace(
        asked,
        sources=[_kept_source(before, source) for source, before in sources],
        stages=[_kept_stage(before, stage) for stage, before in stages],
        sinks=sinks,
    )
    left = Removed(
        _left([*there.sources, *removed.sources], topology.sources),
        _left([*there.stages, *removed.stages], topology.stages),
        _left([*there.sinks, *removed.sinks], sinks),
    )
    return Change(topology, left, [*refused, *refused_sinks])


def _whole(there: Topology, asked: Topology) -> Iterable[str]:
    if there.name != asked.name:
        yield f"its name was {there.name!r}, now {asked.name!r}"
    if there.shards != asked.shards:
        yield f"shards was {there.shards}, now {asked.shards}: that is fixed when a store is made"
    if there.bucket_width_us != asked.bucket_width_us:
        before, now = (each.bucket_width_us / 1000 for each in (there, asked))
        yield f"bucket was {before:g} milliseconds, now {now:g}: that is fixed when a store is made"
    if there.session_time_zone != asked.session_time_zone:
        yield f"the session's time zone was {there.session_time_zone}, now {asked.session_time_zone}"


def _kinds_that_changed(there: Topology, removed: Removed, asked: Topology) -> list[str]:
    sources = {each.name for each in (*there.sources, *removed.sources)}
    stages = {each.name for each in (*there.stages, *removed.stages)}
    found = [f"{each.name!r} was a source and is now a stage" for each in asked.stages if each.name in sources]
    return found + [f"{each.name!r} was a stage and is now a source" for each in asked.sources if each.name in stages]


def _pairs(before: Sequence[_Kind], asked: Sequence[_Kind]) -> list[tuple[_Kind, _Kind | None]]:
    known = {each.name: each for each in reversed(before)}
    return [(each, known.get(each.name)) for each in asked]


def _left(before: Sequence[_Kind], now: Sequence[_Kind]) -> list[_Kind]:
    """Return what is not there any more; of two with one name the later one."""
    names = {each.name for each in now}
    return list({each.name: each for each in reversed(before) if each.name not in names}.values())


# Sources


def _source(before: Source, now: Source) -> list[str]:
    where = f"source {now.name!r}: "
    found = [where + text for text in _columns(before.schema, now.schema)]
    rows = [_rows_text(each) for each in (before, now)]
    if rows[0] != rows[1]:
        found.append(f"{where}its rows were {rows[0]}, now {rows[1]}")
    if before.tuple_time != now.tuple_time:
        found.append(f"{where}tuple_time was {before.tuple_time!r}, now {now.tuple_time!r}")
    if before.shard_by != now.shard_by:
        found.append(f"{where}its rows were sharded by {before.shard_by}, now by {now.shard_by}")
    if None not in (before.event_time, now.event_time) and before.event_time != now.event_time:
        found.append(
            f"{where}its rows were logged with the event time {before.event_time!r}, now it is {now.event_time!r}; "
            "name a stream that selects its columns, and put the watermark on that"
        )
    return found


def _rows_text(source: Source) -> str:
    """Say whose rows a source has: another pipeline's stay where they are, all others are its own."""
    origin = source.origin
    return f"those of another pipeline's {origin.stream!r}" if isinstance(origin, StreamSource) else "its own"


def _columns(before: bytes, now: bytes) -> list[str]:
    there, asked = (pa.ipc.read_schema(pa.py_buffer(each)) for each in (before, now))
    found = [f"the column {name!r} is gone" for name in there.names if name not in asked.names]
    for name in asked.names:
        field = asked.field(name)
        if name not in there.names:
            if not field.nullable:
                found.append(
                    f"the column {name!r} is new and may not be null, and the rows that are logged have none; "
                    "declare it nullable"
                )
        elif not (field.type.equals(there.field(name).type) and field.nullable == there.field(name).nullable):
            texts = [field_text(each.field(name)) for each in (there, asked)]
            found.append(f"the column {name!r} was {texts[0]}, now {texts[1]}; add a column with another name")
    return found


def _kept_source(before: Source | None, now: Source) -> Source:
    """Return a source as the folder will have it: with the schemas that its frames were written with."""
    if before is None:
        return now
    earlier = list(before.earlier)
    if schema_text(before.schema) != schema_text(now.schema):
        earlier.append(before.schema)
        schema = now.schema
    else:
        schema = before.schema
    return replace(now, schema=schema, earlier=earlier, event_time=before.event_time or now.event_time)


def _kept_stage(before: Stage | None, now: Stage) -> Stage:
    return now if before is None else replace(now, event_time=before.event_time or now.event_time)


# Sinks


def _sinks(there: Topology, removed: Removed, asked: Topology) -> tuple[list[Sink], list[str]]:
    """Return the sinks under the names by which the folder knows their places."""
    refused: list[str] = []
    named: dict[int, Sink] = {}
    waiting = list(there.sinks)
    known = [*there.sinks, *removed.sinks]
    for number, sink in enumerate(asked.sinks):
        before = next((each for each in known if _same_folder(each, sink)), None)
        if before is not None and before.stream != sink.stream:
            refused.append(
                f"the folder {_path(sink)!r} has rows of the stream {before.stream!r}, and would get those of "
                f"{sink.stream!r}: give each sink a folder of its own"
            )
        elif before is not None:
            named[number] = replace(sink, name=before.name)
            waiting = [each for each in waiting if each.name != before.name]
    for number, sink in enumerate(asked.sinks):
        if number not in named:
            # A folder that has moved, or a console: it goes on from its place.
            moved = next((each for each in waiting if each.stream == sink.stream and _is_alike(each, sink)), None)
            waiting = [each for each in waiting if each is not moved]
            named[number] = sink if moved is None else replace(sink, name=moved.name)
            if moved is None:
                taken = {each.name for each in known} | {each.name for at, each in named.items() if at != number}
                named[number] = replace(sink, name=_free_name(sink.name, taken))
    return [named[number] for number in range(len(asked.sinks))], refused


def _free_name(name: str, taken: set[str]) -> str:
    stem, number = name, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


def _is_alike(one: Sink, other: Sink) -> bool:
    return type(one.target) is type(other.target)


def _path(sink: Sink) -> str | None:
    return sink.target.path if isinstance(sink.target, ParquetSink) else None


def _same_folder(one: Sink, other: Sink) -> bool:
    return _path(one) is not None and _path(one) == _path(other)
