"""The state of one unit: a wave at a time, in one process at a time, in memory that outlives both.

Invariants:
    * A wave either ends with `finish`, or has not happened: whoever opens the file next rolls it back.
    * The last finished wave can be rolled back until the next `begin`, which says what the journal has committed.
    * The status word (wave, slot of meta, dirty) changes in one store, so there is no moment between two states.
    * Only the holder of the file's lock, with the generation that the header names, changes anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec
import numpy as np

from holdfast.errors import StateAbsent, StateBusy
from holdfast.state import rebuild, snapshot
from holdfast.state.compiled import Halves, Octets, Reals, Words
from holdfast.state.hash_map import HashMap
from holdfast.state.heap import Heap
from holdfast.state.heap_kernels import settle_cells
from holdfast.state.layout import (
    FIRST_MAP_SET,
    H_GENERATION,
    H_LOG_WAVE,
    H_STATUS,
    H_WAVE,
    HEAP_SET,
    MAP_SETS,
    META_BYTES_MAX,
    META_OFFSETS,
    S_FIRST_VALUE,
    S_HEAP,
    S_HEAP_VALUES,
    S_KEYS,
    S_LOGGED,
    S_PUBLISHED,
    S_VALUES,
    S_VARIABLE,
    Identity,
    StateLayout,
)
from holdfast.state.map_kernels import settle_records
from holdfast.state.ordered_map import OrderedMap
from holdfast.state.pages import PageFile, boot_id
from holdfast.state.snapshot import Snapshot, SnapshotHead
from holdfast.state.soundness import check_sound

WAVE_SHIFT = 2
SLOT = 2
DIRTY = 1


class UnitState:
    """Maps, ordered maps and the heap of one unit. Kernels change records through `words` and `reals`.

    A mapping may be replaced when the state grows: take `words`, `reals` and a map's `table` anew after every call.
    """

    def __init__(self, file: PageFile, identity: Identity) -> None:
        self.file = file
        self.identity = identity
        self.heap = Heap(self)
        self.maps = {records.name: HashMap(self, records) for records in file.layout.records}
        self.ordered = {ordered.name: OrderedMap(self, ordered) for ordered in file.layout.ordered}
        self._locked = False
        self._open = False
        self._is_sound = False

    @classmethod
    def create(cls, path: str, identity: Identity, layout: StateLayout, bucket_end: int) -> UnitState:
        """Make an empty state that has processed everything before `bucket_end`; it replaces what was at `path`."""
        file = PageFile.create(path, identity, layout)
        try:
            _set_up(file)
            file.words[H_WAVE] = 0
            rebuild.derive(file, -1)
            _write_slot(file, 0, bucket_end, b"")
            file.words[H_STATUS] = 0
            file.install(path)
            file.unlock()
        except BaseException:
            _discard(file)
            raise
        return cls(file, identity)

    @classmethod
    def open(cls, path: str, identity: Identity, layout: StateLayout) -> UnitState:
        """Open what another process, or this one, left; `StateAbsent` where it is not this unit's, or of another boot.

        The generation is checked by `begin`. A successor calls `adopt` first.
        """
        file = PageFile.open(path, layout)
        try:
            _check_owner(file, identity)
        except BaseException:
            file.close()
            raise
        return cls(file, identity)

    @classmethod
    def restore(
        cls,
        path: str,
        identity: Identity,
        layout: StateLayout,
        head: SnapshotHead,
        pages: Iterable[tuple[int, int, memoryview | bytes]],
    ) -> UnitState:
        """Make a state from a snapshot's pages, in any order; what is derived is built by the first `begin`."""
        file = PageFile.create(path, identity, layout)
        try:
            _set_up(file)
            snapshot.fill(file, head, pages)
            _write_slot(file, 0, head.bucket_end, head.meta)
            file.words[H_STATUS] = (head.wave + 1) << WAVE_SHIFT | DIRTY
            file.install(path)
            file.unlock()
        except BaseException:
            _discard(file)
            raise
        return cls(file, identity)

    @property
    def words(self) -> Words:
        return self.file.words

    @property
    def reals(self) -> Reals:
        return self.file.reals

    @property
    def halves(self) -> Halves:
        return self.file.halves

    @property
    def octets(self) -> Octets:
        return self.file.octets

    @property
    def generation(self) -> int:
        """Return the generation that the file's header names."""
        return int(self.words[H_GENERATION])

    @property
    def wave(self) -> int:
        """Return the number of the wave that is open, or was finished or rolled back last."""
        return self._status() >> WAVE_SHIFT

    @property
    def is_dirty(self) -> bool:
        """Return whether a wave is open or was interrupted; `begin` rolls back the latter."""
        return bool(self._status() & DIRTY)

    @property
    def bucket_end(self) -> int:
        """Return where the last finished wave ended."""
        return self._bucket_end(self._slot())

    @property
    def bucket_end_before(self) -> int | None:
        """Return where the state would be if the last finished wave were rolled back; None if that cannot be done."""
        return self._bucket_end(1 - self._slot()) if not self.is_dirty and self._can_undo() else None

    @property
    def meta(self) -> bytes:
        """Return what the last finished wave gave to `finish`."""
        start = META_OFFSETS[self._slot()]
        length = min(int(self.words[start // 8 + 1]), META_BYTES_MAX)
        return self.octets[start + 16 : start + 16 + length].tobytes()

    @property
    def size_bytes(self) -> int:
        """Return the memory that the state takes."""
        return self.file.size_bytes

    @property
    def records(self) -> int:
        """Return how many keys its maps hold."""
        return sum(each.count for each in self.maps.values())

    def begin(self, committed: int) -> None:
        """Open a wave on the state as of bucket `committed`, the unit's position in the journal.

        A wave that was interrupted, or that the journal does not know, is rolled back. `StateAbsent` if that does not
        lead to `committed`, `StateBusy` if another process has the unit.
        """
        assert not self._open, f"a wave of {self.identity} is open already"
        self._lock()
        try:
            self._take_turn()
            snapshot.settle_snapshot(self.file)
            self._return_to(committed)
            self._open_wave()
        except BaseException:
            self._unlock()
            raise

    def publish(self) -> None:
        """Make the before-images saved so far count. Kernels that change values come after this."""
        for number in self._logs():
            self.words[number + S_PUBLISHED] = self.words[number + S_LOGGED]

    def finish(self, bucket_end: int, meta: bytes = b"") -> None:
        """End the wave: everything before `bucket_end` is in the state now, `meta` (up to 6,000 bytes) with it."""
        self.check_open("finish")
        assert bucket_end > self.bucket_end, "a wave moves its unit forward, or it cannot be told from the one before"
        assert len(meta) <= META_BYTES_MAX, f"meta has {len(meta)} bytes, the most is {META_BYTES_MAX}"
        slot = 1 - self._slot()
        _write_slot(self.file, slot, bucket_end, meta)
        self.words[H_STATUS] = self.wave << WAVE_SHIFT | slot * SLOT
        self._open = False

    def end(self) -> None:
        """Let other processes have the unit. A wave that is still open will be rolled back by the next `begin`."""
        self._open = False
        if self._locked:
            self._unlock()

    def rollback(self) -> None:
        """Undo the open wave now; the unit is as after the wave before, and still ours until `end`."""
        self.check_open("rollback")
        self._open = False
        self._roll_back()

    def adopt(self, generation: int) -> None:
        """Become the unit's next life: every process with an older generation is refused from now on."""
        self._lock()
        try:
            self._check_current()
            found = self.generation
            if found > generation:
                raise StateAbsent(
                    f"state file {self.file.path} belongs to generation {found}, later than {generation}: "
                    "another node has taken over; rebuild elsewhere under a new generation"
                )
            self.words[H_GENERATION] = generation
            self.identity = msgspec.structs.replace(self.identity, generation=generation)
        finally:
            self._unlock()

    def prepare(self) -> Snapshot:
        """Return a snapshot of the last finished wave. No wave is open; it takes well under a millisecond."""
        assert not self._open, "a snapshot is taken between waves"
        held = self._locked
        if not held:
            self._lock()
        try:
            self._take_turn()
            if self.is_dirty:
                raise StateAbsent(
                    f"state file {self.file.path} has an interrupted wave or was just restored: begin a wave first"
                )
            return snapshot.prepare(self.file, self.wave, self.bucket_end, self.meta)
        finally:
            if not held:
                self._unlock()

    def close(self) -> None:
        """Let go of the file; the state stays."""
        self.end()
        self.file.close()

    def remove(self) -> None:
        """Delete the state: its unit has left this machine."""
        self.close()
        for path in (self.file.path, f"{self.file.path}.snapshot"):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def check_open(self, action: str) -> None:
        """Fail if there is no wave to do this in: that is a bug of the caller."""
        assert self._open, f"{action} needs an open wave of {self.identity}; call begin first"

    def _status(self) -> int:
        return int(self.words[H_STATUS])

    def _slot(self) -> int:
        return (self._status() & SLOT) // SLOT

    def _bucket_end(self, slot: int) -> int:
        return int(self.words[META_OFFSETS[slot] // 8])

    def _logs(self) -> Iterable[int]:
        for position in range(len(self.file.layout.records)):
            yield self.file.sets[FIRST_MAP_SET + position * MAP_SETS + 1].super

    def _lock(self) -> None:
        if not self._locked and not self.file.lock():
            raise StateBusy(f"state file {self.file.path} is in use by another process: try again when it has ended")
        self._locked = True

    def _unlock(self) -> None:
        self._locked = False
        self.file.unlock()

    def _check_current(self) -> None:
        if not self.file.is_current():
            raise StateAbsent(
                f"state file {self.file.path} was removed or replaced: open it again, or rebuild the unit"
            )

    def _take_turn(self) -> None:
        self._check_current()
        if self.generation != self.identity.generation:
            raise StateAbsent(
                f"state file {self.file.path} belongs to generation {self.generation}, expected "
                f"{self.identity.generation}: the unit has another life; rebuild it, or adopt the file"
            )
        self.file.refresh()
        if not self._is_sound:
            check_sound(self.file, self.is_dirty)
            self._is_sound = True

    def _return_to(self, committed: int) -> None:
        if self.is_dirty:
            self._roll_back()
        elif self.bucket_end != committed and self._can_undo() and self._bucket_end(1 - self._slot()) == committed:
            slot = 1 - self._slot()
            # From here on the finished wave counts as interrupted: a crash in between rolls it back too.
            self.words[H_STATUS] = self.wave << WAVE_SHIFT | slot * SLOT | DIRTY
            self._roll_back()
        if self.bucket_end != committed:
            raise StateAbsent(
                f"state file {self.file.path} is as of bucket {self.bucket_end}, expected {committed}: "
                "rebuild the unit from its snapshot and input"
            )

    def _can_undo(self) -> bool:
        return self.wave > 0 and int(self.words[H_LOG_WAVE]) == self.wave

    def _open_wave(self) -> None:
        wave = self.wave + 1
        # The old images must be gone before the status says dirty, or a crash would restore those of a committed wave.
        self.words[H_LOG_WAVE] = 0
        rebuild.empty_logs(self.file)
        self.words[H_LOG_WAVE] = wave
        self.words[H_WAVE] = wave
        self.words[H_STATUS] = wave << WAVE_SHIFT | self._slot() * SLOT | DIRTY
        self.file.require(len(self.file.sets))
        self._settle()
        self._open = True

    def _settle(self) -> None:
        """Make available what the wave before freed."""
        settle_cells(self.words, self.halves, self.file.sets[HEAP_SET].super)
        for position in range(len(self.file.layout.records)):
            super_block = self.file.sets[FIRST_MAP_SET + position * MAP_SETS].super
            settle_records(self.words, self.halves, self.octets, super_block)

    def _roll_back(self) -> None:
        """Go from a dirty status to the clean one before it."""
        wave = self.wave
        # A number of its own, so that pages which a snapshot took after the wave are copied again.
        self.words[H_WAVE] = wave + 1
        rebuild.restore_images(self.file)
        rebuild.derive(self.file, wave)
        self.words[H_LOG_WAVE] = 0
        self.words[H_STATUS] = (wave + 1) << WAVE_SHIFT | self._slot() * SLOT


def _set_up(file: PageFile) -> None:
    """Write into the super blocks what kernels ask of a record set."""
    for position, records in enumerate(file.layout.records):
        super_block = file.sets[FIRST_MAP_SET + position * MAP_SETS].super
        file.words[super_block + S_KEYS] = records.keys
        file.words[super_block + S_VARIABLE] = int(records.variable)
        file.words[super_block + S_VALUES] = records.values
        file.words[super_block + S_FIRST_VALUE] = records.first_value
        file.words[super_block + S_HEAP] = file.sets[HEAP_SET].super
        assert all(word + 1 < min(records.values, 63) for word in records.heap_values), "heap values come in two words"
        file.words[super_block + S_HEAP_VALUES] = sum(1 << word for word in records.heap_values)


def _write_slot(file: PageFile, slot: int, bucket_end: int, meta: bytes) -> None:
    start = META_OFFSETS[slot]
    file.words[start // 8] = bucket_end
    file.words[start // 8 + 1] = len(meta)
    file.octets[start + 16 : start + 16 + len(meta)] = np.frombuffer(meta, dtype=np.uint8)


def _check_owner(file: PageFile, identity: Identity) -> None:
    boot, found = file.identity()
    expected = (boot_id(), identity.pipeline, identity.stage, identity.shard)
    if (boot, found.pipeline, found.stage, found.shard) != expected:
        raise StateAbsent(
            f"state file {file.path} belongs to (boot, pipeline, stage, shard) "
            f"{(boot, found.pipeline, found.stage, found.shard)}, expected {expected}: rebuild the unit"
        )


def _discard(file: PageFile) -> None:
    file.close()
    with suppress(FileNotFoundError):
        os.unlink(file.path)
