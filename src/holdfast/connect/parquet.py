"""Write a range of buckets of a stream as one Parquet file, exactly once.

Invariants:
    * A file has its final name only after all its bytes are on disk: a reader sees all of a range or nothing.
    * The name comes from the range, so doing it again after a crash finds the file that is there, or writes the same.
    * A temporary name begins with a dot, which Spark and Arrow do not read. A dead writer's are removed at start.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.folder import local_path
from holdfast.errors import Misconfigured, StoreUnavailable
from holdfast.log.store import validate_name

_TEMPORARY = ".tmp-"
_ROWS_PER_GROUP = 1 << 18


def range_name(bucket_start: int, bucket_end: int) -> str:
    """Return the name of the file for a range of buckets; names sort as ranges do."""
    return f"part-{bucket_start:019d}-{bucket_end:019d}.parquet"


def prepare_folder(path: str) -> str:
    """Create the sink's folder, remove what a dead writer left in it, and return its local path.

    Called once by whoever has the right to write, before the first range is written.
    """
    if "://" in path and not path.startswith("file://"):
        raise Misconfigured(f"parquet sink at {path!r}: expected a local path or file://, found another scheme.")
    folder = local_path(path)
    try:
        os.makedirs(folder, exist_ok=True)
        for name in os.listdir(folder):
            if name.startswith(".") and _TEMPORARY in name:
                os.unlink(os.path.join(folder, name))
    except NotADirectoryError as error:
        raise Misconfigured(f"parquet sink at {path!r}: {error.filename} is a file; expected a folder.") from error
    except FileExistsError as error:
        raise Misconfigured(f"parquet sink at {path!r}: expected a folder, found a file.") from error
    except OSError as error:
        raise StoreUnavailable(
            f"parquet sink at {path!r} cannot be prepared: {error}. Check its permissions."
        ) from error
    return folder


def write_range(path: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    """Write the rows under `name` and return how many there are; a range without rows gets no file.

    A file of that name that is whole is left as it is, and its rows are counted.
    """
    validate_name(name)
    folder = local_path(path)
    final = os.path.join(folder, name)
    rows = _rows_of(final)
    if rows is not None:
        return rows
    temporary = os.path.join(folder, f".{name}{_TEMPORARY}{uuid.uuid4().hex}")
    try:
        rows = _write(temporary, schema.remove_metadata(), batches)
        if rows:
            _sync(temporary)
            os.rename(temporary, final)
            _sync(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"parquet sink: {final} cannot be written: {error}. Nothing of it is visible; it is written again."
        ) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return rows


def _rows_of(path: str) -> int | None:
    """Return the rows of a whole Parquet file; None if there is none (or half of one, which a copy tool may leave)."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (FileNotFoundError, pa.ArrowInvalid):
        return None


def _write(path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch | pa.Table]) -> int:
    rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        for table in _row_groups(batches):
            if writer is None:
                writer = pq.ParquetWriter(path, schema, compression="snappy")
            writer.write_table(table.replace_schema_metadata(None))
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _row_groups(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
    """Yield tables worth a row group each: a range comes in many small pieces, one for each bucket and shard."""
    waiting: list[pa.Table] = []
    rows = 0
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.num_rows:
            waiting.append(table)
            rows += table.num_rows
        if rows >= _ROWS_PER_GROUP:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
