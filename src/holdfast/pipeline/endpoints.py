"""Where a pipeline's rows come from and go to, as the user says it.

Invariants:
    * A local path is kept absolute, so that it means the same to every process of the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast

from holdfast import plan
from holdfast.config import absolute, duration_us
from holdfast.connect.catalog import locate
from holdfast.connect.foreign import Declared, declared_as
from holdfast.errors import Misconfigured
from holdfast.pipeline.callsite import names_the_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FORMATS: Final = ("parquet", "csv", "json")


@dataclass(frozen=True, slots=True)
class Files:
    """Files in a folder, old and new; `schema` is None where Spark is to infer it."""

    path: str
    format: str
    schema: StructType | str | None
    settle_us: int
    options: dict[str, str] = field(default_factory=dict)

    def source(self) -> plan.FilesSource:
        """Return what the plan keeps."""
        kind = cast("Literal['parquet', 'csv', 'json']", self.format)
        return plan.FilesSource(self.path, kind, self.options, self.settle_us)


@dataclass(frozen=True)
class OtherStream:
    """A stream of another pipeline."""

    store: str
    name: str

    def declared(self) -> Declared:
        """Find the stream, and return what a source that reads it is."""
        return declared_as(locate(self.store, self.name))


@names_the_line
def files(
    path: str,
    format: str = "parquet",
    schema: StructType | str | None = None,
    settle: str = "500 milliseconds",
    **options: object,
) -> Files:
    """Return a source that reads the files of a folder (Parquet, CSV, JSON lines) and every new one.

    `schema` is a StructType or DDL text; without one Spark infers it from the files that are there. A file counts as
    whole once it has not changed for `settle`. `options` are Spark's (header, sep, nullValue, ...).
    """
    if format not in _FORMATS:
        raise Misconfigured(f"files of format {format!r} cannot be read; it can be one of {', '.join(_FORMATS)}")
    return Files(
        absolute(path, "path of hf.files"), format, schema, duration_us(settle, "settle of hf.files"), _texts(options)
    )


@names_the_line
def stream(store: str, name: str) -> OtherStream:
    """Return a source that is a stream of another pipeline: `hf.stream("retail-store", "averages")`.

    Its rows are read where they are, bucket by bucket; both pipelines need the same bucket=.
    """
    return OtherStream(absolute(store, "store of hf.stream"), name)


@names_the_line
def parquet(path: str, every: str = "1 second") -> plan.ParquetSink:
    """Return a sink that writes a Parquet file for every range of buckets, about `every` so often, exactly once."""
    return plan.ParquetSink(absolute(path, "path of hf.parquet"), duration_us(every, "every of hf.parquet"))


@names_the_line
def console(rows: int = 20) -> plan.ConsoleSink:
    """Return a sink that prints up to `rows` rows of every range of buckets."""
    if type(rows) is not int or rows < 1:
        raise Misconfigured(f"rows of hf.console is {rows!r} and must be a whole number from 1")
    return plan.ConsoleSink(rows)


def _texts(options: dict[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
