"""How a pipeline that `holdfast run` has started is doing: a live line on a terminal, a line now and then elsewhere.

Invariants:
    * It is written to standard error: what the script itself prints stays what it is.
    * It reads the node's statistics and asks nothing else, on a thread of its own that ends with the pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.node.handle import on_every_start
from holdfast.node.query_progress import time_text
from holdfast.node.statistics import NodeStatistics

if TYPE_CHECKING:
    from holdfast.node.handle import PipelineHandle

LIVE_EVERY_S: Final = 1.0
PLAIN_EVERY_S: Final = 10.0


def show_progress(as_json: bool) -> None:
    """Have the progress of every pipeline that this process starts shown."""
    on_every_start(lambda handle: _start(handle, as_json))


def _start(handle: PipelineHandle, as_json: bool) -> None:
    live = sys.stderr.isatty() and not as_json
    follow = _follow_live if live else _follow_plainly
    write = _write_json if as_json else _write_line
    thread = threading.Thread(target=follow, args=(handle, write), name="holdfast-progress", daemon=True)
    thread.start()
    # A terminal is left without the live line.
    atexit.register(thread.join, LIVE_EVERY_S)


def _follow_live(handle: PipelineHandle, write: Callable[[NodeStatistics, NodeStatistics], None]) -> None:
    """Keep one line at the bottom of the terminal; what else is printed goes above it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    before = handle.statistics()
    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty()) as live:
        while not _has_ended(handle, LIVE_EVERY_S):
            now = handle.statistics()
            line = Text(line_of(before, now), overflow="ellipsis", no_wrap=True)
            if now.trouble is not None:
                line.stylize("bold red")
            live.update(line, refresh=True)
            before = now


def _follow_plainly(handle: PipelineHandle, write: Callable[[NodeStatistics, NodeStatistics], None]) -> None:
    before = handle.statistics()
    while not _has_ended(handle, PLAIN_EVERY_S):
        now = handle.statistics()
        write(before, now)
        before = now


def _has_ended(handle: PipelineHandle, timeout_s: float) -> bool:
    with contextlib.suppress(HoldfastError):
        return handle.awaitTermination(timeout_s)
    return True


def _write_line(before: NodeStatistics, now: NodeStatistics) -> None:
    print(line_of(before, now), file=sys.stderr, flush=True)


def _write_json(before: NodeStatistics, now: NodeStatistics) -> None:
    line = msgspec.json.encode({"event": "progress", **msgspec.structs.asdict(now)}).decode()
    print(line, file=sys.stderr, flush=True)


def line_of(before: NodeStatistics, now: NodeStatistics) -> str:
    """Return a line about the time between two moments."""
    seconds = max(now.at_us - before.at_us, 1) / 1e6
    rates = f"{(now.rows_in - before.rows_in) / seconds:,.0f} rows/s in, "
    rates += f"{(now.rows_out - before.rows_out) / seconds:,.0f} out"
    parts = [rates]
    parts.append("lag unknown" if now.lag_s is None else f"lag {now.lag_s:.1f} s")
    if now.watermark_us is not None:
        parts.append(f"watermark {time_text(now.watermark_us)}")
    parts.append(f"{now.waves:,} waves")
    if now.rows_late:
        parts.append(f"{now.rows_late:,} rows late")
    if now.trouble is not None:
        parts.append(f"FAILING: {now.trouble.subject}, {now.trouble.times} times in a row: {now.trouble.message}")
    return f"{now.name}: {', '.join(parts)}"
