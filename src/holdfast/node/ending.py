"""The end of a run with `available_now`: at which bucket every stage closes its windows and stops.

Invariants:
    * The end is one bucket end for the whole pipeline, behind every row that was there at the start. It is decided
      once, when all of that is logged; rows that come later wait for the next run.
    * Where an earlier run has ended every stage and nothing came since, it serves again: nothing is logged.
    * No unit goes as far as the end before its `Ended` is in the journal, so who reads a stage to its end comes to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.model import END_OF_TIME, FIRST_BUCKET, MANY_SHARDS, Advanced, Ended, JournalItem
from holdfast.node.situation import Situation
from holdfast.node.units import Phase
from holdfast.plan import Stage


class Ending:
    """Decides when and where a run is over; without `available_now` it never is."""

    def __init__(self, situation: Situation, unread: frozenset[str]) -> None:
        self._situation = situation
        self._unread = set(unread)
        self._rows_end: dict[str, int] = {}
        """The end of the last bucket with rows that a producer's stream had when the node started."""
        sources = situation.topology.sources
        self._foreign = {source.name for source in sources if source.is_foreign}
        produced = [source.name for source in sources if source.has_own_writer or source.is_foreign]
        self.note_what_is_there(name for name in produced if name not in unread)

    @property
    def unread(self) -> frozenset[str]:
        """Streams that somebody was taking over when the node started, and that have not been read since."""
        return frozenset(self._unread)

    @property
    def is_decided(self) -> bool:
        return self._situation.ends is not None

    def note_what_is_there(self, streams: Iterable[str]) -> None:
        """Remember how far streams of producers reach that were just read for the first time."""
        for stream in streams:
            self._rows_end[stream] = self._last_rows_end(stream)
            self._unread.discard(stream)

    def note_read(self, streams: Iterable[str]) -> None:
        """Streams that somebody was taking over when the node started can be read now."""
        self.note_what_is_there(self._unread & set(streams))

    def decide(self) -> list[list[JournalItem]]:
        """Decide the end once all input is logged; return what has to be committed for it."""
        here = self._situation
        if not here.options.available_now or self.is_decided or not self.all_logged():
            return []
        here.ends = self._old_ends()
        if here.ends is not None:
            return []
        end = self._new_end()
        here.ends = dict.fromkeys(here.stages, end)
        entries = [intake.finish(end) for intake in here.intakes.values()] if end > FIRST_BUCKET else []
        entries += [[Ended(name, end)] for name in here.stages if here.ledger.ended(name) != end]
        return entries

    def all_logged(self) -> bool:
        """Return whether everything that was there at the start is in the journal."""
        here = self._situation
        if self._unread:
            return False
        for intake in here.intakes.values():
            if not (intake.looks and intake.settled and intake.idle):
                return False
        if any(isinstance(item, Advanced) for ticket in here.tickets.values() for item in ticket.items):
            return False
        # Those that nobody sends to any more end with the run, wherever in a bucket their last promise lies.
        live = [(stream, bucket) for stream, bucket in self._rows_end.items() if stream not in here.intakes]
        return all(here.stream_end(stream) >= bucket for stream, bucket in live)

    def all_processed(self) -> bool:
        """Return whether every unit has committed its stage's end."""
        ends = self._situation.ends
        return ends is not None and all(
            unit.bucket_committed >= ends[unit.stage] and unit.phase is not Phase.COMMITTING
            for unit in self._situation.units.values()
        )

    def _old_ends(self) -> dict[str, int] | None:
        here = self._situation
        ends = {}
        for stage in here.stages.values():
            ended = here.ledger.ended(stage.name)
            # A run without `available_now` goes on without rows too.
            if ended is None or self._had_rows(stage, ended) or any(end > ended for end in self._committed_ends(stage)):
                return None
            ends[stage.name] = ended
        return ends

    def _had_rows(self, stage: Stage, bucket_from: int) -> bool:
        """Return whether rows came in `bucket_from` or later; rows that are not kept any more count as rows."""
        here = self._situation
        trimmed = [here.ledger.trimmed_before(read.stream) for read in stage.inputs]
        is_trimmed = any(bucket is not None and bucket > bucket_from for bucket in trimmed)
        return is_trimmed or here.has_rows(stage, bucket_from, END_OF_TIME)

    def _new_end(self) -> int:
        """Return the end of an empty bucket behind all rows, in which every window closes."""
        here = self._situation
        for name in here.intakes:
            self._rows_end[name] = max(self._last_rows_end(name), self._rows_end.get(name, FIRST_BUCKET))
        # A bucket of another pipeline is complete when it is there.
        ends = [
            bucket + (name not in self._foreign) for name, bucket in self._rows_end.items() if bucket > FIRST_BUCKET
        ]
        for stage in here.stages.values():
            # Units are at work below their target, and may have passed a bucket without ending anything in it.
            ends.append(here.target(stage))
            known = here.ledger.endings(stage.name)
            ends += [bucket if bucket in known else bucket + 1 for bucket in self._committed_ends(stage)]
        return max(ends, default=FIRST_BUCKET)

    def _committed_ends(self, stage: Stage) -> Iterator[int]:
        units = self._situation.units_of(stage.name)
        return (unit.bucket_committed for unit in units if unit.bucket_committed > FIRST_BUCKET)

    def _last_rows_end(self, stream: str) -> int:
        if stream in self._foreign:
            # Some of its units may be further than others; what is not complete is the next run's.
            last = max((frame.bucket_end for frame in self._situation.ledger.each_frame(stream)), default=FIRST_BUCKET)
            return min(last, self._situation.stream_end(stream))
        frame = self._situation.ledger.last_frame(stream, MANY_SHARDS)
        return FIRST_BUCKET if frame is None else frame.bucket_end
