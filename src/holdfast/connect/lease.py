"""A named consumer's place in a stream, as a file that retention reads.

    consumers/<stream>/<name>.json

Invariants:
    * The file is replaced whole and durably: a place that was committed is there after a crash.
    * Buckets from `bucket` on are kept until `expires_at_us`; a lease that ran out holds nothing.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import StoreCorrupt
from holdfast.log.store import validate_name
from holdfast.ports import Store

CONSUMERS = "consumers"
LEASE_US = 7 * 86_400_000_000


class Lease(msgspec.Struct, frozen=True):
    """`bucket` is the first one that the consumer has not finished with."""

    stream: str
    name: str
    bucket: int
    committed_at_us: int
    expires_at_us: int
    view: str = "stable"

    def holds(self, now_us: int) -> bool:
        """Tell whether retention has to keep the buckets from `bucket` on."""
        return now_us < self.expires_at_us


def lease_path(stream: str, name: str) -> str:
    return f"{CONSUMERS}/{validate_name(stream)}/{validate_name(name)}.json"


def write_lease(store: Store, lease: Lease) -> None:
    """Store a lease durably; it replaces the one of the same name."""
    store.replace(lease_path(lease.stream, lease.name), msgspec.json.encode(lease))


def read_lease(store: Store, stream: str, name: str) -> Lease | None:
    """Return the lease of a name, None if it has none."""
    path = lease_path(stream, name)
    try:
        return msgspec.json.decode(bytes(store.read(path)), type=Lease)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(
            f"{store.url}/{path} cannot be read: {error}. Delete it; the consumer then starts as a new one."
        ) from error


def leases(store: Store, stream: str) -> list[Lease]:
    """Return the leases of all named consumers of a stream, by name."""
    names = [name.removesuffix(".json") for name in store.list(f"{CONSUMERS}/{validate_name(stream)}")]
    found = [read_lease(store, stream, name) for name in names]
    return [lease for lease in found if lease is not None]
