"""What a node says on standard error: plain lines, or with `HOLDFAST_LOG=json` one JSON object a line.

Guarantees:
    * An object has time, level, node, pipeline, stage (null where it is about none), logger and message; an exception's
      traceback is in `exception`.
    * What looks like a secret (a password in a URL, the value of something named secret, password or token) is not
      written.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import Final

import msgspec

from holdfast.errors import Misconfigured
from holdfast.node.query_progress import time_text

VARIABLE: Final = "HOLDFAST_LOG"
_HIDDEN: Final = "*** (hidden)"
_SECRETS: Final = (
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(
        r"""(?i)(?<![a-z])([\w.\-]*(?:secret|password|passwd|token|access[._\-]?key)[\w.\-]*["']?\s*[=:]\s*)"""
        r"""("[^"]*"|'[^']*'|[^\s,;&)}\]]+)"""
    ),
)


def are_json() -> bool:
    """Return whether the environment asks for JSON."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "text", "json"):
        raise Misconfigured(f"{VARIABLE} is {asked!r} and can be 'json' or 'text'")
    return asked == "json"


def set_up(pipeline: str, node: str) -> None:
    """Write in the form that the environment asks for; where it asks for none, what the program has set up stays."""
    if not are_json():
        return
    log = logging.getLogger("holdfast")
    for handler in [each for each in log.handlers if isinstance(each.formatter, JsonLines)]:
        log.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(pipeline, node))
    log.addHandler(handler)
    log.setLevel(min(log.level or logging.INFO, logging.INFO))
    log.propagate = False


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def __init__(self, pipeline: str, node: str) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time_text(int(record.created * 1e6)),
            "level": record.levelname,
            "node": self._node,
            "pipeline": self._pipeline,
            "stage": getattr(record, "stage", None),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            fields["exception"] = without_secrets(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def without_secrets(text: str) -> str:
    """Return a text in which what looks like a secret is hidden."""
    text = _SECRETS[0].sub(_HIDDEN, text)
    return _SECRETS[1].sub(lambda found: f"{found[1]}{_HIDDEN}", text)
