"""The scribe follows every journal from the first entry on, on a machine that never fails: what it saw is the truth.

Invariants that it checks at every step, whatever happens to everybody else:
    * A frame that was read stays until it is trimmed, and no frame is read twice.
    * Boundaries and units only go on; nothing is published below what was promised before.
    * Nothing behind a seal is read: no entry at or past the end that the next term names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.log.ledger import NO_BOUNDARY, Ledger
from holdfast.log.stream_reader import StreamReader
from holdfast.log.terms import Previous
from holdfast.model import FIRST_BUCKET, Advanced, BatchLogged, Ended, JournalItem, Published, UnitCommitted
from holdfast.testing.simulated_stage import Row
from holdfast.testing.timeline import Process

if TYPE_CHECKING:
    from holdfast.testing.simulated_world import World


class Scribe(Process):
    """Follows all streams, and writes down what became true."""

    def __init__(self, world: World, streams: list[str]) -> None:
        super().__init__(world.timeline, "scribe", world.disk.outsider("scribe"))
        self._world = world
        self._readers = {stream: StreamReader(self.store, stream) for stream in streams}
        self._followed = dict.fromkeys(streams, -1)
        self.logged: dict[str, list[tuple[int, int, list[Row]]]] = {stream: [] for stream in streams}
        """Per source stream: bucket, stamp and rows of each frame, in the order of their commits."""
        self.batches: dict[str, list[int]] = {stream: [] for stream in streams}
        self.endings: dict[str, list[int]] = {stream: [] for stream in streams}
        self.unit_ends: dict[tuple[str, int], int] = {}
        self.frames: dict[str, dict[int, int]] = {stream: {} for stream in streams}
        """Per stream: the checksum of each frame, and the end of its buckets."""
        self._boundaries: dict[str, int] = dict.fromkeys(streams, NO_BOUNDARY)
        self._taken: dict[tuple[str, str], int] = {}
        """Per stream and journal: the number after the last entry that was read."""
        self._sealed: dict[tuple[str, str], int] = {}

    def ledger(self, stream: str) -> Ledger:
        return self._readers[stream].ledger

    def observe(self, streams: Iterable[str]) -> None:
        """Take note of what is new in some streams."""
        for stream in streams:
            reader = self._readers[stream]
            for item in reader.poll():
                self._note(stream, item)
            self._check_seal(stream, reader)
            if reader.term != self._followed[stream]:
                self._followed[stream] = reader.term
                self.timeline.count("a reader follows a new term")
                self.check_frames(stream)

    def sealed(self, stream: str, previous: Previous | None) -> None:
        """Somebody has taken the stream's next term, which says where the one before ended."""
        if previous is not None:
            self._sealed[stream, previous.journal] = previous.entry_end

    def check_frames(self, stream: str) -> None:
        """Compare what was read of a stream with what a reader is told now."""
        ledger = self.ledger(stream)
        trimmed = ledger.trimmed_before(stream)
        there = {frame.frame.crc for frame in ledger.all_frames(stream)}
        for crc, bucket_end in self.frames[stream].items():
            if crc not in there and (trimmed is None or bucket_end > trimmed):
                self._world.violated(f"a frame of {stream} that was read, up to bucket {bucket_end}, is withdrawn")

    def _check_seal(self, stream: str, reader: StreamReader) -> None:
        place = reader.place
        if place is None:
            return
        journal, entry_next = place
        taken = self._taken[stream, journal] = max(entry_next, self._taken.get((stream, journal), 0))
        entry_end = self._sealed.get((stream, journal))
        if entry_end is not None and taken > entry_end:
            self._world.violated(f"entries of {journal} up to {taken} were read, and it was sealed at {entry_end}")

    def _note(self, stream: str, item: JournalItem) -> None:
        match item:
            case Published():
                self._published(stream, item)
            case Advanced(boundary_us=boundary_us):
                if boundary_us < self._boundaries[stream]:
                    self._world.violated(f"the boundary of {stream} went back to {boundary_us}")
                self._boundaries[stream] = boundary_us
            case BatchLogged(sequence=sequence):
                self.batches[stream].append(sequence)
            case Ended(stage, bucket_end):
                self.endings[stage].append(bucket_end)
            case UnitCommitted(stage, shard, _, _, bucket_end):
                before = self.unit_ends.get((stage, shard), bucket_end)
                if bucket_end < before:
                    self._world.violated(f"unit {shard} of {stage} went back from {before} to {bucket_end}")
                self.unit_ends[stage, shard] = bucket_end
            case _:
                pass

    def _published(self, stream: str, item: Published) -> None:
        crc = item.frame.crc
        if crc in self.frames[stream]:
            self._world.violated(f"a frame of {stream} is there twice: {item}")
        self.frames[stream][crc] = item.bucket_end
        if stream not in self._world.sources:
            if item.bucket_start < self.unit_ends.get((stream, item.shard), FIRST_BUCKET):
                self._world.violated(f"unit {item.shard} of {stream} published in a bucket that was complete: {item}")
            return
        assert item.stamp_us is not None, "simulated sources are stamped on arrival"
        if item.stamp_us < self._boundaries[stream]:
            self._world.violated(f"{stream} has a row below its boundary {self._boundaries[stream]}: {item}")
        self.logged[stream].append((item.bucket_start, item.stamp_us, self._world.written[stream, crc]))

    def check_endings(self) -> None:
        """A stage that reads stages may end only where they have."""
        for stage in self._world.topology.stages:
            for upstream in [read.stream for read in stage.inputs if read.stream not in self._world.sources]:
                for bucket_end in self.endings[stage.name]:
                    if not any(ended <= bucket_end for ended in self.endings[upstream]):
                        self._world.violated(f"{stage.name} ended at {bucket_end}, before its input {upstream}")
