"""`Consumer`: the rows of a stream in any Python program, bucket by bucket, with a place that is remembered.

Invariants:
    * A bucket is given when it is complete on all shards, and whole; its rows are final.
    * The order is that of the stream (bucket, shard, position). No row is given twice, and none left out, between two
      commits of a place; after a restart rows since the last commit come again.
    * Waiting is for events of the journal's files, never by looking again and again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal

import numpy as np
import pyarrow as pa

from holdfast.config import duration_us
from holdfast.connect.catalog import StreamSide, wait_until_located
from holdfast.connect.lease import LEASE_US, Lease, read_lease, write_lease
from holdfast.connect.reading import ID_TYPE, TIME_TYPE, RangeRows, read_range
from holdfast.errors import ConsumerExpired, Misconfigured, StoreUnavailable
from holdfast.log.segment import read_frame
from holdfast.log.store import validate_name
from holdfast.log.stream_reader import StreamReader
from holdfast.model import END_OF_TIME, FIRST_BUCKET, FrameKind, Published
from holdfast.plan import Source

View = Literal["stable", "latest", "changes"]

ROWS_PER_TABLE = 1 << 20
"""About how many rows a table has at most, where a consumer has a lot to catch up with; a bucket is never cut."""

_RETRIES = 10


class Consumer:
    """Iterates over the complete buckets of a stream; each table is a range of them. For one thread.

    `view` is "stable" (the columns of the stream), "latest" (and `_tentative`) or "changes" (and `_type`, `_time`,
    `_id`). With a `name`, `commit` stores the place, and opening the name again goes on from there; its rows are kept
    for `lease`. `start` is where a consumer without a stored place begins: "earliest", "latest", or a bucket.
    """

    def __init__(
        self,
        store: str,
        stream: str,
        view: View = "stable",
        name: str | None = None,
        start: Literal["earliest", "latest"] | int = "earliest",
        *,
        wait: str = "10 seconds",
        lease: str | None = None,
    ) -> None:
        if view not in ("stable", "latest", "changes"):
            raise Misconfigured(f"view {view!r} is not known; expected 'stable', 'latest' or 'changes'.")
        if not isinstance(start, int) and start not in ("earliest", "latest"):
            raise Misconfigured(f"start {start!r} is not known; expected 'earliest', 'latest' or a bucket.")
        self._view: View = view
        self._name = None if name is None else validate_name(name)
        self._lease_us = LEASE_US if lease is None else duration_us(lease, "lease")
        self._located = wait_until_located(str(store), stream, duration_us(wait, "wait"))
        self._store = self._located.store
        self._stream = self._located.stream
        self._width_us = self._located.topology.bucket_width_us
        declared = self._located.declared
        self._tuple_time = declared.tuple_time if isinstance(declared, Source) else None
        self._reader = StreamReader(self._store, self._stream)
        promisers = declared.filled_by if isinstance(declared, StreamSide) else []
        self._promisers = [StreamReader(self._store, each) for each in promisers]
        self._position: int | None = None
        try:
            self._open(start)
        except BaseException:
            self.close()
            raise

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def schema(self) -> pa.Schema:
        """The columns of the tables, those of the view included."""
        schema = self._located.schema
        if self._view == "latest":
            return schema.append(pa.field("_tentative", pa.bool_(), nullable=False))
        if self._view == "changes":
            for name, kind in (("_type", pa.string()), ("_time", TIME_TYPE), ("_id", ID_TYPE)):
                schema = schema.append(pa.field(name, kind, nullable=False))
        return schema

    @property
    def position(self) -> int:
        """The first bucket that was not given yet."""
        self._poll()
        return self._begin()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended (the pipeline ran with `available_now`) and everything of it was given."""
        self._poll()
        end = self._reader.ledger.ended(self._stream)
        return end is not None and self._complete_to() == end == self._begin()

    def poll(self, timeout_s: float | None = 0.0) -> pa.Table | None:
        """Return the rows of the next complete buckets, None if there are none within `timeout_s` (None: wait).

        Also None as soon as the stream has ended. Raises `ConsumerExpired` where the next bucket is not kept any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._poll()
            table = self._take()
            if table is not None:
                return table
            left_s = 3600.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0 or self.ended:
                return None
            self._wait(left_s)

    def __iter__(self) -> Iterator[pa.Table]:
        """Iterate until the stream ends, waiting for more."""
        while (table := self.poll(None)) is not None:
            yield table

    def commit(self) -> None:
        """Store the place durably: everything given so far is done with. Renews the lease."""
        if self._name is None:
            raise Misconfigured(
                f"a consumer of stream {self._stream!r} without a name has no place to store; give it name=."
            )
        self._poll()
        self._store_place()

    def close(self) -> None:
        """Give the descriptors back; the place stays as it was committed."""
        for reader in (self._reader, *self._promisers):
            reader.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, start: Literal["earliest", "latest"] | int) -> None:
        """Find out where to begin."""
        self._poll()
        stored = None if self._name is None else read_lease(self._store, self._stream, self._name)
        if stored is not None:
            self._position = stored.bucket
        elif isinstance(start, int):
            self._position = start
        elif start == "latest":
            self._position = self._complete_to()
        if self._name is not None and stored is None:
            # From now on retention keeps what this consumer has not seen.
            self._store_place()

    def _store_place(self) -> None:
        assert self._name is not None, "only a named consumer has a place"
        now_us = time.time_ns() // 1000
        lease = Lease(self._stream, self._name, self._begin(), now_us, now_us + self._lease_us, self._view)
        write_lease(self._store, lease)

    def _poll(self) -> None:
        # What promises first, the rows after it: then the rows below a promise are there.
        for reader in self._promisers:
            reader.poll()
        self._reader.poll()

    def _wait(self, timeout_s: float) -> None:
        waited_on = self._promisers or [self._reader]
        slowest = min(waited_on, key=_complete_end)
        slowest.wait(timeout_s)

    def _complete_to(self) -> int:
        """Return the end of the buckets that are complete."""
        return min(_complete_end(reader) for reader in self._promisers or [self._reader])

    def _begin(self) -> int:
        """Return the first bucket to give: until some were, the first one there is."""
        if self._position is not None:
            return self._position
        trimmed_before = self._reader.ledger.trimmed_before(self._stream)
        return FIRST_BUCKET if trimmed_before is None else trimmed_before

    def _take(self) -> pa.Table | None:
        """Return the rows of the next complete buckets, and go on behind them; None if they have none."""
        failures = 0
        while failures < _RETRIES:
            bucket_from = self._begin()
            self._check_kept(bucket_from)
            bucket_to = self._complete_to()
            if bucket_to <= bucket_from:
                return None
            frames = self._frames(bucket_from, bucket_to)
            if not frames:
                self._position = bucket_to
                return None
            bucket_to = _limited(frames, bucket_to)
            try:
                rows = self._read(frames, bucket_from, bucket_to)
            except (FileNotFoundError, StoreUnavailable):
                # Retention has moved or dropped a segment since we looked: the journal says which.
                self._poll()
                failures += 1
                continue
            self._position = bucket_to
            if rows.table.num_rows:
                return self._viewed(rows)
        raise StoreUnavailable(
            f"stream {self._stream!r}: buckets from {self._begin()} on cannot be read, though the journal names them. "
            "Run `holdfast log verify` to see which files are missing."
        )

    def _frames(self, bucket_from: int, bucket_to: int) -> list[Published]:
        return self._reader.ledger.frames(self._stream, bucket_from, bucket_to, (FrameKind.DATA,))

    def _read(self, frames: Sequence[Published], bucket_from: int, bucket_to: int) -> RangeRows:
        schema = self._located.schema
        chosen = [frame for frame in frames if frame.bucket_start < bucket_to]
        return read_range(
            chosen,
            lambda frame: read_frame(self._store, frame.frame, schema),
            schema,
            bucket_from,
            bucket_to,
            self._width_us,
            self._tuple_time,
        )

    def _check_kept(self, bucket_from: int) -> None:
        first = self._reader.ledger.trimmed_before(self._stream)
        if first is None or bucket_from >= first:
            return
        who = "a consumer" if self._name is None else f"consumer {self._name!r}"
        raise ConsumerExpired(
            f"{who} of stream {self._stream!r} is at bucket {bucket_from}, and the first bucket kept is {first}. "
            f"The rows between are gone; begin anew with start={first} (and another name), or start='earliest'."
        )

    def _viewed(self, rows: RangeRows) -> pa.Table:
        """Return the rows with the columns of the view."""
        table, count = rows.table, rows.table.num_rows
        columns = list(table.columns)
        if self._view == "latest":
            columns.append(pa.array(np.zeros(count, bool)))
        elif self._view == "changes":
            columns.append(pa.repeat(pa.scalar("STABLE"), count))
            columns.append(pa.array(rows.times_us).cast(TIME_TYPE))
            parts = [pa.array(rows.buckets), pa.array(rows.shards.astype(np.int32)), pa.array(rows.positions())]
            columns.append(pa.StructArray.from_arrays(parts, fields=list(ID_TYPE)))
        return pa.Table.from_arrays(columns, schema=self.schema)


def _complete_end(reader: StreamReader) -> int:
    """Return the end of the buckets of a stream that are complete; that of a stage is where its last unit is.

    Unlike the stream's boundary this is a bucket even when the stage has ended: a later run may go on behind it.
    """
    ledger = reader.ledger
    units = ledger.units(reader.stream)
    if units:
        return min(unit.bucket_end for unit in units.values()) if len(units) >= ledger.shards else FIRST_BUCKET
    boundary_us = ledger.boundary_us(reader.stream)
    if boundary_us >= END_OF_TIME:
        return max((frame.bucket_end for frame in ledger.all_frames(reader.stream)), default=FIRST_BUCKET)
    end = ledger.stream_bucket_end(reader.stream)
    return FIRST_BUCKET if end is None else end


def _limited(frames: Sequence[Published], bucket_to: int) -> int:
    """Return the end of a range of whole buckets that has about `ROWS_PER_TABLE` rows, or one bucket."""
    rows, end = 0, bucket_to
    for frame in sorted(frames, key=lambda frame: frame.bucket_end):
        if rows and rows + frame.rows > ROWS_PER_TABLE:
            return min(bucket_to, end)
        end = frame.bucket_end
        rows += frame.rows
    return bucket_to
