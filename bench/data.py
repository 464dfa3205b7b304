"""The tuples that both sides read: Parquet files of random keys, made once for each size and kept.

Invariants:
    * The same (tuples, keys) gives the same files, byte for byte in their columns, on every machine.
    * A folder that is there is whole: it is written beside its name and then renamed.
    * Keys are drawn uniformly, as in the count-window figures of the CEC paper and the group figures of SGuard's.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

SCHEMA = pa.schema([pa.field("key", pa.int64()), pa.field("value", pa.float64())])
"""Of every file. Spark's own text for it is `SPARK_SCHEMA`."""

SPARK_SCHEMA = "key bigint, value double"

TUPLES_PER_FILE = 500_000
"""Two files make a trigger of a million tuples, one file for each of two cores."""

SEED = 20


@dataclass(frozen=True, slots=True)
class Dataset:
    """A folder of Parquet files, and what is in them."""

    folder: Path
    tuples: int
    keys: int
    files: int
    size_bytes: int


def tuples_of_file(number: int, tuples: int, keys: int) -> pa.Table:
    """Return the tuples of one file: uniform keys in `[0, keys)`, values that are whole cents."""
    generator = np.random.default_rng([SEED, keys, number])
    key = generator.integers(0, keys, tuples, dtype=np.int64)
    # Whole cents keep sums exact in a double, so that results can be compared whatever the order of additions.
    value = generator.integers(0, 10_000, tuples).astype(np.float64)
    return pa.table([key, value], schema=SCHEMA)


def prepare(work: Path, tuples: int, keys: int, tuples_per_file: int = TUPLES_PER_FILE) -> Dataset:
    """Return the dataset of that size below `work`, generating it when it is not there."""
    folder = work / f"tuples-{tuples}-keys-{keys}-per-file-{tuples_per_file}"
    if not folder.exists():
        _generate(folder, tuples, keys, tuples_per_file)
    files = sorted(folder.glob("*.parquet"))
    return Dataset(folder, tuples, keys, len(files), sum(file.stat().st_size for file in files))


def _generate(folder: Path, tuples: int, keys: int, tuples_per_file: int) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".generating-", dir=folder.parent))
    try:
        for number, start in enumerate(range(0, tuples, tuples_per_file)):
            table = tuples_of_file(number, min(tuples_per_file, tuples - start), keys)
            # Random keys gain nothing from a dictionary; without one both sides decode faster.
            parquet.write_table(table, beside / f"part-{number:05d}.parquet", use_dictionary=False)
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        if not folder.exists():
            raise
