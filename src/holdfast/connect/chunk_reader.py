"""Read a chunk of a source's file. This is a task's part of `hf.files`.

Invariants:
    * A chunk is read from the very bytes that it was cut from, or not at all: the file's size and time are compared
      when it is opened and again after the last byte was read, else `FileChanged`.
    * The rows that come back have the source's schema. Rows and rejects together are all records of the chunk.
    * The line of a bad row is counted only when there is one.
"""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.chunk import COMPRESSED, FileChunk, is_whole
from holdfast.connect.conform import conform, later_columns
from holdfast.connect.text import BadLine, Lines, read_csv, read_json
from holdfast.connect.text_format import TextFormat
from holdfast.errors import BadRow, FileChanged, SchemaMismatch, StoreUnavailable
from holdfast.log.widening import widened
from holdfast.plan import REJECTS_COLUMNS, FilesSource, Source

REJECTS_SCHEMA = pa.schema([(name, pa.string()) for name in REJECTS_COLUMNS])

_OPENERS: dict[str, Callable[[bytes], bytes]] = dict(zip(COMPRESSED, (gzip.decompress, bz2.decompress), strict=True))


class ReadResult(msgspec.Struct, frozen=True):
    """The rows of a chunk with the source's schema, and those that could not be read (`REJECTS_SCHEMA`)."""

    batches: list[pa.RecordBatch]
    rejects: pa.RecordBatch

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)


def read_chunk(chunk: FileChunk, source: Source, time_zone: str = "UTC") -> ReadResult:
    """Return the rows of a chunk with the source's schema.

    A row that cannot be read is a `BadRow` that names file and line, or a reject where the source says so (more than
    its limit in one chunk is a `BadRow` again). A file that is not what was cut is `FileChanged`.
    """
    assert isinstance(source.origin, FilesSource), "read_chunk is for a source of files"
    schema = pa.ipc.read_schema(pa.py_buffer(source.schema))
    optional = later_columns(schema, [pa.ipc.read_schema(pa.py_buffer(each)) for each in source.earlier])
    try:
        with open(chunk.path, "rb") as file:
            _check_unchanged(chunk, os.fstat(file.fileno()))
            if source.origin.format == "parquet":
                result = _read_parquet(file, chunk, schema, time_zone, optional)
            else:
                result = _read_text(file, chunk, source, source.origin, schema, time_zone, optional)
            _check_unchanged(chunk, os.fstat(file.fileno()))
    except FileNotFoundError as error:
        raise FileChanged(f"file {chunk.path} is gone; it was there when it was found.") from error
    except OSError as error:
        if error.errno is None:
            raise FileChanged(f"file {chunk.path} cannot be read as {source.origin.format}: {error}") from error
        raise StoreUnavailable(f"file {chunk.path} cannot be read: {error}") from error
    return result


def _check_unchanged(chunk: FileChunk, status: os.stat_result) -> None:
    if (status.st_size, status.st_mtime_ns) != (chunk.size_bytes, chunk.modified_ns):
        raise FileChanged(
            f"file {chunk.path} changed while it was read: expected {chunk.size_bytes} bytes modified at "
            f"{chunk.modified_ns} ns, found {status.st_size} at {status.st_mtime_ns}. It is looked at again; write "
            "files under another name and rename them when they are complete."
        )


def _read_parquet(
    file: Any, chunk: FileChunk, schema: pa.Schema, time_zone: str, optional: Collection[str]
) -> ReadResult:
    try:
        parquet = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise FileChanged(f"file {chunk.path} is no complete Parquet file: {error}") from error
    found = parquet.schema_arrow
    missing = [name for name in schema.names if name not in found.names and name not in optional]
    if missing:
        raise SchemaMismatch(
            f"file {chunk.path}: column {missing[0]!r} is missing: expected {', '.join(schema.names)}; "
            f"found {', '.join(found.names)}. Declare the columns that the files have."
        )
    groups = list(range(chunk.group_start, chunk.group_end))
    table = parquet.read_row_groups(groups, columns=schema.names, use_threads=False)
    table = conform(table, schema, f"file {chunk.path}", time_zone, optional).combine_chunks()
    return ReadResult(table.to_batches(), _rejects([]))


