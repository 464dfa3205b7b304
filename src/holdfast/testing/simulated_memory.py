"""The memory of a host that outlives its processes: the states of units, by the rules of `state.unit_state`.

Guarantees:
    * A wave either ends with `finish`, or has not happened. The last finished wave can be taken back until the next
      `begin`, and no other.
    * Only who has the lock, with the generation that the state is of, changes it; a dead process's lock is free.
"""

from __future__ import annotations

from holdfast.errors import StateAbsent, StateBusy
from holdfast.testing.timeline import Process

UnitKey = tuple[str, int]


class HostMemory:
    """All states on one host."""

    def __init__(self, host: int) -> None:
        self.host = host
        self.states: dict[UnitKey, MemoryState] = {}

    def find(self, key: UnitKey) -> MemoryState:
        state = self.states.get(key)
        if state is None:
            raise StateAbsent(f"host {self.host} has no state of {key}")
        return state

    def install(self, key: UnitKey, generation: int, bucket_end: int, content: bytes) -> MemoryState:
        """Put a new state in the place of whatever was there, as a rename does."""
        state = self.states[key] = MemoryState(self, key, generation, bucket_end, content)
        return state


class MemoryState:
    """One unit's state."""

    def __init__(self, memory: HostMemory, key: UnitKey, generation: int, bucket_end: int, content: bytes) -> None:
        self.memory = memory
        self.key = key
        self.generation = generation
        self.bucket_end = bucket_end
        self.before: tuple[int, bytes] | None = None
        self._content = content
        self._holder: Process | None = None

    def adopt(self, process: Process, generation: int) -> None:
        """Become the unit's next life."""
        self._lock(process)
        try:
            self._check_current()
            if self.generation > generation:
                raise StateAbsent(f"the state of {self.key} is of generation {self.generation}, beyond {generation}")
            self.generation = generation
        finally:
            self.end(process)

    def begin(self, process: Process, generation: int, committed: int) -> bytes:
        """Open a wave on the state as of `committed`, and return its content."""
        self._lock(process)
        try:
            self._check_current()
            if self.generation != generation:
                raise StateAbsent(f"the state of {self.key} is of generation {self.generation}, not {generation}")
            if self.bucket_end != committed and self.before is not None and self.before[0] == committed:
                self.bucket_end, self._content = self.before
            if self.bucket_end != committed:
                raise StateAbsent(f"the state of {self.key} is as of {self.bucket_end}, expected {committed}")
            self.before = None
            return self._content
        except StateAbsent:
            self.end(process)
            raise

    def finish(self, bucket_end: int, content: bytes) -> None:
        """End the wave."""
        assert bucket_end > self.bucket_end, "a wave moves its unit forward"
        self.before = (self.bucket_end, self._content)
        self.bucket_end, self._content = bucket_end, content

    def end(self, process: Process) -> None:
        """Let others have the state; a wave that was not finished has not happened."""
        if self._holder is process:
            self._holder = None

    def _lock(self, process: Process) -> None:
        if self._holder is not None and self._holder is not process and self._holder.alive:
            raise StateBusy(f"{self._holder.name} works on the state of {self.key}; try again")
        self._holder = process

    def _check_current(self) -> None:
        if self.memory.states.get(self.key) is not self:
            raise StateAbsent(f"the state of {self.key} was replaced")
