"""`holdfast run`: a pipeline's script in a process of its own, started again when it dies.

Invariants:
    * The script is `__main__` of a fresh Python process. There is never more than one at a time.
    * A signal to stop reaches the script once, and ends the waiting between two starts too; after one nothing is
      started again.
    * When this process dies, the script is told to stop: it does not go on unwatched.
    * A script is not started again where it would only end the same way (`script.is_futile`).
    * With `--json` the script's own standard output goes to standard error.
    * Ctrl-C ends this command with 130 as long as no pipeline ran that it could stop, SIGTERM with 143.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

import click

from holdfast.cli.output import common_options, example, print_json, print_message
from holdfast.cli.script import EXIT_FUTILE

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 30.0
HEALTHY_S = 60.0

_EXIT_WRONG_USE = 2
_PASSED_ON = (0, _EXIT_WRONG_USE, 128 + signal.SIGINT, 128 + signal.SIGTERM)
_FINAL = (0, _EXIT_WRONG_USE, EXIT_FUTILE)
_PR_SET_PDEATHSIG = 1


class Supervisor:
    """Runs a command, and again after it died, up to a number of restarts."""

    def __init__(self, arguments: Sequence[str], restarts: int, as_json: bool, backoff_first_s: float) -> None:
        self._arguments = list(arguments)
        self._restarts = restarts
        self._as_json = as_json
        self._backoff_first_s = backoff_first_s
        self._child: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._stopped_by = signal.SIGTERM
        self._is_told = False

    def run(self) -> int:
        """Return the exit status of the last process, 128 + n where signal n ended it."""
        used, backoff_s = 0, self._backoff_first_s
        while True:
            started = time.monotonic()
            status = self._run_once()
            if time.monotonic() - started >= HEALTHY_S:
                used, backoff_s = 0, self._backoff_first_s
            if self._stop.is_set() or status in _FINAL or used >= self._restarts:
                self._tell("ended", status=status, restarts=used)
                return status
            used += 1
            self._tell("died", status=status, restart=used, restarts=self._restarts, wait_s=backoff_s)
            if self._stop.wait(backoff_s):
                return status
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def stop(self, number: int, frame: FrameType | None = None) -> None:
        """Pass a signal on to the script; it may be called by a signal handler."""
        self._stopped_by = signal.Signals(number)
        self._stop.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(number)
            self._is_told = True

    def _run_once(self) -> int:
        # A group of its own: Ctrl-C then reaches the script through us alone, and so once.
        stdout = sys.stderr.fileno() if self._as_json else None
        self._child = subprocess.Popen(
            self._arguments, stdout=stdout, process_group=0, preexec_fn=_die_with(os.getpid())
        )
        self._tell("started", pid=self._child.pid)
        if self._stop.is_set() and not self._is_told:
            # The signal came when there was no script to pass it on to.
            self._child.send_signal(self._stopped_by)
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def _tell(self, event: str, **what: object) -> None:
        if self._as_json:
            print_json({"event": event, **what})
        elif event == "died":
            print_message(
                f"holdfast: the pipeline died with {_status_text(what['status'])}; start {what['restart']} of "
                f"{what['restarts']} follows in {what['wait_s']:g} s"
            )
        elif event == "ended" and what["status"] not in (0, 1, 128 + signal.SIGINT, EXIT_FUTILE):
            print_message(f"holdfast: the pipeline ended with {_status_text(what['status'])}")


def _status_text(status: object) -> str:
    number = status - 128 if isinstance(status, int) else 0
    return f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"exit status {status}"


def _die_with(parent: int) -> Callable[[], None]:
    """Return what makes a new process get SIGTERM when its parent dies, and hold Ctrl-C back until it can take it."""
    library = ctypes.CDLL(None, use_errno=True)

    def arrange() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def run_script(
    file: str,
    arguments: Sequence[str],
    restarts: int = 0,
    as_json: bool = False,
    backoff_first_s: float = BACKOFF_FIRST_S,
    debug: bool = False,
    available_now: bool = False,
    quiet: bool = False,
) -> int:
    """Run a script under supervision from the main thread; return its exit status."""
    chosen = {"--json": as_json, "--debug": debug, "--available-now": available_now, "--quiet": quiet}
    options = [option for option, is_chosen in chosen.items() if is_chosen]
    command = [sys.executable, "-m", "holdfast.cli.script", *options, file, *arguments]
    supervisor = Supervisor(command, restarts, as_json, backoff_first_s)
    before = {number: signal.signal(number, supervisor.stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return supervisor.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command(
    "run",
    epilog=example("holdfast run --restarts 5 retail.py"),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, readable=True))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often in a row a pipeline that died is started again (a minute of life counts as well again).",
)
@click.option("--master", help="Where hf.session() runs it, such as spark://host:7077 (default: this machine).")
@click.option(
    "--available-now", is_flag=True, help="Take what is there, end every window, and return: run(available_now=True)."
)
@click.option("--quiet", is_flag=True, help="Do not show how the pipeline is doing while it runs.")
@common_options
def command(
    file: str,
    arguments: tuple[str, ...],
    restarts: int,
    master: str | None,
    available_now: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run the pipeline in the script FILE, with ARGUMENTS for it, until it ends or Ctrl-C."""
    if master is not None:
        os.environ["HOLDFAST_MASTER"] = master
    context = click.get_current_context()
    status = run_script(
        file, arguments, restarts, as_json, debug=bool(context.obj), available_now=available_now, quiet=quiet
    )
    return status if status in _PASSED_ON else 1