def _read_text(
    file: Any,
    chunk: FileChunk,
    source: Source,
    origin: FilesSource,
    schema: pa.Schema,
    time_zone: str,
    optional: Collection[str],
) -> ReadResult:
    form = TextFormat.of(origin.format, origin.options, time_zone)
    subject = f"file {chunk.path}"
    first, data = text_of(file, chunk, form)
    limit = source.rejects_max if source.on_error == "reject" else 0
    if origin.format == "json":
        parsed = read_json(data, schema, form, limit)
    else:
        names = header_of(first, form, subject) if form.header else schema.names
        there = pa.schema([field for field in schema if field.name in names or field.name not in optional])
        parsed = read_csv(data, names, there, form, subject, limit)
    numbered = _numbered(file, chunk, data, form, parsed.bad)
    rows = [(bad.reason, f"{chunk.path}:{line}", bad.text) for bad, line in numbered]
    if len(rows) > limit:
        reason, origin_text, text = rows[0]
        many = f" (and more than {limit} rows in all cannot be read)" if limit else ""
        raise BadRow(
            f"{origin_text}: a row cannot be read: {reason}. The row is {text[:200]!r}{many}. "
            "Correct the file under a new name, the schema or the options, or set on_error='reject'."
        )
    batches = parsed.table.combine_chunks().to_batches()
    return ReadResult([widened(batch, schema) for batch in batches], _rejects(rows))


def text_of(file: Any, chunk: FileChunk, form: TextFormat) -> tuple[bytes, bytes]:
    """Return the file's first line (if it is a header) and the chunk's bytes without it, as UTF-8."""
    if not is_whole(chunk.path, form):
        first = file.readline() if form.header else b""
        start = max(chunk.start, len(first))
        file.seek(start)
        data = file.read(chunk.end - start)
        return first.removeprefix(b"\xef\xbb\xbf"), data if chunk.start else data.removeprefix(b"\xef\xbb\xbf")
    data = file.read()
    try:
        opener = _OPENERS.get(os.path.splitext(chunk.path)[1])
        data = opener(data) if opener else data
        if form.encoding not in ("utf8", "us-ascii"):
            data = data.decode(form.encoding).encode("utf8")
    except (OSError, EOFError, ValueError, LookupError) as error:
        raise BadRow(f"file {chunk.path} cannot be decoded: {error}. Check the option encoding.") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not form.header:
        return b"", data
    first, _, data = data.partition(b"\n")
    return first, data


def header_of(first: bytes, form: TextFormat, subject: str) -> list[str]:
    """Return the column names of a CSV file's first line."""
    if not first.strip():
        return []
    plain = msgspec.structs.replace(form, multi_line=False)
    width = first.count(form.separator.encode()) + 1
    while width:
        names = [str(number) for number in range(width)]
        kinds = pa.schema([(name, pa.string()) for name in names])
        parsed = read_csv(first, names, kinds, plain, subject, 1)
        if not parsed.bad:
            return [str(value) for value in parsed.table.to_pylist()[0].values()]
        width -= 1
    raise BadRow(f"{subject}: the first line {first[:200]!r} is no header. Set the option header to false.")


def _numbered(
    file: Any, chunk: FileChunk, data: bytes, form: TextFormat, bad: list[BadLine]
) -> Iterable[tuple[BadLine, int]]:
    """Return each bad record with its line (with `multiLine`: its number) in the file, from 1."""
    if not bad:
        return []
    if form.multi_line:
        return [(each, each.record + 1) for each in bad]
    before = int(form.header and chunk.start == 0)
    if not is_whole(chunk.path, form):
        file.seek(0)
        before += sum(file.read(min(1 << 20, chunk.start - at)).count(b"\n") for at in range(0, chunk.start, 1 << 20))
    starts = Lines(data).starts
    return [(each, before + data.count(b"\n", 0, int(starts[each.record])) + 1) for each in bad]


def _rejects(rows: list[tuple[str, str, str]]) -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in range(len(REJECTS_COLUMNS))]
    return pa.RecordBatch.from_arrays(columns, schema=REJECTS_SCHEMA)
