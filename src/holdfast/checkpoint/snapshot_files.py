"""Snapshots on the store: page files, and manifests that say which pages make up a unit's state.

    snapshots/<stage>/<shard>/b<bucket>-<generation>-<wave>/pages      changed pages, one after the other
    snapshots/<stage>/<shard>/b<bucket>-<generation>-<wave>/manifest   every page: which file, where, its CRC

Invariants:
    * A manifest is written last, durably and once: what has no manifest is no snapshot.
    * A manifest names every page of the state. Unchanged pages stay in the files of earlier snapshots, so no chain has
      to be followed; a file goes when no kept manifest names it.
    * A page whose CRC does not match is never used: `SnapshotCorrupt` names it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import google_crc32c

from holdfast.checkpoint.manifest import Manifest, PagePlaces, decode, encode
from holdfast.errors import SnapshotCorrupt
from holdfast.log.frame import checksum as checksum_of
from holdfast.ports import AppendFile, Store
from holdfast.state.layout import PAGE_BYTES
from holdfast.state.snapshot import Snapshot, SnapshotHead, SnapshotPage

FILES_MAX: Final = 8
"""A state that is spread over more page files is written whole again."""

WRITE_PAGES: Final = 64
_NAME: Final = re.compile(r"b(-?\d+)-\d+-\d+")


def snapshot_path(stage: str, shard: int, bucket_end: int, generation: int, wave: int) -> str:
    """Return the folder of a snapshot: new for each wave of each life of a unit, so no two writers meet."""
    # A bucket may be negative, and a name may not begin with '-'.
    return f"snapshots/{stage}/{shard}/b{bucket_end}-{generation}-{wave}"


def write_snapshot(
    store: Store, path: str, snapshot: Snapshot, base: str | None, before_write: Callable[[], None] = lambda: None
) -> int:
    """Write what changed since `base` (all pages without one) and then the manifest; return the bytes of pages written.

    `base` has to be a snapshot of the same state file, or the one that the file was restored from. `before_write` is
    called now and then, and may raise to give the snapshot up.
    """
    earlier = _usable_base(store, base, snapshot.head)
    if earlier is None:
        places = _write_pages(store, f"{path}/pages", snapshot.pages(), before_write)
        written = len(places)
    else:
        changed = _write_pages(store, f"{path}/pages", snapshot.pages(since=earlier.head.wave), before_write)
        places, written = earlier.places().replaced_by(changed), len(changed)
    before_write()
    store.write_new(f"{path}/manifest", encode(Manifest.of(snapshot.head, places.within(snapshot.pages_by_set))))
    return written * PAGE_BYTES


def read_manifest(store: Store, path: str) -> Manifest:
    """Return a snapshot's manifest; `SnapshotCorrupt` if it is not there or its bytes are not what was written."""
    try:
        data = bytes(store.read(f"{path}/manifest"))
    except FileNotFoundError as error:
        raise SnapshotCorrupt(
            f"snapshot {path} has no manifest; an older snapshot and more replay will serve"
        ) from error
    return decode(data, path)


def read_pages(store: Store, path: str, manifest: Manifest) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (set, logical page, bytes) of every page, each checked."""
    places = manifest.places()
    columns = (places.set_numbers, places.logical, places.file_numbers, places.offsets, places.checksums)
    for number, logical, file, offset, expected in zip(*(column.tolist() for column in columns), strict=True):
        name = places.files[file]
        try:
            data = store.read(name, offset, PAGE_BYTES)
        except FileNotFoundError as error:
            raise SnapshotCorrupt(
                f"snapshot {path}: its page file {name} is gone; an older snapshot and more replay will serve"
            ) from error
        found = checksum_of(data)
        if found != expected or data.nbytes != PAGE_BYTES:
            raise SnapshotCorrupt(
                f"snapshot {path}: page {logical} of set {number}, at {offset} in {name}, has {data.nbytes} bytes with "
                f"CRC {found:08x}, expected {PAGE_BYTES} with {expected:08x}; an older snapshot and more replay "
                "will serve"
            )
        yield number, logical, data


def is_complete(store: Store, path: str) -> bool:
    """Return whether a snapshot has a manifest that can be read, and every page that it names."""
    try:
        places = read_manifest(store, path).places()
        return all(store.size(name) >= places.end_of(number, PAGE_BYTES) for number, name in enumerate(places.files))
    except (SnapshotCorrupt, FileNotFoundError):
        return False


def remove_unneeded(store: Store, stage: str, shard: int, kept: Collection[str], newest_bucket: int) -> list[str]:
    """Delete snapshots older than `newest_bucket` that are not kept, but for the page files that kept ones name.

    Newer ones stay: they may still be written, or be waiting for the journal to name them.
    """
    folder = f"snapshots/{stage}/{shard}"
    needed: set[str] = set()
    for path in kept:
        # Where the manifest cannot be read, nobody can use the pages either.
        with contextlib.suppress(SnapshotCorrupt):
            needed.update(read_manifest(store, path).files)
    removed = []
    for name in store.list(folder):
        path = f"{folder}/{name}"
        found = _NAME.fullmatch(name)
        if found is None or path in kept or int(found[1]) >= newest_bucket:
            continue
        if f"{path}/pages" in needed:
            store.delete(f"{path}/manifest")
        else:
            store.delete(path)
            removed.append(path)
    return removed


def _usable_base(store: Store, base: str | None, head: SnapshotHead) -> Manifest | None:
    """Return the manifest to build on, or None where writing everything is right or better."""
    if base is None or not is_complete(store, base):
        return None
    manifest = read_manifest(store, base)
    usable = (
        manifest.head.fingerprint == head.fingerprint
        and manifest.head.wave <= head.wave
        and len(manifest.files) < FILES_MAX
    )
    return manifest if usable else None


def _write_pages(
    store: Store, name: str, pages: Iterable[SnapshotPage], before_write: Callable[[], None]
) -> PagePlaces:
    """Append the pages to a new file, durably, and return where each is. Without pages there is no file."""
    sets: list[int] = []
    logical: list[int] = []
    checksums: list[int] = []
    held: list[bytes] = []
    file: AppendFile | None = None
    try:
        for page in pages:
            # The page may be written again as soon as the next one is asked for: this copy is the snapshot's.
            data = bytes(page.data)
            held.append(data)
            sets.append(page.set_number)
            logical.append(page.logical)
            checksums.append(google_crc32c.value(data))
            if len(held) == WRITE_PAGES:
                before_write()
                file = file or store.create(name)
                file.append(held)
                held = []
        if held:
            file = file or store.create(name)
            file.append(held)
        if file is not None:
            file.sync()
    finally:
        if file is not None:
            file.close()
    return PagePlaces.of_file(name, sets, logical, checksums, PAGE_BYTES)
