"""`pipeline.json`: what a pipeline's folder holds, and how a stream is found by its name.

Invariants:
    * The first run writes the file; of several at once exactly one does. It never becomes a different pipeline:
      what shaped the bytes in the folder (names, types, shards, buckets, steps) has to stay as it was.
    * What did not shape them (sinks, paths, policies) may change between runs, and the file follows.
    * A folder of a newer format is refused before anything else of it is read.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from difflib import get_close_matches
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.errors import AlreadyExists, HoldfastError, Misconfigured, StoreCorrupt, StoreUnfit
from holdfast.log.local_store import LocalStore
from holdfast.log.store import open_store, validate_name
from holdfast.log.watch import POLL_INTERVAL_S, Watch
from holdfast.model import FORMAT_VERSION
from holdfast.operators.words import stage_text
from holdfast.plan import REJECTS_COLUMNS, MapInArrow, Source, Stage, Step, StreamSource, Topology
from holdfast.ports import Store

CATALOG_PATH = "pipeline.json"
REJECTS_SCHEMA = pa.schema([(name, pa.string()) for name in REJECTS_COLUMNS])

_DIFFERENCES_MAX = 3
_FREE_OF_SOURCE = ("origin", "late", "on_error", "rejects_max")
_FREE_OF_STAGE = ("checkpoint_every_us",)


class Catalog(msgspec.Struct, frozen=True):
    """The content of `pipeline.json`."""

    format_version: int
    pipeline_id: str
    fingerprint: str
    topology: Topology


class _Versioned(msgspec.Struct):
    format_version: int


class StreamSide(msgspec.Struct, frozen=True, tag="side"):
    """A stream that holds what another one did not take: its late rows or its rejects.

    A bucket of it is complete when it is complete in all of `filled_by`.
    """

    name: str
    of: str
    filled_by: list[str]


class Located(msgspec.Struct, frozen=True):
    """A stream, found: the store of its pipeline's folder, what declares it, and the schema of its rows."""

    store: Store
    catalog: Catalog
    declared: Source | Stage | StreamSide
    schema: pa.Schema

    @property
    def topology(self) -> Topology:
        return self.catalog.topology

    @property
    def stream(self) -> str:
        return self.declared.name


def fingerprint(topology: Topology) -> str:
    """Return a text that is the same for topologies that can share a folder."""
    return hashlib.sha256(msgspec.json.encode(_essence(topology), order="sorted")).hexdigest()[:32]


def create_or_check(store: Store, topology: Topology) -> Catalog:
    """Return the catalog of the pipeline's folder, made now if there is none; `StoreUnfit` says what differs."""
    for stream in streams(topology):
        validate_name(stream)
    fresh = Catalog(FORMAT_VERSION, str(uuid.uuid4()), fingerprint(topology), topology)
    if not store.exists(CATALOG_PATH):
        try:
            store.write_new(CATALOG_PATH, encode(fresh))
            return fresh
        except AlreadyExists:
            pass
    there = load(store)
    differences = _differences(there.topology, topology)
    if differences:
        shown = "; ".join(differences[:_DIFFERENCES_MAX])
        more = f" (and {len(differences) - _DIFFERENCES_MAX} more)" if len(differences) > _DIFFERENCES_MAX else ""
        raise StoreUnfit(
            f"{store.url} holds pipeline {there.topology.name!r} with other streams or steps: {shown}{more}. "
            "Use another store or pipeline name for the changed pipeline, or undo the change."
        )
    if there.topology != topology:
        there = msgspec.structs.replace(there, topology=topology)
        store.replace(CATALOG_PATH, encode(there))
    return there


def encode(catalog: Catalog) -> bytes:
    """Return the bytes of `pipeline.json`, laid out for a person."""
    return msgspec.json.format(msgspec.json.encode(catalog), indent=1) + b"\n"


def load(store: Store) -> Catalog:
    """Read `pipeline.json` of a pipeline's folder."""
    try:
        data = bytes(store.read(CATALOG_PATH))
    except FileNotFoundError as error:
        raise Misconfigured(
            f"{store.url} holds no pipeline: {CATALOG_PATH} is missing. Check the path, or run the pipeline first."
        ) from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).format_version
        if version > FORMAT_VERSION:
            raise StoreUnfit(
                f"{store.url}: format version {version} is newer than {FORMAT_VERSION}, the one this holdfast reads. "
                "Install the holdfast that wrote it, or a newer one."
            )
        return msgspec.json.decode(data, type=Catalog)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{store.url}/{CATALOG_PATH} cannot be read: {error}. Restore it from a copy.") from error


