"""Bring rows from outside to the schema of a stream, or say exactly which column does not fit.

Invariants:
    * No value changes its meaning: integers may become other integers, decimals or doubles that hold them exactly,
      text stays text, a timestamp without a zone is read in the session's time zone. Anything else is refused.
    * The only thing that is cut is what Spark cannot hold: time below a microsecond.
    * What is returned has the schema's columns, in its order, with its types. Of these only those may be missing that
      the stream got later (`optional`): they are null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from holdfast.connect.values import check_values
from holdfast.errors import SchemaMismatch


def table_of(
    rows: Any, schema: pa.Schema, subject: str, time_zone: str = "UTC", optional: Collection[str] = ()
) -> pa.Table:
    """Return `rows` as a table with exactly `schema`; `subject` names them in an error."""
    if isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, pa.RecordBatch):
        table = pa.Table.from_batches([rows])
    elif type(rows).__module__.partition(".")[0] == "pandas":
        check_columns(list(map(str, rows.columns)), schema, subject, optional)
        # In a pandas frame NaN is how a missing value is written; in rows as dicts it is a number of its own.
        table = _table_of_columns({str(name): rows[name] for name in rows.columns}, schema, subject, nan_is_null=True)
    else:
        table = _table_of_dicts(rows, schema, subject)
    check_columns(table.column_names, schema, subject, optional)
    return conform(table, schema, subject, time_zone, optional)


def check_columns(found: Sequence[str], schema: pa.Schema, subject: str, optional: Collection[str] = ()) -> None:
    """Raise unless `found` are the schema's columns, in any order, but for some that are `optional`."""
    missing = [name for name in schema.names if name not in found and name not in optional]
    unknown = [name for name in found if name not in schema.names]
    repeated = sorted({name for name in found if list(found).count(name) > 1})
    if not (missing or unknown or repeated):
        return
    problems = [
        f"{what} {', '.join(map(repr, names))}"
        for what, names in (("missing", missing), ("unknown", unknown), ("repeated", repeated))
        if names
    ]
    raise SchemaMismatch(
        f"{subject}: columns do not match: {'; '.join(problems)}. Expected {_columns_text(schema)}; "
        f"found {', '.join(map(repr, found)) or 'no columns'}. Send exactly the stream's columns."
    )


def later_columns(schema: pa.Schema, earlier: Sequence[pa.Schema]) -> frozenset[str]:
    """Return the columns that a stream did not always have: rows may come without them."""
    return frozenset(name for name in schema.names if any(name not in each.names for each in earlier))


