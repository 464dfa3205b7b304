"""What the terminal at hand can show: its width, and whether it shows more than ASCII."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

from holdfast.explain.facts import PipelineFacts
from holdfast.explain.text import text_of

WIDTH_ELSEWHERE = 80


def print_text(facts: PipelineFacts) -> None:
    """Print the drawing of a pipeline as this terminal can show it."""
    width = shutil.get_terminal_size((WIDTH_ELSEWHERE, 24)).columns
    print(text_of(facts, width, not shows_unicode(sys.stdout.encoding, os.environ)), end="", flush=True)


def shows_unicode(encoding: str | None, environment: Mapping[str, str]) -> bool:
    """Return whether both the output and the locale are UTF-8; Python itself writes UTF-8 also where LC_ALL is C."""
    # A notebook has an output of its own, whose encoding says all.
    locale = next((environment[name] for name in ("LC_ALL", "LC_CTYPE", "LANG") if environment.get(name)), "")
    return _is_utf8(encoding or "") and (not locale or _is_utf8(locale.partition(".")[2]))


def _is_utf8(name: str) -> bool:
    return name.lower().replace("-", "").startswith("utf8")
