"""A piece of a source's file: which file, which version of it, and which part.

Invariants:
    * The chunks of a file follow each other from 0 without a gap. `[start, end)` counts rows of a Parquet file, and
      bytes of a text file, cut at ends of lines; a header is part of the first chunk.
    * Size and modification time name the version of the file that was cut; another version has other chunks.
"""

from __future__ import annotations

import itertools
import os

import msgspec
import pyarrow.parquet as pq

from holdfast.connect.text_format import TextFormat
from holdfast.plan import FilesSource

COMPRESSED = (".gz", ".bz2")
SPLIT_ROWS = 1 << 20
SPLIT_BYTES = 32 << 20

_BYTES_PER_ROW = 32


class FileChunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a file: rows of row groups, or bytes of whole lines. `last` says that the file ends with it."""

    path: str
    size_bytes: int
    modified_ns: int
    start: int
    end: int
    last: bool
    group_start: int = 0
    group_end: int = 0

    @property
    def key(self) -> str:
        """The same each time that this piece is found."""
        return f"{self.path}:{self.start}:{self.size_bytes}:{self.modified_ns}"

    @property
    def rows(self) -> int:
        """How many rows it has; a guess for text."""
        return self.end - self.start if self.group_end else (self.end - self.start) // _BYTES_PER_ROW + 1


def is_whole(path: str, form: TextFormat) -> bool:
    """Tell whether a text file can only be read from its beginning to its end."""
    return form.multi_line or form.encoding not in ("utf8", "us-ascii") or path.endswith(COMPRESSED)


def split_parquet(path: str) -> list[FileChunk]:
    """Cut a Parquet file at its row groups, about `SPLIT_ROWS` rows in a chunk."""
    status = os.stat(path)
    metadata = pq.read_metadata(path)
    groups = metadata.num_row_groups
    chunks, start, end, group_start = [], 0, 0, 0
    for group in range(groups):
        end += metadata.row_group(group).num_rows
        if end - start >= SPLIT_ROWS or group == groups - 1:
            chunks.append((start, end, group_start, group + 1))
            start, group_start = end, group + 1
    # A file without a row is logged too, so that it is known to be done.
    return [
        FileChunk(path, status.st_size, status.st_mtime_ns, start, end, group_end == groups, group_start, group_end)
        for start, end, group_start, group_end in chunks or [(0, 0, 0, 0)]
    ]


def split_text(path: str, source: FilesSource) -> list[FileChunk]:
    """Cut a text file at ends of lines, about `SPLIT_BYTES` in a chunk; what cannot be cut is one chunk."""
    form = TextFormat.of(source.format, source.options)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        size = status.st_size
        bounds = [0]
        while not is_whole(path, form) and size - bounds[-1] > SPLIT_BYTES:
            file.seek(bounds[-1] + SPLIT_BYTES)
            file.readline()
            if file.tell() >= size:
                break
            bounds.append(file.tell())
    bounds.append(size)
    return [
        FileChunk(path, size, status.st_mtime_ns, start, end, end == size) for start, end in itertools.pairwise(bounds)
    ]
