"""The state of units in memory that outlives a task: paged, logged wave by wave, copied on write.

```python
layout = StateLayout(records=(RecordLayout("counts", keys=1, variable=False, values=2),))
state = UnitState.create(path, Identity("retail", "averages", 0, generation=1), layout, bucket_end=0)
counts = state.maps["counts"]

state.begin(committed=0)                           # the position in the journal; rolls back what it does not know
records, is_new = counts.locate(hashes, keys)      # u64[n], i64[n, 1]; saves before-images
state.publish()                                    # from here on kernels may change values
add_one(state.words, counts.table, counts.first_value, records)    # word = address(table, record) + first_value + i
counts.free(records[:1])
state.finish(bucket_end=7, meta=b"watermarks")
with state.prepare() as snapshot:                  # copy-on-write from here; another thread may write it
    for page in snapshot.pages(since=-1): ...
state.end()                                        # another process may take the next wave
```

Heap values, ordered maps: see `heap` and `ordered_map`. Layout of records: see `layout.RecordLayout`.
"""

from holdfast.state.address import address
from holdfast.state.compiled import kernel, prefetch
from holdfast.state.hash_map import HashMap
from holdfast.state.heap import Heap
from holdfast.state.layout import Identity, OrderedLayout, RecordLayout, StateLayout
from holdfast.state.ordered_map import NO_KEY, OrderedMap
from holdfast.state.snapshot import Snapshot, SnapshotHead, SnapshotPage
from holdfast.state.unit_state import UnitState
from holdfast.state.warm import warm

__all__ = [
    "NO_KEY",
    "HashMap",
    "Heap",
    "Identity",
    "OrderedLayout",
    "OrderedMap",
    "RecordLayout",
    "Snapshot",
    "SnapshotHead",
    "SnapshotPage",
    "StateLayout",
    "UnitState",
    "address",
    "kernel",
    "prefetch",
    "warm",
]
