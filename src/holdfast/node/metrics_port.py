"""Whether metrics were asked for, and on which port. Apart from `metrics`, which loads an HTTP server."""

from __future__ import annotations

import os
from typing import Final

from holdfast.errors import Misconfigured

PORT_VARIABLE: Final = "HOLDFAST_METRICS_PORT"


def chosen_port(given: int | None) -> int | None:
    """Return the port that was asked for, by argument or environment; None where nobody asked, 0 for any free one."""
    text = os.environ.get(PORT_VARIABLE) if given is None else given
    if text is None or text == "":
        return None
    try:
        port = int(text)
    except ValueError:
        port = -1
    if isinstance(text, bool) or not 0 <= port <= 65535:
        what = "metrics_port" if given is not None else PORT_VARIABLE
        raise Misconfigured(f"{what} is {text!r} and must be a port, from 0 (any that is free) to 65535")
    return port
