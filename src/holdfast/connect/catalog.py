"""`pipeline.json`: what a pipeline's folder holds, and how a stream is found by its name.

Invariants:
    * The first run writes the file; of several at once exactly one does. It never becomes a different pipeline:
      what may change, and what not, `change.py` says.
    * A change is one replacement of the file, while no node runs and nobody trims (`changing`): before it nothing of it
      has happened, and after it everybody who looks sees it.
    * A folder of a newer format is refused before anything else of it is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import msgspec
import pyarrow as pa

from holdfast.connect.change import Change, Removed, change_of
from holdfast.connect.meaning import meaning, plain
from holdfast.errors import (
    AlreadyExists,
    HoldfastError,
    Misconfigured,
    StoreCorrupt,
    StoreUnavailable,
    StoreUnfit,
    StreamTaken,
)
from holdfast.log.local_store import LocalStore
from holdfast.log.store import open_store, validate_name
from holdfast.log.terms import has_terms, locked
from holdfast.log.watch import POLL_INTERVAL_S, Watch
from holdfast.model import FORMAT_VERSION
from holdfast.plan import REJECTS, REJECTS_COLUMNS, MapInArrow, Source, Stage, Step, StreamSource, Topology
from holdfast.ports import Lock, Store

CATALOG_PATH = "pipeline.json"
LOCK_PATH = "pipeline.lock"
REJECTS_SCHEMA = pa.schema([(name, pa.string()) for name in REJECTS_COLUMNS])

_DIFFERENCES_MAX = 3
_FREE_OF_SOURCE = ("origin", "late", "on_error", "rejects_max", "event_time", "earlier")
_LOCK_WAIT_S = 10.0


class Catalog(msgspec.Struct, frozen=True):
    """The content of `pipeline.json`."""

    format_version: int
    pipeline_id: str
    fingerprint: str
    topology: Topology
    removed: Removed = Removed()
    added: list[str] = []
    """Stages that came by a change: the streams that they read were there before them."""

    @property
    def known(self) -> Topology:
        """What the pipeline has, and what it had and left behind: both decide how rows are written."""
        return msgspec.structs.replace(
            self.topology,
            sources=[*self.topology.sources, *self.removed.sources],
            stages=[*self.topology.stages, *self.removed.stages],
        )


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
    earlier: Sequence[pa.Schema] = ()
    """The schemas that rows of the stream may have been written with before."""

    @property
    def topology(self) -> Topology:
        return self.catalog.topology

    @property
    def stream(self) -> str:
        return self.declared.name


def fingerprint(topology: Topology) -> str:
    """Return a text that is the same for topologies that mean the same."""
    sources = {}
    for source in topology.sources:
        found = plain(msgspec.to_builtins(source, builtin_types=(bytes,)))
        sources[source.name] = {name: value for name, value in found.items() if name not in _FREE_OF_SOURCE}
    essence = {
        "name": topology.name,
        "shards": topology.shards,
        "bucket_width_us": topology.bucket_width_us,
        "session_time_zone": topology.session_time_zone,
        "sources": sources,
        "stages": {stage.name: meaning(stage) for stage in topology.stages},
    }
    return hashlib.sha256(msgspec.json.encode(essence, order="sorted")).hexdigest()[:32]


def create_or_check(store: Store, topology: Topology) -> Catalog:
    """Return the catalog of the pipeline's folder, made now if there is none, changed if it may be.

    `StoreUnfit` says what differs and may not, `StreamTaken` who runs a pipeline that is to change.
    """
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
    if _changed(store, there, topology).topology == there.topology:
        return there
    with _nobody_runs(store, there.topology), changing(store, _LOCK_WAIT_S) as held:
        if not held:
            raise StoreUnavailable(
                f"{store.url} could not be changed: another process has held {LOCK_PATH} for {_LOCK_WAIT_S:g} s. Try "
                "again, or look which process that is"
            )
        # Somebody else may have changed it, until now.
        there = load(store)
        change = _changed(store, there, topology)
        there = msgspec.structs.replace(
            there,
            topology=change.topology,
            fingerprint=fingerprint(change.topology),
            removed=change.removed,
            added=_added(there, change.topology),
        )
        store.replace(CATALOG_PATH, encode(there))
        return there


def check_unchanged(store: Store, catalog: Catalog) -> None:
    """Raise if the pipeline was changed since `catalog` was read; who asks has its streams, so it stays as it is."""
    if load(store) != catalog:
        raise StreamTaken(
            f"the pipeline {catalog.topology.name!r} was changed by another process while this one started; start the "
            "script that is the newer one"
        )


@contextlib.contextmanager
def changing(store: Store, wait_s: float = 0.0) -> Iterator[bool]:
    """Keep `pipeline.json` as it is while something is done that depends on it; give False where others do just now.

    A trim takes it from reading the file until it is in the journal, a change while it replaces the file: so nothing
    goes that a stage needs which was in the file before.
    """
    if not store.capabilities.lock:
        yield True
        return
    deadline = time.monotonic() + wait_s
    lock: Lock | None = store.lock(LOCK_PATH)
    while lock is None and time.monotonic() < deadline:
        # A lock that is let go of is no event of the file system; it is held for one sync.
        time.sleep(0.01)
        lock = store.lock(LOCK_PATH)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def _nobody_runs(store: Store, topology: Topology) -> Iterator[None]:
    """Hold the locks of the stages' streams; `StreamTaken` names the node that has them."""
    names = [stage.name for stage in topology.stages if has_terms(store, stage.name)]
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(locked(store, names))
        except StreamTaken as taken:
            raise StreamTaken(
                f"the pipeline {topology.name!r} runs, and what it is cannot change meanwhile: {taken}"
            ) from taken
        yield