def kept_shards(store_url: str, pipeline: str) -> int | None:
    """Return how many shards a pipeline's folder has; None where there is no folder that can be read."""
    try:
        return load(open_store(f"{store_url.rstrip('/')}/{pipeline}")).topology.shards
    except HoldfastError:
        return None


def streams(topology: Topology) -> dict[str, tuple[Source | Stage | StreamSide, pa.Schema]]:
    """Return every stream of a pipeline by its name, with what declares it and its schema."""
    found: dict[str, tuple[Source | Stage | StreamSide, pa.Schema]] = {}
    everything: list[Source | Stage] = [*topology.sources, *topology.stages]
    for declared in everything:
        name, schema = declared.name, schema_of(declared.schema)
        found[name] = (declared, schema)
        late = fillers_of_late(topology, name)
        if late:
            found[f"{name}.late"] = (StreamSide(f"{name}.late", name, late), schema)
        rejects = fillers_of_rejects(topology, name)
        if rejects:
            found[f"{name}.rejects"] = (StreamSide(f"{name}.rejects", name, rejects), REJECTS_SCHEMA)
    return found


def fillers_of_late(topology: Topology, stream: str) -> list[str]:
    """Return the stages that put the late rows of a stream into its side stream."""
    inputs = [(stage.name, each) for stage in topology.stages for each in stage.inputs if each.stream == stream]
    asked = any(source.name == stream and source.late == "side" for source in topology.sources)
    return [stage for stage, each in inputs if asked or each.late == "side"]


def fillers_of_rejects(topology: Topology, stream: str) -> list[str]:
    """Return the streams in whose work a row of this one may be rejected: when it is read, or in a step."""
    filled = [source.name for source in topology.sources if source.name == stream and source.on_error == "reject"]
    for stage in topology.stages:
        own = stage.name == stream and any(_may_reject(step) for step in stage.steps)
        before = [each for each in stage.inputs if each.stream == stream]
        if own or any(each.on_error == "reject" or any(map(_may_reject, each.steps)) for each in before):
            filled.append(stage.name)
    return filled


def pipelines(store_url: str) -> dict[str, Store]:
    """Return the folders of all pipelines in a store by name; the store itself where it is a pipeline's folder."""
    store = open_store(store_url)
    if store.exists(CATALOG_PATH):
        return {load(store).topology.name: store}
    base = store_url.rstrip("/") or "/"
    names = [name for name in store.list("") if _is_pipeline(store, name)]
    return {name: open_store(f"{base}/{name}") for name in names}


def _is_pipeline(store: Store, name: str) -> bool:
    try:
        return store.exists(f"{validate_name(name)}/{CATALOG_PATH}")
    except Misconfigured:
        return False


def locate(store_url: str, stream: str) -> Located:
    """Find a stream by `stream` or `pipeline/stream`; for an unknown name the error lists what there is."""
    pipeline, _, name = stream.rpartition("/")
    folders = pipelines(store_url)
    if not folders:
        raise Misconfigured(
            f"the store {store_url!r} holds no pipeline (yet). Check the path, or run the pipeline first."
        )
    found: list[Located] = []
    known: list[str] = []
    for folder, store in folders.items():
        if pipeline and folder != pipeline:
            continue
        catalog = load(store)
        for each, (declared, schema) in streams(catalog.topology).items():
            known.append(f"{folder}/{each}")
            if each == name:
                found.append(_where_it_lies(Located(store, catalog, declared, schema)))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{each.topology.name}/{name}" for each in found)
        raise Misconfigured(f"the store {store_url!r} holds several streams {name!r}. Say which: {names}.")
    there = known or list(folders)
    near = get_close_matches(name, [each.rpartition("/")[2] for each in there], n=1)
    meant = f"Did you mean {near[0]!r}? " if near else "Check the name, or run the pipeline that has it. "
    raise Misconfigured(f"the store {store_url!r} has no stream {stream!r}. {meant}There are: {', '.join(there)}.")


def _where_it_lies(found: Located) -> Located:
    """Return the stream itself, where a pipeline only reads that of another one."""
    origin = found.declared.origin if isinstance(found.declared, Source) else None
    return locate(origin.url, origin.stream) if isinstance(origin, StreamSource) else found


