"""Compare what the journal names with the files that are there.

Invariants:
    * A frame that the journal names was synced before it was named: if its segment is gone or too short, somebody's
      disk has lost it, and that is an error with a name, whatever else is fine.
    * A segment that no frame is in was never part of a stream, or no longer is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

import msgspec

from holdfast.errors import SegmentCorrupt
from holdfast.log.ledger import Ledger
from holdfast.log.segment import SUFFIX
from holdfast.log.store import validate_name
from holdfast.model import Published
from holdfast.ports import Store


class Damage(msgspec.Struct, frozen=True):
    """A frame that the journal names and that cannot be read."""

    stream: str
    frame: Published
    found: str


class Reconciled(msgspec.Struct, frozen=True):
    """The result: what is missing, and which segments hold nothing."""

    missing: list[Damage]
    orphans: dict[str, int]
    """Path and size of each segment that no frame is in."""
    torn_bytes: int
    """Bytes behind the last named frame of a segment: written, never committed."""
    folders: frozenset[str] = frozenset()
    """Every folder with segments: who opens a log knows that their writers are of earlier lives."""


def segment_paths(store: Store, stream: str) -> Iterator[str]:
    """Yield the paths of all segments of a stream."""
    root = f"streams/{validate_name(stream)}"
    for node in store.list(root):
        for folder in store.list(f"{root}/{node}"):
            for name in store.list(f"{root}/{node}/{folder}"):
                if name.endswith(SUFFIX):
                    yield f"{root}/{node}/{folder}/{name}"


def segment_sizes(store: Store, stream: str) -> dict[str, int]:
    """Return the size of every segment of a stream; one that another process deletes meanwhile is left out."""
    sizes: dict[str, int] = {}
    for path in segment_paths(store, stream):
        with contextlib.suppress(FileNotFoundError):
            sizes[path] = store.size(path)
    return sizes


def reconcile(store: Store, ledger: Ledger, streams: Collection[str]) -> Reconciled:
    """Return what is missing and what is too much of `streams`, by names and sizes alone."""
    missing: list[Damage] = []
    orphans: dict[str, int] = {}
    torn_bytes = 0
    folders: set[str] = set()
    for stream in streams:
        uses = ledger.segment_uses(stream)
        sizes = segment_sizes(store, stream)
        folders |= {path.rpartition("/")[0] for path in sizes}
        orphans |= {path: size for path, size in sizes.items() if path not in uses}
        short = {path for path, use in uses.items() if sizes.get(path, -1) < use.end}
        torn_bytes += sum(sizes[path] - use.end for path, use in uses.items() if path not in short)
        if short:
            missing += _missing(ledger, stream, short, sizes)
    return Reconciled(missing, orphans, torn_bytes, frozenset(folders))


def _missing(ledger: Ledger, stream: str, short: Collection[str], sizes: dict[str, int]) -> Iterator[Damage]:
    for published in ledger.each_frame(stream):
        ref = published.frame
        if ref.segment in short and ref.offset + ref.length > sizes.get(ref.segment, -1):
            found = f"{sizes[ref.segment]} bytes" if ref.segment in sizes else "no such file"
            yield Damage(stream, published, found)


def check_nothing_missing(reconciled: Reconciled) -> None:
    """Raise `SegmentCorrupt` naming the first missing frame."""
    if reconciled.missing:
        first = reconciled.missing[0]
        ref = first.frame.frame
        shard = "many" if first.frame.shard < 0 else str(first.frame.shard)
        raise SegmentCorrupt(
            f"stream {first.stream!r}, shard {shard}: the frame at offset {ref.offset} of segment {ref.segment} is "
            "missing: "
            f"expected {ref.offset + ref.length} bytes in the file, found {first.found} ({len(reconciled.missing)} "
            "frames "
            "in all); restore the file from a copy of the store, or run `holdfast log repair`"
        )
