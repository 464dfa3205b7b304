"""Spark's types and schemas as the text and the Arrow schemas of the plan, and back.

Invariants:
    * `struct_type(arrow_schema(schema)) == schema`, for every schema that a stream can hold, but for metadata. Whether
      a column may be null is kept; what is inside of structs, arrays and maps may always be null.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types

from holdfast.errors import UnsupportedQuery
from holdfast.operators.types import arrow_type, quoted, spark_type

_FROM_ARROW: Final[dict[str, types.DataType]] = {
    "void": types.NullType(),
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "interval day to second": types.DayTimeIntervalType(),
}


def type_text(data_type: types.DataType) -> str:
    """Return the plan's text for a Spark type."""
    if isinstance(data_type, types.StructType):
        fields = [f"{quoted(field.name)}:{type_text(field.dataType)}" for field in data_type.fields]
        return f"struct<{','.join(fields)}>"
    if isinstance(data_type, types.ArrayType):
        return f"array<{type_text(data_type.elementType)}>"
    if isinstance(data_type, types.MapType):
        return f"map<{type_text(data_type.keyType)},{type_text(data_type.valueType)}>"
    return data_type.simpleString()


def to_arrow(data_type: types.DataType) -> pa.DataType:
    """Return the Arrow type that holds a Spark type; `UnsupportedQuery` if a stream cannot hold it."""
    return arrow_type(type_text(data_type))


def to_spark(arrow: pa.DataType) -> types.DataType:
    """Return the Spark type of an Arrow type."""
    if pa.types.is_struct(arrow):
        return types.StructType([types.StructField(field.name, to_spark(field.type)) for field in arrow])
    if pa.types.is_map(arrow):
        return types.MapType(to_spark(arrow.key_type), to_spark(arrow.item_type))
    if pa.types.is_list(arrow):
        return types.ArrayType(to_spark(arrow.value_type))
    if pa.types.is_decimal(arrow):
        return types.DecimalType(arrow.precision, arrow.scale)
    return _FROM_ARROW[spark_type(arrow)]


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema; the error names the column that a stream cannot hold."""
    fields = []
    for field in schema.fields:
        try:
            fields.append(pa.field(field.name, to_arrow(field.dataType), field.nullable))
        except UnsupportedQuery as error:
            raise UnsupportedQuery(f"column {field.name!r}: {error}") from error
    return pa.schema(fields)


def struct_type(schema: pa.Schema) -> types.StructType:
    """Return the Spark schema of an Arrow schema."""
    return types.StructType([types.StructField(field.name, to_spark(field.type), field.nullable) for field in schema])
