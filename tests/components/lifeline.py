"""Processes that end with whoever started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def dies_with_me() -> Callable[[], None]:
    """Return what `subprocess` calls in a new process so that the kernel kills it when this one dies.

    To the kernel it is the thread that dies: start what is to last from the main thread.
    """
    parent = os.getpid()

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # A parent that died before the kernel was asked sends no signal.
        if os.getppid() != parent:
            os._exit(1)

    return arrange
