"""The script of `holdfast run`, as `__main__` of this process; what it raises becomes one message.

    python -m holdfast.cli.script [--json] [--debug] [--quiet] FILE [ARGUMENTS]

Invariants:
    * The script sees what `python FILE ARGUMENTS` would show it: its arguments, its folder first on the path.
    * The exit status is the script's own, 1 where it raised, `EXIT_FUTILE` where the same start would end the same way.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from holdfast.cli.progress import show_progress
from holdfast.errors import HoldfastError, Misconfigured, PipelineFailed, Repairable, Reportable, StreamTaken

_OPTIONS = ("--json", "--debug", "--quiet")
EXIT_INTERRUPTED = 130
EXIT_FUTILE = 78
"""What sysexits.h calls a wrong configuration: a person has to do something before the next start."""


def main(given: Sequence[str]) -> int:
    """Run the script and return its exit status."""
    options = list(takewhile(_OPTIONS.__contains__, given))
    file, *arguments = given[len(options) :]
    sys.argv = [file, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    if "--debug" not in options:
        _quieten_spark()
    if "--quiet" not in options:
        show_progress("--json" in options)
    try:
        runpy.run_path(file, run_name="__main__")
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        sys.stdout.flush()
        if "--debug" in options:
            traceback.print_exc()
        _tell(error, file, options)
        return EXIT_FUTILE if is_futile(error) else 1
    return 0


def _quieten_spark() -> None:
    """Keep PySpark from logging each of its errors, with the JVM's whole stack, before it raises it."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True


def is_futile(error: Exception) -> bool:
    """Return whether starting again cannot help before somebody has changed something."""
    if isinstance(error, StreamTaken | PipelineFailed):
        # The one who holds the stream may be about to die; a failure that nobody foresaw may have passed.
        return False
    return isinstance(error, Misconfigured | Repairable | Reportable | SyntaxError)


def _tell(error: Exception, file: str, options: Sequence[str]) -> None:
    name = type(error).__name__
    if "--json" in options:
        print(msgspec.json.encode({"error": name, "message": str(error)}).decode(), file=sys.stderr)
    elif isinstance(error, HoldfastError):
        print(f"holdfast: {name}: {error}", file=sys.stderr)
    else:
        hint = "" if "--debug" in options else " (--debug shows the way there)"
        print(f"holdfast: {name}: {_text(error)}{_place(error, file)}{hint}", file=sys.stderr)


def _text(error: Exception) -> str:
    """Return what an error says; of Spark's the sentence, without the query's plan below it."""
    text = str(error)
    return text.splitlines()[0].rstrip(";") if text and type(error).__module__.startswith("pyspark.") else text


def _place(error: Exception, file: str) -> str:
    """Return where in the script it happened; a syntax error says so itself."""
    if isinstance(error, SyntaxError):
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" (at {file}:{lines[-1]})" if lines else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
