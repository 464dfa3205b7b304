"""One frame: a header, an Arrow payload, a checksum over both, and the length again at the end.

    preamble (32 bytes) | header (MessagePack) | padding | payload | padding | trailer (16 bytes)

The payload is one Arrow IPC record-batch message without its schema: the stream's schema is in `pipeline.json`, its
checksum in the header.

Invariants:
    * A frame's length is a multiple of 64 and its payload begins at one, so that Arrow reads it in place.
    * The header's checksum covers the payload's checksum. So a reader that wants the header alone can trust it, and
      two frames with the same header checksum hold the same bytes.
    * The trailer repeats the length, so that a segment can be walked backwards.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c
import msgspec
import pyarrow as pa

from holdfast.errors import SchemaMismatch, StoreUnfit
from holdfast.log.widening import widened
from holdfast.model import FORMAT_VERSION, MANY_SHARDS, NO_WATERMARK, NOT_DECODED, FrameRef
from holdfast.ports import Buffer

ALIGNMENT: Final = 64

_MAGIC: Final = b"HFfr"
_MAGIC_END: Final = b"rfFH"
# Magic, version, kind, flags, header length, payload checksum, payload length, reserved; then the header's checksum.
_FIELDS: Final = struct.Struct("<4sBBHIIQI")
_CHECKSUM: Final = struct.Struct("<I")
_TRAILER: Final = struct.Struct("<QI4s")
PREAMBLE_BYTES: Final = _FIELDS.size + _CHECKSUM.size
TRAILER_BYTES: Final = _TRAILER.size
_ZEROS: Final = bytes(ALIGNMENT)


class FrameHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a frame holds, and where its unit's frame before it is.

    `shard` may be `MANY_SHARDS`; then the rows are in shard order and `shard_row_ends` says where each shard's end.
    Where rows of several buckets are in one frame, `bucket_table` has (bucket, highest event time) for each bucket with
    rows and `bucket_row_ends`, if given, where its rows end (frames of one shard only). Of a stage's windows that event
    time may be ahead of the rows': nothing behind the bucket is below it. Where the rows of each bucket are in the
    order of the shards that the hash of the columns `destination_by` sends them to, `destination_ends` has the row ends
    of each bucket's shards, bucket by bucket, as little-endian words of 32 bits. `open_windows` counts, per operator,
    the windows that are open at the end of `bucket_end - 1` (CEC, section 6). `rows` and `schema_crc` are filled in by
    `encode`.
    """

    kind: int
    stream: str
    shard: int
    generation: int
    bucket_start: int
    bucket_end: int
    rows: int = 0
    open_windows: dict[str, int] = {}
    previous: FrameRef | None = None
    shard_row_ends: list[int] = []
    bucket_table: list[tuple[int, int]] = []
    event_time_max_us: int = NO_WATERMARK
    schema_crc: int = 0
    bucket_row_ends: list[int] = []
    destination_by: list[str] = []
    destination_ends: bytes = b""


class EncodedFrame(msgspec.Struct, frozen=True):
    """A frame's bytes, still in pieces, for one gathering write."""

    header: FrameHeader
    buffers: list[Buffer]
    length: int
    crc: int


class FrameFault(Exception):
    """Bytes are not a frame. Whoever knows the segment and the stream turns this into `SegmentCorrupt`."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrameHeader)


def checksum(data: Buffer | pa.Buffer, before: int = 0) -> int:
    """Return the CRC32C of `data`, going on from that of the bytes before it."""
    # Arrow's buffer is the read-only wrapper that the checksum library takes without a copy.
    wrapped = data if isinstance(data, bytes | pa.Buffer) else pa.py_buffer(data)
    return int(google_crc32c.extend(before, wrapped))


def schema_crc(schema: pa.Schema) -> int:
    """Return the checksum of a schema as it is stored."""
    return checksum(schema.serialize())


def aligned(length: int) -> int:
    """Return `length` rounded up to the alignment of frames."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def encode(header: FrameHeader, batch: pa.RecordBatch | None) -> EncodedFrame:
    """Return the bytes of a frame; `rows` and `schema_crc` of the header become those of `batch`."""
    if batch is None:
        payload, rows, crc_of_schema = pa.py_buffer(b""), 0, 0
    else:
        _check_plain(batch.schema)
        payload, rows, crc_of_schema = batch.serialize(), batch.num_rows, schema_crc(batch.schema)
    if header.rows != rows or header.schema_crc != crc_of_schema:
        header = msgspec.structs.replace(header, rows=rows, schema_crc=crc_of_schema)
    assert not header.shard_row_ends or header.shard_row_ends[-1] == rows, "the last shard ends with the last row"
    assert header.shard != MANY_SHARDS or header.shard_row_ends or not rows, "rows of many shards need their ends"
    encoded = _encoder.encode(header)
    # Checksum, kind and lengths first, then the header: what a reader verifies before it believes any of them.
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, header.kind, 0, len(encoded), checksum(payload), payload.size, 0)
    crc = checksum(encoded, checksum(fields))
    payload_start = aligned(PREAMBLE_BYTES + len(encoded))
    length = aligned(payload_start + payload.size + TRAILER_BYTES)
    head = b"".join((fields, _CHECKSUM.pack(crc), encoded, _ZEROS[: payload_start - PREAMBLE_BYTES - len(encoded)]))
    padding = _ZEROS[: length - payload_start - payload.size - TRAILER_BYTES]
    tail = padding + _TRAILER.pack(length, crc, _MAGIC_END)
    return EncodedFrame(header, [head, memoryview(payload), tail], length, crc)


