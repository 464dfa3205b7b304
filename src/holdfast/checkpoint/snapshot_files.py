"""Snapshots on the store: page files, and manifests that say which pages make up a unit's state.

    snapshots/<stage>/<shard>/<bucket>-<generation>/pages      changed pages, one after the other
    snapshots/<stage>/<shard>/<bucket>-<generation>/manifest   every page of the state: which file, where, its CRC

Invariants:
    * A manifest is written last, durably and once: what has no manifest is no snapshot.
    * A manifest names every page of the state. Unchanged pages stay in the files of earlier snapshots, so no chain has to be
      followed; a file goes when no kept manifest names it.
    * A page whose CRC does not match is never used: `SnapshotCorrupt` names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

import google_crc32c
import msgspec
import numpy as np

from holdfast.errors import SnapshotCorrupt
from holdfast.ports import Store
from holdfast.state.layout import PAGE_BYTES
from holdfast.state.snapshot import Snapshot, SnapshotHead, SnapshotPage

FILES_MAX: Final = 8
"""A state that is spread over more page files is written whole again."""

WRITE_PAGES: Final = 64
_MAGIC: Final = b"HFSNAP01"


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All pages of a state. The four columns are packed little-endian arrays, one value a page."""

    head: SnapshotHead
    files: list[str]
    set_numbers: bytes
    logical: bytes
    file_numbers: bytes
    offsets: bytes
    checksums: bytes

    def columns(self) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        return (
            np.frombuffer(self.set_numbers, np.int32).tolist(),
            np.frombuffer(self.logical, np.int32).tolist(),
            np.frombuffer(self.file_numbers, np.int32).tolist(),
            np.frombuffer(self.offsets, np.int64).tolist(),
            np.frombuffer(self.checksums, np.uint32).tolist(),
        )


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Manifest)
Place = tuple[str, int, int]
"""File, offset, CRC of a page."""


def snapshot_path(stage: str, shard: int, bucket_end: int, generation: int) -> str:
    """Return the folder of a snapshot. It is new for each life of a unit, so no two writers meet."""
    # A bucket may be negative, a name may not begin with '-'.
    return f"snapshots/{stage}/{shard}/b{bucket_end}-{generation}"


def write_snapshot(store: Store, path: str, snapshot: Snapshot, base: str | None) -> int:
    """Write what changed since `base` (all pages without one) and then the manifest; return the bytes of pages written."""
    earlier = _usable_base(store, base, snapshot.head)
    pages = snapshot.pages() if earlier is None else snapshot.pages(since=earlier.head.wave)
    places = {} if earlier is None else _places_of(earlier)
    written = _write_pages(store, f"{path}/pages", pages, places)
    counts = snapshot.pages_by_set
    places = {(number, page): place for (number, page), place in places.items() if page < counts.get(number, 0)}
    store.write_new(f"{path}/manifest", _encode(_manifest(snapshot.head, places)))
    return written


def read_manifest(store: Store, path: str) -> Manifest:
    """Return a snapshot's manifest; `SnapshotCorrupt` if its bytes are not what was written."""
    try:
        data = bytes(store.read(f"{path}/manifest"))
    except FileNotFoundError as error:
        raise SnapshotCorrupt(f"snapshot {path} has no manifest: an older snapshot and more replay will serve") from error
    body, checksum = data[len(_MAGIC) : -4], data[-4:]
    if data[: len(_MAGIC)] != _MAGIC or google_crc32c.value(body) != int.from_bytes(checksum, "little"):
        raise SnapshotCorrupt(
            f"the manifest of snapshot {path} does not match its checksum: an older snapshot and more replay will serve"
        )
    return _DECODER.decode(body)


