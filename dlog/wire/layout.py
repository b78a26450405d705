"""The entry layout, version 1: the header, its attribute bits, and how large an entry can get.

One layout serves one message and 65,536. A fixed header is followed by columns, each beginning at a
multiple of eight bytes from the start of the entry, with 32-bit offsets as Arrow's binary arrays
have them: an uncompressed entry is a set of Arrow buffers. `docs/FORMATS.md` explains every byte;
this module is where its numbers come from. Everything is little-endian.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from dlog.errors import Corrupt, FormatError, Unsupported
from dlog.limits import ENTRY_MESSAGES_MAX, LEDGER_ENTRY_BYTES_MAX
from dlog.wire import Buffer
from dlog.wire.compress import Codec
from dlog.wire.control import ControlKind

MAGIC: Final = 0xD1  # "dlog entry", version 1: another version takes another byte

# The two attribute bytes, read as one 16-bit number.
CODEC_MASK: Final = 0b11
CONTROL: Final = 1 << 2
HAS_KEYS: Final = 1 << 3
HAS_HEADERS: Final = 1 << 4
HAS_TIMESTAMPS: Final = 1 << 5
HAS_EVENT_TIMES: Final = 1 << 6
HAS_TOMBSTONES: Final = 1 << 7
HAS_PRODUCER: Final = 1 << 8
CHUNK: Final = 1 << 9  # reserved, not built
ENCRYPTED: Final = 1 << 10  # reserved, not built
MAY_IGNORE: Final = 0b11 << 14  # what these announce stands after the known columns

_RESERVED = {CHUNK: "chunked", ENCRYPTED: "encrypted"}
_KNOWN = HAS_PRODUCER * 2 - 1 | MAY_IGNORE
_NOT_IN_CONTROL = _KNOWN & ~CONTROL & ~MAY_IGNORE

# magic, attributes, header bytes, count, first seq, base timestamp, stored and raw body bytes,
# last timestamp
HEADER: Final = Struct("<BHBIqqIIq")
FIRST_SEQ: Final = Struct("<q")  # alone: what an entry says of its place
FIRST_SEQ_AT: Final = 8
TIME: Final = Struct("<q")
BASE_TIMESTAMP_AT: Final = 16
LAST_TIMESTAMP_AT: Final = 32
PRODUCER: Final = Struct("<qq")  # producer id, number of the first message
CONTROL_HEAD: Final = Struct("<II")  # kind, bytes of the body
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES % 8 == 0
assert PRODUCER.size % 8 == 0
assert CONTROL_HEAD.size % 8 == 0

SEQ_END: Final = 1 << 63
_CODECS: tuple[Codec | None, ...] = (Codec.NONE, Codec.LZ4, Codec.ZSTD, None)
_CONTROL_KINDS = {int(kind): kind for kind in ControlKind}

# The exact worst case, reached when every optional column is there. Per message: two times (16),
# offsets of value, key and header list (12), three validity bits, rounded up.
ENTRY_OVERHEAD_BYTES_MAX: Final = (
    HEADER_BYTES
    + PRODUCER.size
    + 5 * 4  # each of the five offset columns has one more offset than items
    + 12 * 8  # twelve columns that may need padding; bitmaps round up to a byte before
)
MESSAGE_OVERHEAD_BYTES_MAX: Final = 29
HEADER_PAIR_OVERHEAD_BYTES_MAX: Final = 8
MESSAGE_BYTES_MAX: Final = (
    LEDGER_ENTRY_BYTES_MAX - ENTRY_OVERHEAD_BYTES_MAX - MESSAGE_OVERHEAD_BYTES_MAX
)


def encoded_bytes_max(*, messages: int, payload_bytes: int, header_pairs: int = 0) -> int:
    """No entry of so many messages is longer, compressed or not. `payload_bytes` counts values,
    keys, header names (as UTF-8) and header values."""
    return (
        ENTRY_OVERHEAD_BYTES_MAX
        + messages * MESSAGE_OVERHEAD_BYTES_MAX
        + header_pairs * HEADER_PAIR_OVERHEAD_BYTES_MAX
        + payload_bytes
    )


class Header:
    """The first bytes of an entry, checked. `first_seq` is relative to the segment; timestamps are
    those of the first and the last message."""

    __slots__ = (
        "attributes",
        "base_timestamp_us",
        "codec",
        "control",
        "count",
        "first_seq",
        "header_bytes",
        "last_timestamp_us",
        "producer",
        "raw_bytes",
        "stored_bytes",
    )

    attributes: int
    base_timestamp_us: int
    codec: Codec
    control: ControlKind | None
    count: int
    first_seq: int
    header_bytes: int
    last_timestamp_us: int
    producer: tuple[int, int] | None
    raw_bytes: int
    stored_bytes: int

    def __init__(self, buffer: Buffer, where: str) -> None:
        try:
            (
                magic,
                attributes,
                header_bytes,
                self.count,
                self.first_seq,
                self.base_timestamp_us,
                self.stored_bytes,
                self.raw_bytes,
                self.last_timestamp_us,
            ) = HEADER.unpack_from(buffer)
        except error:
            raise _cut(buffer, where) from None
        if magic != MAGIC:
            raise _foreign(magic, where)
        if attributes & ~_KNOWN:
            raise _not_understood(attributes, where)
        codec = _CODECS[attributes & CODEC_MASK]
        if codec is None:
            raise FormatError(f"{where}: unknown codec {attributes & CODEC_MASK}")
        self.codec = codec
        self.attributes = attributes
        self.header_bytes = header_bytes
        if (
            header_bytes + self.stored_bytes != len(buffer)
            or self.raw_bytes > LEDGER_ENTRY_BYTES_MAX
            or (codec == 0 and self.raw_bytes != self.stored_bytes)
            or not 0 <= self.first_seq < SEQ_END - self.count
            or self.last_timestamp_us < self.base_timestamp_us
        ):
            raise self._lies(buffer, where)
        if not attributes & HAS_PRODUCER:
            self.producer = None
            if header_bytes != HEADER_BYTES:
                raise self._lies(buffer, where)
        else:
            if header_bytes != HEADER_BYTES + PRODUCER.size:
                raise self._lies(buffer, where)
            producer_id, first_number = PRODUCER.unpack_from(buffer, HEADER_BYTES)
            if producer_id < 0 or not 0 <= first_number < SEQ_END - self.count:
                raise self._lies(buffer, where)
            self.producer = (producer_id, first_number)
        if attributes & CONTROL:
            self.control = self._control_kind(buffer, where)
        else:
            self.control = None
            if not 0 < self.count <= ENTRY_MESSAGES_MAX:
                raise self._lies(buffer, where)

    def _control_kind(self, buffer: Buffer, where: str) -> ControlKind:
        if (
            self.count != 0
            or self.attributes & _NOT_IN_CONTROL
            or self.raw_bytes < CONTROL_HEAD.size
        ):
            raise self._lies(buffer, where)
        number, _ = CONTROL_HEAD.unpack_from(buffer, HEADER_BYTES)
        kind = _CONTROL_KINDS.get(number)
        if kind is None:
            raise FormatError(f"{where}: unknown kind {number} of control entry")
        return kind

    def _lies(self, buffer: Buffer, where: str) -> Corrupt:
        return Corrupt(
            f"{where}: an entry of {len(buffer)} bytes has a header that cannot be: attributes "
            f"{self.attributes:#06x}, {self.header_bytes} header bytes, {self.count} messages, "
            f"first seq {self.first_seq}, times {self.base_timestamp_us} to "
            f"{self.last_timestamp_us}, {self.stored_bytes} bytes stored of {self.raw_bytes}"
        )

    @property
    def next_seq(self) -> int:
        """Relative to the segment, as `first_seq`."""
        return self.first_seq + self.count


def decode_header(buffer: Buffer, *, where: str) -> Header:
    """Count, seqs and times of an entry, without touching its columns: for a seek."""
    return Header(buffer, where)


def _cut(buffer: Buffer, where: str) -> Corrupt | FormatError:
    if len(buffer) and buffer[0] != MAGIC:
        return _foreign(buffer[0], where)
    return Corrupt(f"{where}: {len(buffer)} bytes are no entry, its header alone is {HEADER_BYTES}")


def _foreign(magic: int, where: str) -> FormatError:
    return FormatError(f"{where}: starts with {magic:#04x}, an entry starts with {MAGIC:#04x}")


def _not_understood(attributes: int, where: str) -> FormatError | Unsupported:
    for bit, name in _RESERVED.items():
        if attributes & bit:
            return Unsupported(f"{where}: a {name} entry (bit {bit.bit_length() - 1})")
    strange = attributes & ~_KNOWN
    bits = ", ".join(str(bit) for bit in range(16) if strange >> bit & 1)
    return FormatError(f"{where}: unknown attribute bit {bits}, which must be understood")
