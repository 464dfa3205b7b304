"""A manifest: every page of a unit's state, with the file that holds it, where in it, and its checksum.

Invariants:
    * A manifest is whole by itself: pages that did not change are named where an earlier snapshot wrote them.
    * Pages stand in the order (set, logical page), each once; a file that holds no page of the state is not named.
    * Bytes that are not what `encode` made raise `SnapshotCorrupt`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.errors import NameInvalid, SnapshotCorrupt
from holdfast.log.store import validate_path
from holdfast.model import NOT_DECODED
from holdfast.state.layout import META_BYTES_MAX
from holdfast.state.snapshot import SnapshotHead

_MAGIC: Final = b"HFSNAP01"
_CHECKSUM_BYTES: Final = 4
WAVE_MAX: Final = 1 << 54
"""What a record's header has room for."""
Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class PagePlaces:
    """Where pages are, one value a page in each column. `file_numbers` count in `files`."""

    files: list[str]
    set_numbers: Numbers
    logical: Numbers
    file_numbers: Numbers
    offsets: Numbers
    checksums: Numbers

    def __len__(self) -> int:
        return len(self.logical)

    @classmethod
    def of_file(
        cls, name: str, sets: Sequence[int], logical: Sequence[int], checksums: Sequence[int], size: int
    ) -> PagePlaces:
        """Return the places of pages of `size` bytes that lie in one file, one after the other."""
        count = len(logical)
        return cls(
            [name],
            np.array(sets, np.int32),
            np.array(logical, np.int32),
            np.zeros(count, np.int32),
            np.arange(count, dtype=np.int64) * size,
            np.array(checksums, np.uint32),
        )

    def replaced_by(self, newer: PagePlaces) -> PagePlaces:
        """Return the places of the pages of both; of a page that is in both, the newer one."""
        merged = PagePlaces(
            [*self.files, *newer.files],
            np.concatenate([self.set_numbers, newer.set_numbers]),
            np.concatenate([self.logical, newer.logical]),
            np.concatenate([self.file_numbers, newer.file_numbers + np.int32(len(self.files))]),
            np.concatenate([self.offsets, newer.offsets]),
            np.concatenate([self.checksums, newer.checksums]),
        )
        keys = merged.set_numbers.astype(np.int64) << 32 | merged.logical
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        # The sort is stable, so the last of equal keys is the newest.
        last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.zeros(0, np.bool_)
        return merged.take(order[last])

    def within(self, pages_by_set: Mapping[int, int]) -> PagePlaces:
        """Return the places of the pages below each set's count: a state may have become smaller since."""
        limits = np.array([pages_by_set.get(number, 0) for number in range(self._sets())], np.int64)
        return self.take(np.flatnonzero(self.logical < limits[self.set_numbers])) if len(self) else self

    def take(self, rows: Numbers) -> PagePlaces:
        """Return some of the pages; files that none of them is in are no longer named."""
        used, numbers = np.unique(self.file_numbers[rows], return_inverse=True)
        return PagePlaces(
            [self.files[number] for number in used.tolist()],
            self.set_numbers[rows],
            self.logical[rows],
            numbers.astype(np.int32),
            self.offsets[rows],
            self.checksums[rows],
        )

    def end_of(self, file_number: int, size: int) -> int:
        """Return how long a file has to be so that all of its pages, of `size` bytes each, are in it."""
        offsets = self.offsets[self.file_numbers == file_number]
        return int(offsets.max()) + size if len(offsets) else 0

    def _sets(self) -> int:
        return int(self.set_numbers.max()) + 1 if len(self) else 0


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """All pages of a state. The five columns are packed little-endian arrays, one value a page."""

    head: SnapshotHead
    files: list[str]
    set_numbers: bytes
    logical: bytes
    file_numbers: bytes
    offsets: bytes
    checksums: bytes

    @classmethod
    def of(cls, head: SnapshotHead, places: PagePlaces) -> Manifest:
        """Return the manifest of a snapshot whose pages are at `places`."""
        return cls(
            head,
            places.files,
            places.set_numbers.astype("<i4").tobytes(),
            places.logical.astype("<i4").tobytes(),
            places.file_numbers.astype("<i4").tobytes(),
            places.offsets.astype("<i8").tobytes(),
            places.checksums.astype("<u4").tobytes(),
        )

    def places(self) -> PagePlaces:
        return PagePlaces(
            self.files,
            np.frombuffer(self.set_numbers, "<i4"),
            np.frombuffer(self.logical, "<i4"),
            np.frombuffer(self.file_numbers, "<i4"),
            np.frombuffer(self.offsets, "<i8"),
            np.frombuffer(self.checksums, "<u4"),
        )


def _check(manifest: Manifest) -> None:
    """Raise `ValueError` where a manifest says what `of` never does: nothing that it names is believed before."""
    places, head = manifest.places(), manifest.head
    columns = (places.set_numbers, places.file_numbers, places.offsets, places.checksums)
    if any(len(column) != len(places) for column in columns) or sum(head.pages) != len(places):
        raise ValueError(
            f"{sum(head.pages)} pages in its head and {[len(column) for column in columns]} in its columns"
        )
    for name in places.files:
        validate_path(name)
    if not (0 <= head.wave < WAVE_MAX and abs(head.bucket_end) < 1 << 63 and len(head.meta) <= META_BYTES_MAX):
        raise ValueError(f"wave {head.wave}, bucket {head.bucket_end} and {len(head.meta)} bytes of meta")
    if min([0, *head.pages, *head.tails]) < 0 or max([0, *head.tails]) >= 1 << 63:
        raise ValueError(f"page counts {head.pages} and tails {head.tails}")
    if not len(places):
        return
    if places.file_numbers.min() < 0 or places.file_numbers.max() >= len(places.files) or places.offsets.min() < 0:
        raise ValueError("a page in a file that it does not name, or before the beginning of one")
    if places.set_numbers.min() < 0 or places.logical.min() < 0:
        raise ValueError("a page with a negative number")
    keys = places.set_numbers.astype(np.int64) << 32 | places.logical
    if not (keys[1:] > keys[:-1]).all():
        raise ValueError("pages that are not in their order, or twice")


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """Return a manifest as its file has it: magic, content, CRC32C of the content."""
    body = _ENCODER.encode(manifest)
    checksum: int = google_crc32c.value(body)
    return _MAGIC + body + checksum.to_bytes(_CHECKSUM_BYTES, "little")


def decode(data: bytes, path: str) -> Manifest:
    """Return the manifest of the snapshot at `path`; `SnapshotCorrupt` if its bytes are not what was written."""
    body, checksum = data[len(_MAGIC) : -_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    expected = int.from_bytes(checksum, "little")
    found = google_crc32c.value(body)
    if data[: len(_MAGIC)] != _MAGIC or len(data) < len(_MAGIC) + _CHECKSUM_BYTES or found != expected:
        raise SnapshotCorrupt(
            f"the manifest of snapshot {path} ({len(data)} bytes) has CRC {found:08x}, expected {expected:08x}; "
            "an older snapshot and more replay will serve"
        )
    try:
        manifest = _DECODER.decode(body)
        _check(manifest)
        return manifest
    except (*NOT_DECODED, ValueError, NameInvalid) as error:
        raise SnapshotCorrupt(
            f"the manifest of snapshot {path} is not one that this holdfast reads ({error}); an older snapshot and "
            "more replay will serve, or the holdfast that wrote it"
        ) from error
