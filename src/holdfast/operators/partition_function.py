"""A function that `partition_by=` was given, as it travels to the slots.

Kept apart from what calls it: the driver does without kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class PartitionFunction:
    """From a RecordBatch of key columns to a whole number for each row; `line` is where the user gave it."""

    function: Callable[[pa.RecordBatch], Any]
    name: str
    line: str
