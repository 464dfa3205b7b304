"""Read the schema of a folder of files from its first file, in the types that Spark has.

Invariants:
    * No data is taken: what comes back is what a declared schema would say. Each file is checked against it when it
      is read.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from holdfast.connect.chunk import split_text
from holdfast.connect.chunk_reader import header_of, text_of
from holdfast.connect.folder import check_path, listed
from holdfast.connect.text import TextFormat
from holdfast.errors import Misconfigured
from holdfast.plan import FilesSource


def infer_schema(source: FilesSource, time_zone: str = "UTC") -> pa.Schema:
    """Return the schema of the first file that has rows, in Spark's types."""
    check_path(source.path)
    for path, size, _ in sorted(listed(source.path), key=lambda found: (found[2], found[0])):
        schema = _schema_of_file(path, source, time_zone) if size else None
        if schema is not None and schema.names:
            return pa.schema([pa.field(field.name, _spark_type(field.type, source.format)) for field in schema])
    raise Misconfigured(
        f"files at {source.path!r}: there is no file yet from which the schema could be read. Declare it with schema=."
    )


def _schema_of_file(path: str, source: FilesSource, time_zone: str) -> pa.Schema | None:
    try:
        if source.format == "parquet":
            return pq.read_schema(path)
        form = TextFormat.of(source.format, source.options, time_zone)
        chunk = split_text(path, source)[0]
        with open(path, "rb") as file:
            first, data = text_of(file, chunk, form)
        if not data.strip():
            return None
        if source.format == "json":
            return arrow_json.read_json(io.BytesIO(data)).schema
        parse = arrow_csv.ParseOptions(
            delimiter=form.separator,
            quote_char=form.quote or False,
            escape_char=form.escape or False,
            newlines_in_values=form.multi_line,
        )
        names = header_of(first, form, f"file {path}") if form.header else None
        reading = arrow_csv.ReadOptions(column_names=names, autogenerate_column_names=names is None)
        schema = arrow_csv.read_csv(io.BytesIO(data), read_options=reading, parse_options=parse).schema
        return schema if names else pa.schema([(f"_c{i}", field.type) for i, field in enumerate(schema)])
    except pa.ArrowInvalid as error:
        raise Misconfigured(
            f"file {path}: its schema cannot be read as {source.format}: {error}. Declare it with schema=."
        ) from error


def _spark_type(kind: pa.DataType, file_format: str) -> pa.DataType:
    """Return the Arrow type that Spark uses for what a file holds."""
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type, file_format)
    if pa.types.is_timestamp(kind):
        # Text in JSON stays text unless declared, as in Spark; a CSV timestamp is in the session's zone.
        if file_format == "json":
            return pa.string()
        return pa.timestamp("us", tz="UTC" if kind.tz or file_format == "csv" else None)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bit_width, pa.decimal128(20, 0))
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _spark_type(field.type, file_format)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_spark_type(kind.value_type, file_format))
    return kind
