"""Where in the user's program a call was made."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from holdfast.errors import HoldfastError

_PACKAGE: Final = str(Path(__file__).resolve().parents[1])
_HAS_LINE: Final = re.compile(r" \(at .+:\d+\)$")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def users_line() -> str:
    """Return `file:line` of the nearest caller outside of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def names_the_line(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Add the user's line to every error that leaves the function: to the message of ours, as a note to Spark's."""

    @wraps(function)
    def called(*arguments: _Parameters.args, **options: _Parameters.kwargs) -> _Result:
        try:
            return function(*arguments, **options)
        except HoldfastError as error:
            # An error about a step made earlier already says where that was.
            if not _HAS_LINE.search(str(error)):
                error.args = (f"{error} (at {users_line()})", *error.args[1:])
            raise
        except Exception as error:
            if type(error).__module__.startswith(("pyspark.", "py4j.")) and not hasattr(error, "__notes__"):
                error.add_note(f"at {users_line()}")
            raise

    return called
