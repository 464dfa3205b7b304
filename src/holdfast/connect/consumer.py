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

import pyarrow as pa

from holdfast.config import duration_us
from holdfast.connect.catalog import wait_until_located
from holdfast.connect.following import Following, range_end
from holdfast.connect.lease import LEASE_US, Lease, read_lease, write_lease
from holdfast.connect.reading import RangeRows, read_range
from holdfast.connect.views import View, check_view, view_schema, viewed
from holdfast.errors import Misconfigured, SchemaMismatch, StoreUnavailable
from holdfast.log.segment import read_frame
from holdfast.log.store import validate_name
from holdfast.model import Published

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
        check_view(view)
        if type(start) is not int and start not in ("earliest", "latest"):
            raise Misconfigured(f"start {start!r} is not known; expected 'earliest', 'latest' or a bucket.")
        self._view: View = view
        self._name = None if name is None else validate_name(name)
        self._lease_us = LEASE_US if lease is None else duration_us(lease, "lease")
        self._located = wait_until_located(store, stream, duration_us(wait, "wait"))
        self._store = self._located.store
        self._stream = self._located.stream
        self._width_us = self._located.topology.bucket_width_us
        self._following = Following(self._located)
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
        return view_schema(self._located.schema, self._view)

    @property
    def position(self) -> int:
        """The first bucket that was not given yet."""
        self._following.poll()
        return self._begin()

    @property
    def ended(self) -> bool:
        """Whether the stream has ended (the pipeline ran with `available_now`) and everything of it was given."""
        self._following.poll()
        end = self._following.ended_at
        return end is not None and self._following.complete_to == end == self._begin()

    def poll(self, timeout_s: float | None = 0.0) -> pa.Table | None:
        """Return the rows of the next complete buckets, None if there are none within `timeout_s` (None: wait).

        Also None as soon as the stream has ended. Raises `ConsumerExpired` where the next bucket is not kept any more.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._following.poll()
            table = self._take()
            if table is not None:
                return table
            left_s = 3600.0 if deadline is None else deadline - time.monotonic()
            if left_s <= 0 or self.ended:
                return None
            self._following.wait(left_s)

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
        self._following.poll()
        self._store_place()

    def close(self) -> None:
        """Give the descriptors back; the place stays as it was committed."""
        self._following.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, start: Literal["earliest", "latest"] | int) -> None:
        """Find out where to begin."""
        self._following.poll()
        stored = None if self._name is None else read_lease(self._store, self._stream, self._name)
        if stored is not None:
            self._position = stored.bucket
        elif isinstance(start, int):
            self._position = start
        elif start == "latest":
            self._position = self._following.complete_to
        if self._name is not None and stored is None:
            # From now on retention keeps what this consumer has not seen.
            self._store_place()

    def _store_place(self) -> None:
        assert self._name is not None, "only a named consumer has a place"
        now_us = time.time_ns() // 1000
        lease = Lease(self._stream, self._name, self._begin(), now_us, now_us + self._lease_us, self._view)
        write_lease(self._store, lease)

    def _begin(self) -> int:
        """Return the first bucket to give: until some were, the first one there is."""
        if self._position is not None:
            return self._position
        return self._following.kept_from

    def _take(self) -> pa.Table | None:
        """Return the rows of the next complete buckets, and go on behind them; None if they have none."""
        failures = 0
        while failures < _RETRIES:
            bucket_from = self._begin()
            self._following.check_kept(bucket_from, self._text())
            bucket_to = self._following.complete_to
            if bucket_to <= bucket_from:
                return None
            frames = self._following.frames(bucket_from, bucket_to)
            if not frames:
                self._position = bucket_to
                return None
            bucket_to = range_end(frames, bucket_to, ROWS_PER_TABLE)
            try:
                rows = self._read(frames, bucket_from, bucket_to)
            except SchemaMismatch:
                # The source has got columns; this consumer goes on with those that it began with.
                if not self._following.learn_schemas():
                    raise
                continue
            except (FileNotFoundError, StoreUnavailable):
                # Retention has moved or dropped a segment since we looked: the journal says which.
                self._following.poll()
                failures += 1
                continue
            self._position = bucket_to
            if rows.table.num_rows:
                return viewed(rows, self._located.schema, self._view)
        raise StoreUnavailable(
            f"stream {self._stream!r}: buckets from {self._begin()} on cannot be read, though the journal names them. "
            "Run `holdfast log verify` to see which files are missing."
        )

    def _read(self, frames: Sequence[Published], bucket_from: int, bucket_to: int) -> RangeRows:
        schema = self._located.schema
        chosen = [frame for frame in frames if frame.bucket_start < bucket_to]
        return read_range(
            chosen,
            lambda frame: read_frame(self._store, frame.frame, schema, others=self._following.others),
            schema,
            bucket_from,
            bucket_to,
            self._width_us,
            self._following.tuple_time,
        )

    def _text(self) -> str:
        return "a consumer" if self._name is None else f"consumer {self._name!r}"