def _added(there: Catalog, topology: Topology) -> list[str]:
    known = {stage.name for stage in there.known.stages}
    return [*there.added, *(stage.name for stage in topology.stages if stage.name not in known)]


def _changed(store: Store, there: Catalog, asked: Topology) -> Change:
    """Return the change; raise if it may not be."""
    change = change_of(there.topology, there.removed, asked)
    if change.refused:
        shown = "; ".join(change.refused[:_DIFFERENCES_MAX])
        more = f" (and {len(change.refused) - _DIFFERENCES_MAX} more)" if len(change.refused) > _DIFFERENCES_MAX else ""
        raise StoreUnfit(
            f"{store.url} holds rows of the pipeline {there.topology.name!r} as it was, and this cannot become of it: "
            f"{shown}{more}. Give what changed a new name, beside or instead of the old one (a stage then makes its "
            "rows anew from what is kept), or undo the change; docs/changing.md says what may change"
        )
    return change


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
                earlier = earlier_schemas(catalog.topology, declared)
                found.append(_where_it_lies(Located(store, catalog, declared, schema, earlier)))
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
                # A pipeline that is there gets streams only when its script is started.
                if left_s <= 0 or stream.rpartition("/")[0] in pipelines(store_url):
                    raise
            if watch is None:
                time.sleep(min(left_s, POLL_INTERVAL_S))
            else:
                watch.wait(left_s)
    finally:
        if watch is not None:
            watch.close()


def earlier_schemas(topology: Topology, declared: Source | Stage | StreamSide) -> list[pa.Schema]:
    """Return the schemas that rows of a stream may have been written with before; late rows are as their source's."""
    name = declared.of if isinstance(declared, StreamSide) else declared.name
    if declared.name.endswith(REJECTS):
        return []
    return [schema_of(each) for source in topology.sources if source.name == name for each in source.earlier]


def schema_of(serialized: bytes) -> pa.Schema:
    """Return the Arrow schema that a plan keeps as bytes."""
    return pa.ipc.read_schema(pa.py_buffer(serialized))


def _may_reject(step: Step) -> bool:
    return isinstance(step, MapInArrow) and step.on_error == "reject"
