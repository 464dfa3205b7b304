"""What becomes of the query that feeds a source: it starts, runs, dies, and is started again. Kept for `status`.

    ingest/<stream>/query.json

Invariants:
    * `since_us` is since when it runs, or since when it does not: tries that fail do not move it.
    * The pause grows with each death, and is short again after a query that has run for a while.
    * The file says how it was; only while the writer of the stream lives does it say how it is.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.log.store import validate_name
from holdfast.ports import Store

PAUSE_FIRST_US: Final = 1_000_000
PAUSE_MAX_US: Final = 30_000_000
HEALTHY_US: Final = 60_000_000
"""A query that has run for so long has nothing to do with how the one before it died."""


class QueryState(msgspec.Struct, frozen=True):
    """`deaths` are those in a row; `cause` is the last one's."""

    phase: Literal["starting", "running", "dead", "stopped"]
    since_us: int
    deaths: int = 0
    cause: str | None = None
    next_try_us: int | None = None

    @property
    def is_down(self) -> bool:
        """Whether it has died, and has not looked at its source since."""
        return self.phase == "dead" or (self.phase == "starting" and self.deaths > 0)

    def started(self, now_us: int) -> QueryState:
        """Return the state of a query that has been started, and has not yet looked at its source."""
        since_us = self.since_us if self.deaths else now_us
        return msgspec.structs.replace(self, phase="starting", since_us=since_us, next_try_us=None)

    def looked(self, now_us: int) -> QueryState:
        """Return the state after it has looked at its source; this one where that changes nothing."""
        if self.phase == "starting":
            return msgspec.structs.replace(self, phase="running", since_us=now_us)
        return self

    def died(self, now_us: int, cause: str) -> QueryState:
        """Return the state after its death, with the time of the next try."""
        ran = self.phase == "running"
        deaths = 0 if ran and now_us - self.since_us >= HEALTHY_US else self.deaths
        pause_us = min(PAUSE_MAX_US, PAUSE_FIRST_US << min(deaths, 16))
        since_us = self.since_us if deaths and not ran else now_us
        return QueryState("dead", since_us, deaths + 1, cause, now_us + pause_us)

    def stopped(self, now_us: int) -> QueryState:
        """Return the state after its keeper has stopped it; one that was down stays so."""
        return self if self.is_down else QueryState("stopped", now_us)


def new_query(now_us: int) -> QueryState:
    return QueryState("stopped", now_us)


def ingest_folder(stream: str) -> str:
    """Return the folder of what is kept of a query beside its rows."""
    return f"ingest/{validate_name(stream)}"


def write_query_state(store: Store, stream: str, state: QueryState) -> None:
    """Store the state; it replaces the one before."""
    store.replace(f"{ingest_folder(stream)}/query.json", msgspec.json.encode(state))


def read_query_state(store: Store, stream: str) -> QueryState | None:
    """Return the last state of the query of a stream, None where no query ever fed it."""
    path = f"{ingest_folder(stream)}/query.json"
    try:
        return msgspec.json.decode(bytes(store.read(path)), type=QueryState)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(
            f"{store.url}/{path} cannot be read: {error}. Delete it; the next start of the query writes it anew"
        ) from error
