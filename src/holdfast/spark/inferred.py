"""The schema of files that do not have one declared, as Spark infers it.

Guarantees:
    * What cannot be inferred is said with the folder and what to do; no error of Java's gets through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from holdfast.errors import Misconfigured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def schema_of_files(spark: SparkSession, path: str, kind: str, options: Mapping[str, str]) -> StructType:
    """Return what Spark makes of the files that are at `path` now."""
    try:
        schema = spark.read.format(kind).options(**options).load(path).schema
    except (AnalysisException, Py4JJavaError) as error:
        java = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
        raise Misconfigured(
            f"files at {path!r}: Spark cannot infer their schema as {kind}: {(java or str(error)).splitlines()[0]}. "
            "Declare it with schema=, or put a file there first."
        ) from error
    if not schema.fields:
        raise Misconfigured(
            f"files at {path!r}: there is no row yet from which the schema could be inferred. Declare it with schema=."
        )
    return schema