def conform(
    table: pa.Table, schema: pa.Schema, subject: str, time_zone: str = "UTC", optional: Collection[str] = ()
) -> pa.Table:
    """Return the schema's columns of `table`, cast without loss. Columns that the schema does not name are left out."""
    columns = []
    for field in schema:
        if field.name in optional and field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        if table.schema.get_field_index(field.name) < 0:
            raise SchemaMismatch(
                f"{subject}: column {field.name!r} is missing: expected {_columns_text(schema)}; "
                f"found {', '.join(map(repr, table.column_names))}. Declare the schema that the rows have."
            )
        column = cast_column(table.column(field.name), field.type, f"{subject}: column {field.name!r}", time_zone)
        if not field.nullable and column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise SchemaMismatch(
                f"{subject}: column {field.name!r} is null in row {row}, but the schema says it never is. "
                "Fill the value, or declare the column nullable."
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def cast_column(column: Any, wanted: Any, subject: str, time_zone: str) -> Any:
    """Return `column` as `wanted`; `SchemaMismatch` where the type or a value does not fit."""
    found = column.type
    if found.equals(wanted):
        return column
    if not fits(found, wanted):
        raise SchemaMismatch(
            f"{subject}: expected {wanted}, found {found}. Cast it before, or declare the type that the data has."
        )
    try:
        if _is_naive(found) and types.is_timestamp(wanted) and wanted.tz is not None:
            column = pc.assume_timezone(_cast(column, pa.timestamp("us")), time_zone)
        return _cast(column, wanted)
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(f"{subject}: a value of type {found} does not fit {wanted}: {error}") from error


def fits(found: Any, wanted: Any) -> bool:
    """Tell whether values of `found` can be meant as `wanted` (a value may still be out of range)."""
    if types.is_dictionary(found):
        return fits(found.value_type, wanted)
    if found.equals(wanted) or types.is_null(found):
        return True
    if types.is_integer(found):
        return bool(types.is_integer(wanted) or types.is_decimal(wanted) or types.is_float64(wanted))
    if types.is_floating(found):
        return bool(types.is_floating(wanted) and wanted.bit_width >= found.bit_width)
    return _fits_other(found, wanted)


def _fits_other(found: Any, wanted: Any) -> bool:
    if types.is_decimal(found):
        return bool(types.is_decimal(wanted))
    if _is_text(found):
        return _is_text(wanted)
    if _is_bytes(found):
        return _is_bytes(wanted)
    if types.is_timestamp(found):
        return bool(types.is_timestamp(wanted) and (found.tz is None or wanted.tz is not None))
    if types.is_date(found):
        return types.is_date(wanted) or _is_naive(wanted)
    if types.is_duration(found):
        return bool(types.is_duration(wanted))
    return _fits_nested(found, wanted)


def _fits_nested(found: Any, wanted: Any) -> bool:
    if types.is_struct(found) and types.is_struct(wanted):
        names = [field.name for field in found]
        wanted_names = [field.name for field in wanted]
        return bool(names == wanted_names) and all(
            _fits_inside(found.field(index).type, wanted.field(index).type) for index in range(wanted.num_fields)
        )
    if types.is_map(found) and types.is_map(wanted):
        return _fits_inside(found.key_type, wanted.key_type) and _fits_inside(found.item_type, wanted.item_type)
    if _is_list(found) and _is_list(wanted):
        return _fits_inside(found.value_type, wanted.value_type)
    return False


def _fits_inside(found: Any, wanted: Any) -> bool:
    # Inside a nested value there is no place to apply the session's time zone, so zones have to agree.
    if types.is_timestamp(found) and types.is_timestamp(wanted) and (found.tz is None) != (wanted.tz is None):
        return False
    return fits(found, wanted)


def _cast(column: Any, wanted: Any) -> Any:
    return column.cast(options=pc.CastOptions(target_type=wanted, allow_time_truncate=True))


def _is_naive(kind: Any) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is None)


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    )


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _table_of_dicts(rows: Any, schema: pa.Schema, subject: str) -> pa.Table:
    """Turn rows as dicts into columns; a key that a row lacks is a null, as in PySpark."""
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise SchemaMismatch(
            f"{subject}: cannot read rows from {type(rows).__name__}. "
            "Expected an Arrow table or record batch, a list of dicts, or a pandas frame."
        )
    dicts = list(rows)
    for number, row in enumerate(dicts):
        if not isinstance(row, Mapping):
            raise SchemaMismatch(f"{subject}: row {number} is {type(row).__name__}, expected a dict.")
    unknown = sorted({str(name) for row in dicts for name in row.keys() - set(schema.names)})
    if unknown:
        raise SchemaMismatch(
            f"{subject}: unknown columns {', '.join(map(repr, unknown))}. Expected {_columns_text(schema)}."
        )
    columns = {name: [row.get(name) for row in dicts] for name in schema.names}
    for field in schema:
        check_values(columns[field.name], field.type, f"{subject}: column {field.name!r}")
    return _table_of_columns(columns, schema, subject)


def _table_of_columns(
    columns: Mapping[str, Any], schema: pa.Schema, subject: str, nan_is_null: bool = False
) -> pa.Table:
    arrays = {}
    for field in schema:
        if field.name not in columns:
            continue
        # A timestamp's own zone, or the lack of one, decides how it is read, so its type is left to the values.
        inferred = types.is_timestamp(field.type)
        try:
            kind = None if inferred else field.type
            arrays[field.name] = pa.array(columns[field.name], type=kind, from_pandas=nan_is_null)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
            raise SchemaMismatch(
                f"{subject}: column {field.name!r}: expected {field.type}, found a value that does not fit: {error}"
            ) from error
    return pa.table(arrays)