def read_pages(store: Store, path: str, manifest: Manifest) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (set, logical page, bytes) of every page, each checked."""
    for number, logical, file, offset, checksum in zip(*manifest.columns(), strict=True):
        name = manifest.files[file]
        try:
            data = store.read(name, offset, PAGE_BYTES)
        except FileNotFoundError as error:
            raise SnapshotCorrupt(f"snapshot {path}: its page file {name} is gone; an older snapshot will serve") from error
        found = google_crc32c.value(bytes(data))
        if found != checksum:
            raise SnapshotCorrupt(
                f"snapshot {path}: page {logical} of set {number}, at {offset} in {name}, has CRC {found:08x}, "
                f"expected {checksum:08x}; an older snapshot and more replay will serve"
            )
        yield number, logical, data


def is_complete(store: Store, path: str) -> bool:
    """Return whether a snapshot has its manifest and every file that it names."""
    if not store.exists(f"{path}/manifest"):
        return False
    return all(store.exists(name) for name in read_manifest(store, path).files)


def remove_unneeded(store: Store, stage: str, shard: int, kept: list[str], newest_bucket: int) -> list[str]:
    """Delete snapshots older than `newest_bucket` that are not kept, but for the page files that kept ones name."""
    folder = f"snapshots/{stage}/{shard}"
    needed: set[str] = set()
    for path in kept:
        with contextlib.suppress(SnapshotCorrupt):
            needed.update(read_manifest(store, path).files)
    removed = []
    for name in store.list(folder):
        path = f"{folder}/{name}"
        if path in kept or _bucket_of(name) >= newest_bucket:
            continue
        if f"{path}/pages" in needed:
            store.delete(f"{path}/manifest")
        else:
            store.delete(path)
            removed.append(path)
    return removed


def _bucket_of(name: str) -> int:
    return int(name[1:].rpartition("-")[0])


def _usable_base(store: Store, base: str | None, head: SnapshotHead) -> Manifest | None:
    """Return the manifest to build on, or None where writing everything is right or better."""
    if base is None:
        return None
    try:
        manifest = read_manifest(store, base)
    except SnapshotCorrupt:
        return None
    usable = (
        manifest.head.fingerprint == head.fingerprint
        and manifest.head.wave <= head.wave
        and len(manifest.files) < FILES_MAX
        and all(store.exists(name) for name in manifest.files)
    )
    return manifest if usable else None


def _places_of(manifest: Manifest) -> dict[tuple[int, int], Place]:
    return {
        (number, logical): (manifest.files[file], offset, checksum)
        for number, logical, file, offset, checksum in zip(*manifest.columns(), strict=True)
    }


def _write_pages(
    store: Store, name: str, pages: Iterable[SnapshotPage], places: dict[tuple[int, int], Place]
) -> int:
    """Append the pages to a new file, note where each is, and make the file durable."""
    file = store.create(name)
    try:
        offset = 0
        held: list[bytes] = []
        for page in pages:
            # The page may be written again as soon as the next one is asked for: this copy is the snapshot's.
            data = bytes(page.data)
            held.append(data)
            places[page.set_number, page.logical] = (name, offset, google_crc32c.value(data))
            offset += PAGE_BYTES
            if len(held) == WRITE_PAGES:
                file.append(held)
                held = []
        if held:
            file.append(held)
        file.sync()
        return offset
    finally:
        file.close()


def _manifest(head: SnapshotHead, places: dict[tuple[int, int], Place]) -> Manifest:
    rows = [(number, logical, *place) for (number, logical), place in sorted(places.items())]
    files = sorted({row[2] for row in rows})
    numbers = {name: number for number, name in enumerate(files)}
    return Manifest(
        head,
        files,
        np.array([row[0] for row in rows], np.int32).tobytes(),
        np.array([row[1] for row in rows], np.int32).tobytes(),
        np.array([numbers[row[2]] for row in rows], np.int32).tobytes(),
        np.array([row[3] for row in rows], np.int64).tobytes(),
        np.array([row[4] for row in rows], np.uint32).tobytes(),
    )


def _encode(manifest: Manifest) -> bytes:
    body = _ENCODER.encode(manifest)
    checksum: int = google_crc32c.value(body)
    return _MAGIC + body + checksum.to_bytes(4, "little")
