"""Load every kernel once, before a wave needs it.

Invariant: after `warm` no wave compiles. It runs a small state through all that a unit can do; on disk the compiled
kernels are found by numba's cache, so only the first process of an installation takes the time.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np

from holdfast.state.layout import Identity, OrderedLayout, RecordLayout, StateLayout
from holdfast.state.unit_state import UnitState

WARM_LAYOUT = StateLayout(
    records=(RecordLayout("warm", keys=1, variable=True, values=3, heap_values=(1,)),),
    ordered=(OrderedLayout("warm.close", "warm", 0),),
)


def warm(folder: str | None = None) -> None:
    """Compile or load all kernels of this room; uses a small file in `folder` (default: the temporary folder)."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        identity = Identity("warm", "warm", 0, 1)
        state = UnitState.create(os.path.join(temporary, "state"), identity, WARM_LAYOUT, 0)
        try:
            _run(state)
        finally:
            state.remove()


def _run(state: UnitState) -> None:
    records_map, closing = state.maps["warm"], state.ordered["warm.close"]
    hashes = np.arange(4, dtype=np.uint64)
    keys = np.arange(4, dtype=np.int64).reshape(4, 1)
    offsets = np.arange(5, dtype=np.int64)
    data = np.zeros(4, np.uint8)
    state.begin(0)
    records, _ = records_map.locate(hashes, keys, offsets, data)
    state.publish()
    closing.add(keys[:, 0], records)
    addresses = state.heap.store(offsets, data)
    state.heap.gather(addresses, np.ones(4, np.int64))
    state.heap.free(addresses, np.ones(4, np.int64))
    state.finish(1)
    state.prepare().release()
    state.begin(1)
    records_map.touch(records_map.find(hashes, keys, offsets, data))
    records_map.read(records, 2)
    closing.has_before(2)
    closing.pop_until(2)
    records_map.free(records[:2])
    state.rollback()
    state.end()
