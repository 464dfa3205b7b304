"""What a node holds at a moment, and whether it holds more the longer it runs.

A weight is taken when nothing runs and everything that could be thrown away was: then it is the same at each moment,
but for what stays for good. What is noise all the same is allowed once (`slack`); what grows with the waves is not.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tests.chaos.processes import command_line, descendants

from holdfast.log.ledger import Ledger
from holdfast.state import layout

WAVES_FULL: Final = 100_000


class Bound(msgspec.Struct, frozen=True):
    """How much more there may be after 100,000 waves than after 1,000, and how much the noise is."""

    growth: int
    slack: int


MB: Final = 1024
BOUNDS: Final[dict[str, Bound]] = {
    "JVM heap (KB)": Bound(8 * MB, 16 * MB),
    "JVM besides its heap (KB)": Bound(8 * MB, 8 * MB),
    "JVM threads": Bound(4, 12),
    "Java objects held by Python": Bound(50, 150),
    "Spark's accumulators": Bound(10, 150),
    "jobs in Spark's status store": Bound(0, 300),
    "Python objects": Bound(3000, 4000),
    "Python threads": Bound(0, 2),
    "descriptors of the node": Bound(0, 8),
    "descriptors of the JVM": Bound(2, 12),
    "descriptors of workers": Bound(4, 24),
    "memory of the node (KB)": Bound(16 * MB, 12 * MB),
    "memory of the JVM (KB)": Bound(32 * MB, 200 * MB),
    "memory of workers (KB)": Bound(16 * MB, 16 * MB),
    "pages of state": Bound(50, 150),
    "frames in the ledger": Bound(0, 6000),
    "snapshots (files)": Bound(0, 24),
    "journal (KB)": Bound(0, 36 * MB),
}
"""The memory of processes is what is their own alone. A JVM keeps what its heap once needed, up to its limit; what is
in its heap is the first line. The journal of a node, and that of its producer, is begun anew after 16 MB."""


class Weigher:
    """Takes the weight of a node that runs in this process."""

    def __init__(self, spark: Any, store: Path, states: Path) -> None:
        self._context = spark.sparkContext
        self._store = store
        self._states = states

    def weigh(self, ledger: Ledger) -> dict[str, int]:
        """Return what there is; nothing runs, and what Python and Java hold in vain is let go of first."""
        for _ in range(2):
            # What Python lets go of, Java is told of; then Spark's cleaner is told by Java.
            gc.collect()
            self._context._jvm.java.lang.System.gc()
        found = {"Python objects": len(gc.get_objects())}
        return found | self._java() | self._processes() | self._files(ledger)

    def _java(self) -> dict[str, int]:
        jvm, gateway = self._context._jvm, self._context._gateway
        beans = jvm.java.lang.management.ManagementFactory
        memory = beans.getMemoryMXBean()
        return {
            "JVM heap (KB)": memory.getHeapMemoryUsage().getUsed() >> 10,
            "JVM besides its heap (KB)": memory.getNonHeapMemoryUsage().getUsed() >> 10,
            "JVM threads": beans.getThreadMXBean().getThreadCount(),
            "Java objects held by Python": gateway.java_gateway_server.getGateway().getBindings().size(),
            "Spark's accumulators": jvm.org.apache.spark.util.AccumulatorContext.numAccums(),
            "jobs in Spark's status store": self._context._jsc.sc().statusStore().jobsList(None).size(),
        }

    def _processes(self) -> dict[str, int]:
        node = os.getpid()
        found = {
            "Python threads": len(os.listdir(f"/proc/{node}/task")),
            "descriptors of the node": descriptors(node),
            "memory of the node (KB)": own_memory_kb(node),
        }
        jvms, workers = [], []
        for pid in descendants(node):
            line = command_line(pid)
            if b"ArchiveClassesAtExit" in line:
                # Makes the class archive, once for all, beside the first node.
                continue
            if b"org.apache.spark.deploy" in line:
                jvms.append(pid)
            elif b"holdfast.spark.daemon" in line:
                workers.append(pid)
        for name, pids in (("the JVM", jvms), ("workers", workers)):
            found[f"descriptors of {name}"] = sum(map(descriptors, pids))
            found[f"memory of {name} (KB)"] = sum(map(own_memory_kb, pids))
        return found

    def _files(self, ledger: Ledger) -> dict[str, int]:
        files = [file for file in self._store.rglob("*") if file.is_file()]
        journals = sum(file.stat().st_blocks for file in files if "journal" in file.parts)
        return {
            "pages of state": sum(map(pages_used, self._states.rglob("*.state"))),
            "frames in the ledger": sum(sum(1 for _ in ledger.each_frame(stream)) for stream in ledger.streams),
            "snapshots (files)": sum("snapshots" in file.parts for file in files),
            "journal (KB)": journals // 2,
        }


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def own_memory_kb(pid: int) -> int:
    """Return the memory that no file stands behind."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def pages_used(file: Path) -> int:
    """Return how many of a state's pages hold something."""
    words = np.memmap(file, dtype=np.int64, mode="r")
    return int(words[layout.H_ALLOCATED] - words[layout.H_FREE_COUNT])


def too_heavy(weights: list[tuple[int, dict[str, int]]]) -> list[str]:
    """Return what grew more than it may between the first third of the weights and the last: least against least."""
    third = max(1, len(weights) // 3)
    first, last = weights[:third], weights[-third:]
    waves = last[0][0] - first[0][0]
    found = []
    for name, bound in BOUNDS.items():
        before, after = (min(weight[name] for _, weight in part) for part in (first, last))
        allowed = bound.slack + bound.growth * waves // WAVES_FULL
        if after - before > allowed:
            found.append(
                f"{name}: {before:,} at {first[0][0]:,} waves and {after:,} at {last[0][0]:,}, which is "
                f"{after - before:,} more; {allowed:,} are allowed"
            )
    return found
