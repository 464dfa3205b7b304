"""The script of `holdfast run`, as `__main__` of this process; what it raises becomes one message.

    python -m holdfast.cli.script [--json] [--debug] [--available-now] [--quiet] FILE [ARGUMENTS]

Invariants:
    * The script sees what `python FILE ARGUMENTS` would show it: its arguments, its folder first on the path.
    * The exit status is the script's own, 1 where it raised, `EXIT_FUTILE` where the same start would end the same way,
      `EXIT_INTERRUPTED` where Ctrl-C came before a pipeline ran that could be stopped cleanly.
    * A script that ends with a pipeline that never started, or that still runs, is told so: nobody else would.
"""

from __future__ import annotations

import logging
import os
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from holdfast.cli.progress import show_progress
from holdfast.errors import HoldfastError, Misconfigured, PipelineFailed, Repairable, Reportable, StreamTaken
from holdfast.pipeline.program import Program, watched

EXIT_INTERRUPTED = 130
EXIT_FUTILE = 78
"""What sysexits.h calls a wrong configuration: a person has to do something before the next start."""
_HAS_LINE = re.compile(r"\(at .+:\d+\)$")
_OPTIONS = ("--json", "--debug", "--available-now", "--quiet")


def main(given: Sequence[str]) -> int:
    """Run the script and return its exit status."""
    options = list(takewhile(_OPTIONS.__contains__, given))
    file, *arguments = given[len(options) :]
    if "--quiet" not in options:
        show_progress("--json" in options)
    try:
        # `holdfast run` starts this process with Ctrl-C held back, so that none ends in the middle of an import.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with watched(available_now="--available-now" in options) as program:
            run_program(file, arguments, quietly="--debug" not in options)
            check_started(program, file)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        sys.stdout.flush()
        if "--debug" in options:
            traceback.print_exc()
        tell(error, file, options)
        return EXIT_FUTILE if is_futile(error) else 1
    return 0


def run_program(file: str, arguments: Sequence[str], quietly: bool = True) -> None:
    """Run a program as `__main__`; `quietly` keeps Spark from logging what it raises."""
    sys.argv = [file, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(file))
    if quietly:
        _quieten_spark()
    runpy.run_path(file, run_name="__main__")


def _quieten_spark() -> None:
    """Keep PySpark from logging each of its errors, with the JVM's whole stack, before it raises it."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = True
    logging.getLogger().addFilter(_is_no_interrupted_call)


def _is_no_interrupted_call(record: logging.LogRecord) -> bool:
    """Tell what Py4J logs when Ctrl-C comes in the middle of a call to the JVM from all else."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def check_started(program: Program, file: str) -> None:
    """Raise where a program has ended and its pipeline never ran, or runs with nobody left who waits for it."""
    running = next((handle for handle in program.handles if handle.isActive), None)
    if running is not None:
        raise Misconfigured(
            f"{file} ended while its pipeline {running.name!r} was running, which ended it too: nothing committed is "
            "lost. Call awaitTermination() on the handle that start() gave, or call run() instead of start()"
        )
    if not program.handles and program.pipelines:
        raise Misconfigured(
            f"{file} ended and its pipeline {program.pipelines[0].name!r} was never started: nothing ran. Call "
            "pipeline.run() at the end of it"
        )
    if not program.handles:
        print(f"holdfast: {file} ended and made no pipeline: nothing ran", file=sys.stderr)


def is_futile(error: Exception) -> bool:
    """Return whether starting again cannot help before somebody has changed something."""
    if isinstance(error, StreamTaken | PipelineFailed):
        # The one who holds the stream may be about to die; a failure that nobody foresaw may have passed.
        return False
    return isinstance(error, Misconfigured | Repairable | Reportable | SyntaxError)


def tell(error: Exception, file: str, options: Sequence[str]) -> None:
    """Print what a program raised, as one message."""
    name = type(error).__name__
    if "--json" in options:
        print(msgspec.json.encode({"error": name, "message": str(error)}).decode(), file=sys.stderr)
    elif isinstance(error, HoldfastError):
        # Where it came up says little of a failure in the middle of a run; of what was asked for it is all.
        line = _place(error, file) if isinstance(error, Misconfigured) and not _HAS_LINE.search(str(error)) else ""
        print(f"holdfast: {name}: {error}{line}", file=sys.stderr)
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
