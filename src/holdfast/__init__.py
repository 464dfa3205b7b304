"""Dial-able fault tolerance for stateful streams on Spark.

Invariants:
    * Only the public names are here, and each is imported when it is first used: a program with a `Producer` or a
      `Consumer` never loads Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.connect.consumer import Consumer
    from holdfast.connect.producer import Producer
    from holdfast.node.listening import Listener
    from holdfast.pipeline.checkpoints import continuous, snapshot
    from holdfast.pipeline.endpoints import console, files, parquet, stream
    from holdfast.pipeline.pipeline import Pipeline
    from holdfast.pipeline.stream import Stream
    from holdfast.pipeline.windows import count_window
    from holdfast.spark.session import session, settings

_HOME = {
    "Consumer": "holdfast.connect.consumer",
    "Listener": "holdfast.node.listening",
    "Pipeline": "holdfast.pipeline.pipeline",
    "Producer": "holdfast.connect.producer",
    "Stream": "holdfast.pipeline.stream",
    "console": "holdfast.pipeline.endpoints",
    "continuous": "holdfast.pipeline.checkpoints",
    "count_window": "holdfast.pipeline.windows",
    "files": "holdfast.pipeline.endpoints",
    "parquet": "holdfast.pipeline.endpoints",
    "session": "holdfast.spark.session",
    "settings": "holdfast.spark.session",
    "snapshot": "holdfast.pipeline.checkpoints",
    "stream": "holdfast.pipeline.endpoints",
}

__all__ = [
    "Consumer",
    "Listener",
    "Pipeline",
    "Producer",
    "Stream",
    "console",
    "continuous",
    "count_window",
    "errors",
    "files",
    "parquet",
    "session",
    "settings",
    "snapshot",
    "stream",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module it lives in."""
    if name == "errors":
        return import_module("holdfast.errors")
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
