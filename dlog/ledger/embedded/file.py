"""The data file of one ledger, byte for byte: a file header, then frames, each 8-byte aligned.

A frame is 64 bytes of header, the payload and zeros up to the next multiple of eight, so that a
payload read at its place in the file is aligned for whoever reads columns in it. Its header CRC is
taken over the header *and* the file's uid *and* the offset the frame stands at: a frame of another
ledger, of an earlier file, or copied to another place is not a frame here. `docs/formats` has the
table. This module is pure: bytes in, values out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from dlog.errors import Corrupt, FormatError
from dlog.ledger.store import Buffer
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.wire.crc32c import crc32c

FILE_MAGIC = b"DLOGLEDG"
FILE_VERSION = 1
FILE_HEADER_BYTES = 64
FRAME_MAGIC = b"\xd1ogf"
FRAME_HEADER_BYTES = 64
FRAME_BYTES_MAX = FRAME_HEADER_BYTES + LEDGER_ENTRY_BYTES_MAX + 8
UID_BYTES = 16
OFFSET_END = 1 << 62  # no file is as long, and an offset with a size behind it is still one

_FILE = struct.Struct(
    "<8sI4xq16sQ12x"
)  # magic, version, ledger id, uid, created (us); then the CRC
_FILE_CRC = struct.Struct("<I")
_LEAD = struct.Struct("<4sI")  # magic, header CRC
# payload bytes, payload CRC, ledger id, entry id, last confirmed, bytes before, previous, jump
_BODY = struct.Struct("<IIqqqQQQ")
_PLACE = struct.Struct("<Q")  # the frame's own offset: covered by the header CRC, not stored
_HEADER = struct.Struct("<4sIIIqqqQQQ")

assert _FILE.size + _FILE_CRC.size == FILE_HEADER_BYTES
assert _HEADER.size == _LEAD.size + _BODY.size == FRAME_HEADER_BYTES

_PADDING = tuple(bytes(count) for count in range(8))
_LEVELS = 64


class Frame(NamedTuple):
    offset: int
    payload_bytes: int
    payload_crc: int
    entry_id: int
    last_confirmed: int  # of its appender, when the entry was submitted
    bytes_before: int  # payload bytes of all entries before this one
    previous_offset: int  # of entry n - 1; 0 in entry 0
    jump_offset: int  # of entry n & (n - 1); 0 in entry 0

    @property
    def payload_offset(self) -> int:
        return self.offset + FRAME_HEADER_BYTES

    @property
    def padded_bytes(self) -> int:
        return self.payload_bytes + (-self.payload_bytes & 7)

    @property
    def end_offset(self) -> int:
        return self.offset + FRAME_HEADER_BYTES + self.padded_bytes

    @property
    def bytes_through(self) -> int:
        return self.bytes_before + self.payload_bytes


def salt_of(uid: bytes) -> int:
    """What ties every frame of a file to that file: the start value of its header CRCs."""
    return crc32c(uid)


def encode_file_header(ledger_id: int, uid: bytes, created_us: int) -> bytes:
    head = _FILE.pack(FILE_MAGIC, FILE_VERSION, ledger_id, uid, created_us)
    return head + _FILE_CRC.pack(crc32c(head))


def check_file_header(raw: Buffer, ledger_id: int, uid: bytes, path: str) -> None:
    """Refuses a file that is not this ledger's, or is from a version to come."""
    if len(raw) < FILE_HEADER_BYTES or raw[:8] != FILE_MAGIC:
        raise Corrupt(f"{path} is no ledger file", path=path, offset=0, ledger_id=ledger_id)
    head = bytes(raw[: _FILE.size])
    (crc,) = _FILE_CRC.unpack_from(raw, _FILE.size)
    if crc != crc32c(head):
        raise Corrupt(f"the header of {path} is damaged", path=path, offset=0, ledger_id=ledger_id)
    _, version, found_id, found_uid, _ = _FILE.unpack(head)
    if version > FILE_VERSION or version < 1:
        raise FormatError(
            f"{path} has format version {version}; this release reads up to {FILE_VERSION}",
            path=path,
        )
    if found_id != ledger_id or found_uid != uid:
        raise Corrupt(
            f"{path} holds ledger {found_id} with another uid, not ledger {ledger_id}",
            path=path,
            offset=0,
            ledger_id=ledger_id,
        )


def parse_frame(raw: Buffer, at: int, offset: int, ledger_id: int, salt: int) -> Frame | None:
    """The frame whose header stands at `raw[at:]` and in the file at `offset`; None if there is
    none."""
    body_at = at + _LEAD.size
    if len(raw) < at + FRAME_HEADER_BYTES:
        return None
    magic, crc, size, payload_crc, found_id, entry_id, last_confirmed, before, previous, jump = (
        _HEADER.unpack_from(raw, at)
    )
    if magic != FRAME_MAGIC or found_id != ledger_id or size > LEDGER_ENTRY_BYTES_MAX:
        return None
    covered = bytes(raw[body_at : body_at + _BODY.size]) + _PLACE.pack(offset)
    if crc != crc32c(covered, salt) or not -1 <= last_confirmed < entry_id:
        return None
    return Frame(offset, size, payload_crc, entry_id, last_confirmed, before, previous, jump)


def payload_is_whole(frame: Frame, raw: memoryview, at: int) -> bool:
    """`raw[at:]` begins with the frame's payload. Its CRC covers the padding too, so that every bit
    of the file is covered."""
    end = at + frame.padded_bytes
    return len(raw) >= end and crc32c(raw[at:end]) == frame.payload_crc


class FrameWriter:
    """Turns entries into frames, one after the other, and knows where each will stand."""

    def __init__(self, ledger_id: int, uid: bytes) -> None:
        self._ledger_id = ledger_id
        self._salt = salt_of(uid)
        self._next_entry = 0
        self._bytes_before = 0
        self._last_offset = 0
        # [t]: offset of the newest frame whose entry id is a multiple of 2**t. The jump of entry n
        # with z trailing zeros goes to n - 2**z, the newest multiple of 2**(z + 1).
        self._newest = [0] * (_LEVELS + 1)
        self.next_offset = FILE_HEADER_BYTES

    @property
    def last_offset(self) -> int:
        """Where the newest frame begins; 0 when there is none."""
        return self._last_offset

    @property
    def bytes_total(self) -> int:
        return self._bytes_before

    def add(self, buffers: Sequence[Buffer], size: int, last_confirmed: int) -> list[Buffer]:
        """The next frame as buffers to write: the payload itself is not copied."""
        entry_id, offset = self._next_entry, self.next_offset
        padding = _PADDING[-size & 7]
        crc = 0
        for buffer in buffers:
            crc = crc32c(buffer, crc)
        crc = crc32c(padding, crc)
        zeros = (entry_id & -entry_id).bit_length() - 1 if entry_id > 0 else _LEVELS
        jump = self._newest[zeros + 1] if entry_id > 0 else 0
        body = _BODY.pack(
            size,
            crc,
            self._ledger_id,
            entry_id,
            last_confirmed,
            self._bytes_before,
            self._last_offset,
            jump,
        )
        lead = _LEAD.pack(FRAME_MAGIC, crc32c(body + _PLACE.pack(offset), self._salt))
        for level in range(zeros + 1):
            self._newest[level] = offset
        self._next_entry = entry_id + 1
        self._bytes_before += size
        self._last_offset = offset
        self.next_offset = offset + FRAME_HEADER_BYTES + size + len(padding)
        return [lead + body, *buffers, padding] if padding else [lead + body, *buffers]
