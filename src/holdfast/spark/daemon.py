"""The parent of Spark's Python workers: it imports and warms everything once, then forks.

Guarantees:
    * A worker starts with every module imported and every kernel compiled; what was allocated before the fork is
      frozen, so that the collection after each task has nothing old to look at.
    * A worker does not outlive its daemon: the kernel kills it. A worker that lived on would be a zombie by design.

Named by `spark.python.daemon.module`; it must be importable where executors run.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from holdfast.spark import ahead, shipping

PR_SET_PDEATHSIG = 1


def die_with(daemon: int) -> Callable[[], None]:
    """Return what makes a process that the daemon forks die with it (on Linux; elsewhere nothing happens).

    What a user's function forks in a worker is none of ours.
    """
    forked_by = daemon

    def arrange() -> None:
        nonlocal forked_by
        parent, forked_by = forked_by, os.getpid()
        if parent != daemon:
            return
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # A daemon that died before the kernel was asked sends no signal.
        if os.getppid() != daemon:
            os._exit(1)

    return arrange


def warm() -> None:
    """Import what a wave needs and load its kernels."""
    import pyspark.worker  # noqa: F401

    import holdfast.spark.worker  # noqa: F401
    from holdfast.node.slot import warm as warm_slot

    warm_slot()


def quiet_worker(worker: Callable[..., int]) -> Callable[..., int]:
    """Return Spark's worker loop, without a traceback when the JVM is gone: then nobody waits for the answer."""

    def run(*arguments: Any) -> int:
        try:
            return worker(*arguments)
        except (BrokenPipeError, ConnectionResetError):
            return 1

    return run


def main() -> None:
    shipping.settle()
    if sys.argv[1:2] == [ahead.OPTION]:
        if not ahead.wait_for_stub(sys.argv[2], int(sys.argv[3]), warm):
            return
    else:
        ahead.hand_over()
        warm()
    import pyspark.daemon

    pyspark.daemon.worker = quiet_worker(pyspark.daemon.worker)
    os.register_at_fork(after_in_child=die_with(os.getpid()))
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    main()
