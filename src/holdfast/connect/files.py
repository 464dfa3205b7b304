"""Find the files of a folder that are complete, and cut them into chunks. This is the driver's part of `hf.files`.

Invariants:
    * A file is taken when its writer is done with it: not modified for `settle_us`, and a Parquet file has a footer.
      Names that begin with `_` or `.`, or that end as temporary files do, are never taken.
    * Files come in the order of (modification time, path), the chunks of a file in the order of the file.
    * A file that was taken and is different now is reported once, and never read a second time. One that is cut off
      and that nobody writes to is reported once too; it holds up nothing, and is taken when it has become whole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from holdfast.connect.chunk import FileChunk, split_parquet, split_text
from holdfast.connect.chunk_reader import ReadResult, read_chunk
from holdfast.connect.folder import check_path, listed
from holdfast.errors import FileChanged
from holdfast.model import FileLogged
from holdfast.plan import FilesSource

__all__ = ["FileChunk", "FileFinder", "Look", "ReadResult", "check_path", "read_chunk"]


class Look(msgspec.Struct, frozen=True):
    """What one look at a folder found.

    `waiting` are files that may still be written. `warnings` are about files that were taken and are different now, and
    about files that are not whole although nobody writes to them; each is given once.
    """

    chunks: list[FileChunk]
    waiting: list[str]
    warnings: list[str]

    @property
    def settled(self) -> bool:
        return not self.waiting


class FileFinder:
    """Looks at a source's folder again and again. It remembers what it has cut and what it has reported."""

    def __init__(self, source: FilesSource) -> None:
        self._source = source
        self._cut: dict[str, list[FileChunk]] = {}
        self._reported: set[tuple[str, int, int]] = set()
        self._ahead: dict[tuple[str, int, int], float] = {}

    def look(self, already: Mapping[str, FileLogged]) -> Look:
        """List the folder, and return what is new in it, the files in order of (modified, name).

        `already` has the last entry of each path that is in the stream.
        """
        look = Look([], [], [])
        for path, size, modified_ns in sorted(listed(self._source.path), key=lambda found: (found[2], found[0])):
            logged = already.get(path)
            if logged is not None and (logged.size_bytes, logged.modified_ns) != (size, modified_ns):
                look.warnings.extend(self._changed(logged, size, modified_ns))
                continue
            if logged is not None and logged.last:
                self._cut.pop(path, None)
                continue
            is_quiet = self._wait_us(path, size, modified_ns) <= 0
            try:
                chunks = self._chunks(path, size, modified_ns) if is_quiet else None
            except FileChanged as error:
                look.warnings.extend(self._once(path, size, modified_ns, str(error)))
                continue
            if chunks is None:
                look.waiting.append(path)
                continue
            reached = logged.row_end if logged is not None else -1
            look.chunks.extend(chunk for chunk in chunks if chunk.start >= reached)
        return look

    def _wait_us(self, path: str, size: int, modified_ns: int) -> int:
        """Return for how long the file has to stay as it is."""
        age_us = (time.time_ns() - modified_ns) // 1000
        if age_us >= 0:
            return self._source.settle_us - age_us
        # The file system's clock is ahead of ours (or the time was set by hand): count from when we first saw this.
        seen = self._ahead.setdefault((path, size, modified_ns), time.monotonic())
        return self._source.settle_us - int((time.monotonic() - seen) * 1e6)

    def _chunks(self, path: str, size: int, modified_ns: int) -> list[FileChunk] | None:
        """Return the file's chunks; None if it is written to at this moment, `FileChanged` if it is not whole."""
        cut = self._cut.get(path)
        if cut and (cut[0].size_bytes, cut[0].modified_ns) == (size, modified_ns):
            return cut
        try:
            cut = split_parquet(path) if self._source.format == "parquet" else split_text(path, self._source)
        except FileNotFoundError:
            return None
        except (pa.ArrowInvalid, OSError) as error:
            is_there = isinstance(error, pa.ArrowInvalid) or error.errno is None
            what = f"is no whole {self._source.format} file" if is_there else "cannot be read"
            raise FileChanged(
                f"file {path} {what} ({str(error).splitlines()[0]}); it is left alone until that is otherwise. Write "
                "files under a name that begins with '_' or '.', and rename them when whole."
            ) from error
        if any((chunk.size_bytes, chunk.modified_ns) != (size, modified_ns) for chunk in cut):
            return None
        self._cut[path] = cut
        return cut

    def _changed(self, logged: FileLogged, size: int, modified_ns: int) -> list[str]:
        taken = "was taken" if logged.last else f"was taken up to {logged.row_end}"
        message = (
            f"file {logged.path} {taken} with {logged.size_bytes} bytes and has changed since ({size} bytes now). "
            "What changed is not read; put new rows into a new file."
        )
        return self._once(logged.path, size, modified_ns, message)

    def _once(self, path: str, size: int, modified_ns: int, message: str) -> list[str]:
        """Return the message, if there was none yet about this version of the file."""
        if (path, size, modified_ns) in self._reported:
            return []
        self._reported.add((path, size, modified_ns))
        return [message]
