"""Every error a caller can meet, grouped by what the caller can do about it.

A message says what failed, on which object, what was found and what was expected, and the next step.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """The root of the tree; the command line prints it without a traceback."""


# Retry: the same call may succeed later.
class Retryable(HoldfastError):
    """The same call may succeed later."""


class LogFull(Retryable):
    """A stream holds as many bytes as it may; readers have to catch up before more is taken."""


class StoreUnavailable(Retryable):
    """The store did not take or give bytes: a full disk, a lost connection."""


class StateAbsent(Retryable):
    """A unit's state is not where the work was sent; it has to be rebuilt there first."""


class FileChanged(Retryable):
    """A source's file is not what it was when it was found; it is looked at again."""


class StateBusy(Retryable):
    """Another process works on a unit's state, or a snapshot of it is still being written."""


# Repair: bytes are wrong or gone; a person or a replica has to supply them.
class Repairable(HoldfastError):
    """Stored bytes are not what they should be."""


class SegmentCorrupt(Repairable):
    """A frame before the committed end does not match its checksum."""


class JournalCorrupt(Repairable):
    """A journal record before the last good one does not match its checksum."""


class SnapshotCorrupt(Repairable):
    """A snapshot's page does not match its checksum; an older snapshot and more replay will serve."""


class StoreCorrupt(Repairable):
    """Another file of the store cannot be read as what it should be."""


# Reconfigure: the caller asked for something that cannot be.
class Misconfigured(HoldfastError):
    """What was asked for cannot be done; nothing was touched."""


class SchemaMismatch(Misconfigured):
    """Rows do not have the columns or types that the stream has."""


class UnsupportedQuery(Misconfigured):
    """Spark understands the query; holdfast cannot run this part of it as a stream."""


class SessionUnfit(Misconfigured):
    """The Spark session lacks a setting that waves need."""


class StoreUnfit(Misconfigured):
    """The store cannot do what was asked, or belongs to another pipeline or version."""


class AlreadyExists(Misconfigured):
    """Something of that name is there already."""


class StreamTaken(AlreadyExists):
    """Another living process writes this stream; a stream has one writer."""

    stream: str = ""


class NameInvalid(Misconfigured):
    """A name that becomes a path has characters that it may not have."""


# Report: somebody has to know; going on needs a decision.
class Reportable(HoldfastError):
    """Going on needs somebody's decision."""


class Fenced(Reportable):
    """Another process has taken over what this one was writing; this one must stop."""


class CommitRefused(Reportable):
    """An entry contradicts what is committed (a bucket twice, a boundary that goes back); nothing of it was written."""


class ConsumerExpired(Reportable):
    """A consumer's position is older than the oldest bucket that is kept."""


class UserFunctionFailed(Reportable):
    """A function of the user's raised; the message names the row."""


class BadRow(Reportable):
    """A row cannot be read or computed; the message names it.

    `row` is its number in the batch at hand, where there is one.
    """

    row: int | None = None


class PipelineFailed(Reportable):
    """A pipeline stopped because of an error in it; nothing committed is lost."""
