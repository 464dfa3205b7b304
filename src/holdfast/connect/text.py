"""Read CSV and JSON lines from a piece of a file: typed columns, and the rows that cannot be read.

Invariants:
    * A record is a line (CSV with `multiLine` excepted). The rows that come back and the rejected ones are together
      the lines of the piece that are not blank, in file order.
    * The fast way reads a whole piece with Arrow. Only when that fails is the piece searched for the lines that are
      bad, by halving, so that one bad line costs a few more reads and not a loop over all of them.
    * Strict as Spark's FAILFAST mode: a value that does not parse is an error of its row, never a silent null.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
from pyarrow import types

from holdfast.connect.text_format import TextFormat, csv_type, json_type
from holdfast.errors import BadRow, SchemaMismatch

_ZONE = r"([zZ]|[+-]\d{2}:?\d{2}|[+-]\d{2})$"


class BadLine(msgspec.Struct, frozen=True):
    """A record that cannot be read: why, which of the piece's records it is, and its text."""

    reason: str
    record: int
    text: str


class Parsed(msgspec.Struct, frozen=True):
    """What a piece of text holds. Bad lines are in the order of the file."""

    table: pa.Table
    bad: list[BadLine]


class Lines:
    """Where the records of a piece of text are. Blank lines are not records."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        if data and not data.endswith(b"\n"):
            ends = np.append(ends, len(data))
        starts = np.append(0, ends[:-1] + 1) if len(ends) else ends
        self.starts, self.ends = self._without_blanks(starts, ends)

    def _without_blanks(self, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        keep = ends > starts
        first = np.frombuffer(self.data, np.uint8)[starts[keep]]
        suspects = np.flatnonzero(keep)[first <= ord(" ")]
        for line in suspects.tolist():
            keep[line] = bool(self.data[starts[line] : ends[line]].strip())
        self.has_spaces_only = bool(len(suspects)) and not bool(keep[suspects].all())
        return starts[keep], ends[keep]

    def __len__(self) -> int:
        return len(self.starts)

    def text(self, record: int) -> str:
        """Return one record as text, for a message."""
        return self.data[self.starts[record] : self.ends[record]].decode("utf8", "replace").rstrip("\r")

    def piece(self, record_start: int, record_end: int) -> bytes:
        """Return the bytes of a range of records."""
        return self.data[self.starts[record_start] : self.ends[record_end - 1]]


def read_csv(data: bytes, names: list[str], schema: pa.Schema, form: TextFormat, subject: str, limit: int) -> Parsed:
    """Return the typed rows of CSV text without its header line.

    `names` are the columns of the file, in its order; the schema may leave some out. The search for bad lines ends
    when there are more than `limit`; then there are no rows.
    """
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaMismatch(
            f"{subject}: column {missing[0]!r} is missing: expected {schema.names}, found {names}. "
            "Declare the columns that the files have."
        )
    kinds = {field.name: csv_type(field.type, form) for field in schema}
    try:
        table = _arrow_csv(data, names, kinds, form, None)
        if form.multi_line or form.quote.encode() not in data or table.num_rows == len(Lines(data)):
            return Parsed(_convert_strict(table, schema, form), [])
    except pa.ArrowInvalid:
        pass
    return _read_csv_slowly(data, names, schema, form, subject, limit)


def _read_csv_slowly(
    data: bytes, names: list[str], schema: pa.Schema, form: TextFormat, subject: str, limit: int
) -> Parsed:
    """Read all columns as text, keep what has the right number of columns, then convert column by column."""
    lines = Lines(data)
    uneven: dict[int, BadLine] = {}

    def note(row: arrow_csv.InvalidRow) -> Literal["skip"]:
        record = (row.number or 1) - 1
        text = row.text if form.multi_line or record >= len(lines) else lines.text(record)
        reason = f"expected {row.expected_columns} columns, found {row.actual_columns}"
        uneven[record] = BadLine(reason, record, text)
        return "skip"

    # Arrow skips empty lines by itself, but takes one of spaces for a record.
    spaces = lines.has_spaces_only and not form.multi_line
    plain = b"\n".join(lines.piece(i, i + 1) for i in range(len(lines))) if spaces else data
    try:
        table = _arrow_csv(plain, names, dict.fromkeys(schema.names, pa.string()), form, note)
    except pa.ArrowInvalid as error:
        raise BadRow(f"{subject}: the text cannot be read as CSV: {error}. Check encoding and quotes.") from error
    count = table.num_rows + len(uneven)
    if not form.multi_line and count != len(lines):
        raise BadRow(
            f"{subject}: {len(lines)} lines hold {count} records, so a quoted value spans lines. "
            "Set the option multiLine to true, or fix the quotes."
        )
    records = np.delete(np.arange(count), sorted(uneven))
    reasons = _bad_rows(table, schema, form, limit)
    found = dict(uneven)
    for row, reason in reasons.items():
        record = int(records[row])
        text = ",".join(str(value) for value in table.slice(row, 1).to_pylist()[0].values())
        found[record] = BadLine(reason, record, text if form.multi_line else lines.text(record))
    bad = [found[record] for record in sorted(found)]
    if len(bad) > limit:
        return Parsed(schema.empty_table(), bad)
    good = np.ones(table.num_rows, bool)
    good[list(reasons)] = False
    return Parsed(_convert_strict(table.filter(pa.array(good)), schema, form), bad)


def read_json(data: bytes, schema: pa.Schema, form: TextFormat, limit: int) -> Parsed:
    """Return the typed rows of JSON lines. The search for bad lines ends when there are more than `limit`."""
    lines = Lines(data)
    try:
        return Parsed(_json_rows(data, len(lines), schema, form), [])
    except pa.ArrowInvalid:
        pass
    tables: list[pa.Table] = []
    bad: list[BadLine] = []

    stack = [(0, len(lines))]
    while stack and len(bad) <= limit:
        record_start, record_end = stack.pop()
        try:
            piece = lines.piece(record_start, record_end)
            tables.append(_json_rows(piece, record_end - record_start, schema, form))
        except pa.ArrowInvalid as error:
            if record_end - record_start == 1:
                bad.append(BadLine(_short(error), record_start, lines.text(record_start)))
                continue
            middle = (record_start + record_end) // 2
            stack += [(middle, record_end), (record_start, middle)]
    return Parsed(pa.concat_tables(tables) if tables else schema.empty_table(), bad)


def _json_rows(data: bytes, records: int, schema: pa.Schema, form: TextFormat) -> pa.Table:
    if not records:
        return schema.empty_table()
    kinds = pa.schema([(field.name, json_type(field.type)) for field in schema])
    table = arrow_json.read_json(
        io.BytesIO(data),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(data), 1)),
        parse_options=arrow_json.ParseOptions(explicit_schema=kinds, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != records:
        raise pa.ArrowInvalid(f"expected one JSON object in each line, found {table.num_rows} in {records} lines")
    return _convert_strict(table, schema, form)


def _arrow_csv(
    data: bytes,
    names: list[str],
    kinds: dict[str, pa.DataType],
    form: TextFormat,
    handler: Callable[[arrow_csv.InvalidRow], Literal["skip"]] | None,
) -> pa.Table:
    if not data.strip():
        return pa.schema(list(kinds.items())).empty_table()
    return arrow_csv.read_csv(
        io.BytesIO(data),
        read_options=arrow_csv.ReadOptions(
            column_names=names, use_threads=False, block_size=max(1 << 20, min(len(data), 1 << 26))
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=form.separator,
            quote_char=form.quote or False,
            escape_char=form.escape or False,
            newlines_in_values=form.multi_line,
            invalid_row_handler=handler,
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=kinds,
            include_columns=list(kinds),
            null_values=sorted({"", form.null_value}),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        ),
    )


def _convert_strict(table: pa.Table, schema: pa.Schema, form: TextFormat) -> pa.Table:
    columns = [convert_text(table.column(field.name), field.type, form) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise pa.ArrowInvalid(f"column {field.name!r} is null, but the schema says it never is")
    return pa.Table.from_arrays(columns, schema=schema)


def convert_text(column: Any, kind: Any, form: TextFormat) -> Any:
    """Return text as `kind`, as Spark reads it; `pa.ArrowInvalid` if one value cannot be read."""
    if column.type.equals(kind):
        return column
    if types.is_timestamp(kind):
        return _convert_timestamps(column, kind, form)
    if types.is_date(kind) and form.date_format:
        return pc.cast(pc.strptime(column, format=form.date_format, unit="s", error_is_null=False), kind)
    if types.is_boolean(kind):
        lower = pc.utf8_lower(column)
        known = pc.is_in(lower, value_set=pa.array(["true", "false", None]))
        if not pc.all(known).as_py():
            raise pa.ArrowInvalid("expected true or false")
        return pc.equal(lower, pa.scalar("true"))
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        column = pc.utf8_trim_whitespace(column)
    return pc.cast(column, kind)


def _convert_timestamps(column: Any, kind: Any, form: TextFormat) -> Any:
    naive = pa.timestamp("us")
    if form.timestamp_format:
        parsed = pc.strptime(column, format=form.timestamp_format, unit="us", error_is_null=False)
        zoned = "%z" in form.timestamp_format
        if kind.tz is None or zoned:
            return pc.cast(pc.cast(parsed, naive), kind)
        return pc.cast(pc.assume_timezone(pc.cast(parsed, naive), form.time_zone), kind)
    # Spark keeps microseconds and cuts what is below.
    column = pc.replace_substring_regex(column, pattern=r"(\.\d{6})\d+", replacement=r"\1")
    zoned_rows = pc.match_substring_regex(column, pattern=r"\d{2}:\d{2}.*" + _ZONE)
    if kind.tz is None or not pc.any(zoned_rows).as_py():
        local = pc.cast(column, naive)
        return local if kind.tz is None else pc.cast(pc.assume_timezone(local, form.time_zone), kind)
    nothing = pa.scalar(None, pa.string())
    with_zone = pc.cast(pc.if_else(zoned_rows, column, nothing), kind)
    without: Any = pc.cast(pc.if_else(zoned_rows, nothing, column), naive)
    return pc.coalesce(with_zone, pc.cast(pc.assume_timezone(without, form.time_zone), kind))


def _bad_rows(table: pa.Table, schema: pa.Schema, form: TextFormat, limit: int) -> dict[int, str]:
    """Return why a row cannot be converted, for each that cannot; not all of them if there are more than `limit`."""
    bad: dict[int, str] = {}
    for field in schema:
        for row, reason in _bad_values(table.column(field.name), field, form, limit):
            bad.setdefault(row, reason)
    return bad


def _bad_values(column: Any, field: Any, form: TextFormat, limit: int) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) for each value that cannot be converted; stops one beyond `limit`."""
    stack, found = [(0, len(column))], 0
    while stack and found <= limit:
        start, end = stack.pop()
        try:
            values = convert_text(column.slice(start, end - start), field.type, form)
            if field.nullable or not values.null_count:
                continue
            raise pa.ArrowInvalid("null, but the schema says it never is")
        except pa.ArrowInvalid as error:
            if end - start > 1:
                middle = (start + end) // 2
                stack += [(middle, end), (start, middle)]
                continue
            value = column[start].as_py()
            why = _short(error) if value is None else f"expected {field.type}, found {value!r}"
            found += 1
            yield start, f"column {field.name!r}: {why}"


def _short(error: Exception) -> str:
    return str(error).removeprefix("JSON parse error: ").split(" in row ")[0].rstrip(".")
