"""A stream of another pipeline, followed as if it were a source of this one: its frames stay where they are.

Guarantees:
    * What is told is what the other journal says: frames, where they move, what is trimmed, and how far all units have
      come, as a boundary. A bucket is complete here when it is complete there.
    * Retention over there keeps what this pipeline may still need: it has a lease, as a named consumer has.
    * Before this pipeline's lease nothing counts as kept: a stage that comes later begins there.
    * A pipeline with other buckets, or other columns than were declared, is refused by name; one that got more columns
      is read with those that it had.
"""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa

from holdfast.connect.catalog import Located, locate, schema_of
from holdfast.connect.lease import LEASE_US, Lease, read_lease, write_lease
from holdfast.errors import Misconfigured, SchemaMismatch
from holdfast.log.ledger import NO_BOUNDARY
from holdfast.log.stream_reader import StreamReader
from holdfast.model import FIRST_BUCKET, Advanced, FrameKind, JournalItem, Moved, Published, Trimmed
from holdfast.plan import Source, Stage, StreamSource, Topology


class ForeignStream:
    """Reads the other pipeline's journal, and tells it in this one's words. For one thread, but `wake`."""

    def __init__(self, source: Source, topology: Topology) -> None:
        origin = source.origin
        assert isinstance(origin, StreamSource), "only such a source is another pipeline's"
        self._name = source.name
        self._located = locate(origin.url, origin.stream)
        check_fits(self._located, source, topology)
        self._reader = StreamReader(self._located.store, self._located.stream)
        self._boundary_us = NO_BOUNDARY
        lease = read_lease(self._located.store, self._located.stream, lease_name(source, topology))
        self._held_from: int | None = None if lease is None or lease.bucket <= FIRST_BUCKET else lease.bucket

    @property
    def stream(self) -> str:
        return self._name

    def poll(self) -> list[JournalItem]:
        """Return what is new, under this pipeline's name for the stream."""
        told: list[JournalItem] = []
        for item in self._reader.poll():
            match item:
                case Published(kind=FrameKind.DATA) | Moved() | Trimmed():
                    told.append(msgspec.structs.replace(item, stream=self._name))
        if self._held_from is not None and self._reader.started:
            told.append(Trimmed(self._name, self._held_from))
            self._held_from = None
        ledger = self._reader.ledger
        boundary_us = ledger.boundary_us(self._located.stream) if self._reader.started else NO_BOUNDARY
        if boundary_us > self._boundary_us:
            self._boundary_us = boundary_us
            told.append(Advanced(self._name, boundary_us, ledger.event_time_max_us(self._located.stream)))
        return told

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as `poll` may have something to return."""
        return self._reader.wait(timeout_s)

    def wake(self) -> None:
        self._reader.wake()

    def close(self) -> None:
        self._reader.close()


def hold(source: Source, topology: Topology, bucket: int = FIRST_BUCKET) -> None:
    """Keep the other pipeline from deleting buckets from `bucket` on; a place that is there never goes back."""
    origin = source.origin
    assert isinstance(origin, StreamSource), "only such a source is another pipeline's"
    located = locate(origin.url, origin.stream)
    check_fits(located, source, topology)
    name = lease_name(source, topology)
    before = read_lease(located.store, located.stream, name)
    now_us = time.time_ns() // 1000
    kept = bucket if before is None else max(bucket, before.bucket)
    write_lease(located.store, Lease(located.stream, name, kept, now_us, now_us + LEASE_US))


def lease_name(source: Source, topology: Topology) -> str:
    """Return the name under which a pipeline is a consumer of another one's stream."""
    return f"{topology.name}.{source.name}"


class Declared(NamedTuple):
    """What a source that reads another pipeline's stream is."""

    origin: StreamSource
    schema: pa.Schema
    tuple_time: str | None


def declared_as(located: Located) -> Declared:
    """Return what a source that reads this stream is."""
    declared = located.declared
    if not isinstance(declared, Source | Stage):
        raise Misconfigured(
            f"{located.stream!r} holds what another stream did not take; a pipeline can read sources and stages"
        )
    kind: Literal["source", "stage"] = "source" if isinstance(declared, Source) else "stage"
    tuple_time = declared.tuple_time if isinstance(declared, Source) else None
    return Declared(StreamSource(located.store.url, located.stream, kind), located.schema, tuple_time)


def check_fits(located: Located, source: Source, topology: Topology) -> None:
    """Raise if the stream is not what the source says, or its buckets are not this pipeline's."""
    theirs = located.topology.bucket_width_us
    if theirs != topology.bucket_width_us:
        raise Misconfigured(
            f"the stream {located.stream!r} of {located.store.url} has buckets of {theirs / 1000:g} ms, and this "
            f"pipeline of {topology.bucket_width_us / 1000:g} ms: give both the same bucket="
        )
    expected = schema_of(source.schema)
    if expected not in (located.schema, *located.earlier):
        raise SchemaMismatch(
            f"the stream {located.stream!r} of {located.store.url} has the columns {_columns(located.schema)}, and "
            f"this pipeline was made for {_columns(expected)}: read it under another name"
        )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