class FrameView(msgspec.Struct, frozen=True):
    """A frame in the bytes of a mapped segment: its trusted header, and its payload, not yet looked at."""

    header: FrameHeader
    payload: memoryview
    payload_crc: int
    length: int
    crc: int

    def verify(self, data: memoryview) -> None:
        """Raise `FrameFault` where payload or trailer, in the bytes this view was made of, are not as committed."""
        found = checksum(self.payload)
        if found != self.payload_crc:
            raise FrameFault(
                f"payload checksum {self.payload_crc:08x}", f"{found:08x} over {self.payload.nbytes} bytes"
            )
        length, crc, magic = _TRAILER.unpack_from(data, self.length - TRAILER_BYTES)
        if (length, crc, magic) != (self.length, self.crc, _MAGIC_END):
            raise FrameFault(f"a trailer with length {self.length}, checksum {self.crc:08x}", f"{length} and {crc:08x}")

    def batch(self, schema: pa.Schema, others: Sequence[pa.Schema] = ()) -> pa.RecordBatch:
        """Return the rows; their columns are views of the segment.

        They may have been written with one of `others`, the schemas that the stream had at other times: then they are
        brought to `schema`. `FrameFault` where the payload does not hold them.
        """
        crc = self.header.schema_crc
        written = next((each for each in (schema, *others) if schema_crc(each) == crc), None)
        if written is None:
            raise SchemaMismatch(
                f"a frame of stream {self.header.stream!r} was written with schema {self.header.schema_crc:08x}, "
                "expected "
                f"{schema_crc(schema):08x} ({', '.join(schema.names)}); read it with the schema in pipeline.json"
            )
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(self.payload), written)
        except (pa.ArrowException, OSError) as error:
            raise FrameFault("rows in Arrow's format", str(error)) from error
        if batch.num_rows != self.header.rows:
            raise FrameFault(f"{self.header.rows} rows, as its header says", f"{batch.num_rows}")
        return batch if written is schema else widened(batch, schema)


def decode_header(data: memoryview) -> FrameView:
    """Return the frame at the beginning of `data`, its header verified, its payload not."""
    if data.nbytes < PREAMBLE_BYTES:
        raise FrameFault(f"a preamble of {PREAMBLE_BYTES} bytes", f"{data.nbytes} bytes")
    magic, version, _, _, header_length, payload_crc, payload_length, _ = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise FrameFault(f"the magic {_MAGIC!r}", repr(magic))
    payload_start = aligned(PREAMBLE_BYTES + header_length)
    length = aligned(payload_start + payload_length + TRAILER_BYTES)
    if length > data.nbytes:
        raise FrameFault(f"a frame of {length} bytes", f"{data.nbytes} bytes to the end")
    encoded = data[PREAMBLE_BYTES : PREAMBLE_BYTES + header_length]
    (crc,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    found = checksum(encoded, checksum(data[: _FIELDS.size]))
    if found != crc:
        raise FrameFault(f"header checksum {crc:08x}", f"{found:08x}")
    if version > FORMAT_VERSION:
        raise StoreUnfit(
            f"a frame has format version {version}, this holdfast reads up to {FORMAT_VERSION}: use a newer holdfast"
        )
    try:
        header = _decoder.decode(encoded)
    except NOT_DECODED as error:
        raise FrameFault("a frame header", str(error)) from error
    return FrameView(header, data[payload_start : payload_start + payload_length], payload_crc, length, crc)


def decode(data: memoryview) -> FrameView:
    """Return the frame at the beginning of `data`, header, payload and trailer verified."""
    view = decode_header(data)
    view.verify(data)
    return view


def frame_length_before(data: memoryview) -> int:
    """Return the length of the frame that ends where `data` ends."""
    if data.nbytes < TRAILER_BYTES:
        raise FrameFault(f"a trailer of {TRAILER_BYTES} bytes", f"{data.nbytes} bytes")
    length, _, magic = _TRAILER.unpack_from(data, data.nbytes - TRAILER_BYTES)
    if magic != _MAGIC_END or length > data.nbytes or length % ALIGNMENT:
        raise FrameFault("a trailer", f"magic {magic!r}, length {length} in {data.nbytes} bytes")
    return int(length)


def _check_plain(schema: pa.Schema) -> None:
    """Refuse dictionary columns: their values are in messages of their own."""
    for field in schema:
        if pa.types.is_dictionary(field.type):
            raise SchemaMismatch(
                f"column {field.name!r} is dictionary-encoded ({field.type}), which a stream does not keep: "
                f"cast it to {field.type.value_type}"
            )