def wait_until_located(store_url: str | os.PathLike[str], stream: str, wait_us: int) -> Located:
    """Find a stream as `locate` does, and wait for its pipeline to be started for the first time if need be."""
    store_url = os.fspath(store_url) if isinstance(store_url, os.PathLike) else store_url
    if not isinstance(store_url, str) or not store_url or not isinstance(stream, str):
        raise Misconfigured(
            f"store {store_url!r}, stream {stream!r}: expected the pipeline's store as a path or URL, and the name of "
            "a stream, such as 'retail-store' and 'north'."
        )
    deadline = time.monotonic() + wait_us / 1e6
    store = open_store(store_url)
    watch = Watch() if isinstance(store, LocalStore) else None
    try:
        while True:
            if watch is not None and isinstance(store, LocalStore):
                # A pipeline's folder appears first, its file a moment later.
                watch.watch_only(store.root, *(store.root / name for name in store.list("")))
            try:
                return locate(store_url, stream)
            except Misconfigured:
                left_s = deadline - time.monotonic()
                # The streams of a pipeline that is there do not change.
                if left_s <= 0 or stream.rpartition("/")[0] in pipelines(store_url):
                    raise
            if watch is None:
                time.sleep(min(left_s, POLL_INTERVAL_S))
            else:
                watch.wait(left_s)
    finally:
        if watch is not None:
            watch.close()


def schema_of(serialized: bytes) -> pa.Schema:
    """Return the Arrow schema that a plan keeps as bytes."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def _may_reject(step: Step) -> bool:
    return isinstance(step, MapInArrow) and step.on_error == "reject"


def _essence(topology: Topology) -> dict[str, Any]:
    """Return what shapes the bytes of a pipeline's folder, as plain data with readable schemas."""
    sources = {each.name: _without(each, _FREE_OF_SOURCE) for each in topology.sources}
    stages = {each.name: _without(each, _FREE_OF_STAGE) for each in topology.stages}
    for stage in stages.values():
        for each in stage["inputs"]:
            for policy in ("late", "on_error"):
                each.pop(policy)
    return {
        "name": topology.name,
        "shards": topology.shards,
        "bucket_width_us": topology.bucket_width_us,
        "session_time_zone": topology.session_time_zone,
        "sources": sources,
        "stages": stages,
    }


def _without(declared: Source | Stage, free: tuple[str, ...]) -> dict[str, Any]:
    plain = _readable(msgspec.to_builtins(declared, builtin_types=(bytes,)))
    return {name: value for name, value in plain.items() if name not in free}


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        return ", ".join(
            f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema_of(value)
        )
    if isinstance(value, dict):
        return {name: _readable(each) for name, each in value.items() if name != "on_error" or "function" not in value}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    return value


def _differences(there: Topology, asked: Topology) -> list[str]:
    left, right = _essence(there), _essence(asked)
    found = _changed_steps(there, asked, left, right) + _compare("", left, right)
    streams_there = {sink.name: sink.stream for sink in there.sinks}
    for sink in asked.sinks:
        stream = streams_there.get(sink.name, sink.stream)
        if stream != sink.stream:
            found.append(f"sink {sink.name}: it took stream {stream!r}, now {sink.stream!r}")
    return found


def _changed_steps(there: Topology, asked: Topology, left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Say as one would write it what stages do that do something else now; that is taken out of both essences."""
    now = {stage.name: stage for stage in asked.stages}
    found = []
    for stage in there.stages:
        if stage.name not in now or stage_text(stage) == stage_text(now[stage.name]):
            continue
        found.append(f"the stage {stage.name!r} was {stage_text(stage)}, now {stage_text(now[stage.name])}")
        for essence in (left, right):
            del essence["stages"][stage.name]
    return found


def _compare(where: str, there: Any, asked: Any) -> list[str]:
    if isinstance(there, dict) and isinstance(asked, dict):
        names = [*there, *(name for name in asked if name not in there)]
        missing = object()
        result = []
        for name in names:
            path = f"{where}.{name}" if where else name
            left, right = there.get(name, missing), asked.get(name, missing)
            if right is missing:
                result.append(f"{path} is gone")
            elif left is missing:
                result.append(f"{path} is new")
            else:
                result += _compare(path, left, right)
        return result
    if isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        return [text for i in range(len(there)) for text in _compare(f"{where}[{i}]", there[i], asked[i])]
    return [] if there == asked else [f"{where} was {there!r}, now {asked!r}"]
