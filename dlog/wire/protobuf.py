"""As much of proto2 as bookies and their metadata need: a reader that believes nothing, a writer.

A message is read in two steps. `Message(raw, fields)` walks over it once, checks every tag, length
and number, and sorts the values by field; what is not in `fields` is kept as the bytes it came in,
so that a rewrite can put it back. Then each field is asked for by number, with its type and range.

It is stricter than protobuf where protobuf guesses: a known field of another wire type, a number
beyond its type, a missing required field and text that is not UTF-8 are `Corrupt`. It agrees where
senders may differ: fields come in any order, a singular field that is repeated takes its last value
(a message: all of them merged), varints may be longer than need be, up to ten bytes. Groups, which
nobody here sends, are stepped over as unknown fields are, to a bounded depth.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Final

from dlog.errors import Corrupt, FormatError, check
from dlog.wire import Buffer

VARINT_BYTES_MAX: Final = 10
NESTING_MAX: Final = 16  # messages in messages and groups in groups; three is the most in use
FIELDS_MAX: Final = 1 << 16  # of one message
_FIELD_NUMBER_END = 1 << 29
_UINT64_END = 1 << 64
_INT64_END = 1 << 63
_INT32_END = 1 << 31


class WireType(enum.IntEnum):
    VARINT = 0
    FIXED64 = 1
    BYTES = 2  # strings and messages, too
    GROUP = 3
    END_GROUP = 4
    FIXED32 = 5


class Kind(enum.Enum):
    """How a known field stands on the wire. Fixed widths are not in use here."""

    NUMBER = WireType.VARINT
    BYTES = WireType.BYTES


NUMBER, BYTES = Kind.NUMBER, Kind.BYTES
Fields = Mapping[int, Kind]


def read_varint(view: memoryview, at: int, where: str) -> tuple[int, int]:
    """The unsigned number that begins at `at`, and where the next thing begins."""
    end = len(view)
    value = shift = 0
    for here in range(at, min(at + VARINT_BYTES_MAX, end)):
        byte = view[here]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _UINT64_END:
                raise Corrupt(f"{where}: the number at byte {at} has more than 64 bits")
            return value, here + 1
        shift += 7
    if end - at < VARINT_BYTES_MAX:
        raise Corrupt(f"{where}: the number at byte {at} is cut off")
    raise Corrupt(f"{where}: the number at byte {at} has more than {VARINT_BYTES_MAX} bytes")


class Message:
    """One message, checked as a whole. `unknown` holds the fields that were not asked for, as they
    stood, one after the other."""

    __slots__ = ("_depth", "_found", "_where", "unknown")

    def __init__(self, raw: Buffer, fields: Fields, where: str, *, depth: int = 0) -> None:
        if depth > NESTING_MAX:
            raise Corrupt(f"{where}: messages are nested more than {NESTING_MAX} deep")
        self._where = where
        self._depth = depth
        self._found: dict[int, list[int | memoryview]] = {}
        self.unknown = b""
        self._sort(memoryview(raw), fields)

    def _sort(self, view: memoryview, fields: Fields) -> None:
        where, found, unknown = self._where, self._found, []
        at, end, count = 0, len(view), 0
        while at < end:
            count += 1
            if count > FIELDS_MAX:
                raise Corrupt(f"{where}: more than {FIELDS_MAX} fields")
            begin = at
            number, wire_type, at = _read_tag(view, at, where)
            kind = fields.get(number)
            if kind is None:
                at = _skip(view, at, number, wire_type, where, self._depth)
                unknown.append(view[begin:at])
                continue
            if wire_type is not kind.value:
                raise Corrupt(f"{where}: field {number} has wire type {wire_type.name}")
            value: int | memoryview
            value, at = read_varint(view, at, where)
            if kind is BYTES:
                begin, at = at, _end_of(view, at, value, number, where)
                value = view[begin:at]
            found.setdefault(number, []).append(value)
        if unknown:
            self.unknown = b"".join(unknown)

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def uint64(self, number: int) -> int:
        """Required, as is every field that is asked for without `optional`."""
        value = self._last(number)
        check(type(value) is int, "a number is asked for as one", number)
        return value  # type: ignore[return-value]

    def int64(self, number: int) -> int:
        value = self.uint64(number)
        return value - _UINT64_END if value >= _INT64_END else value

    def int32(self, number: int) -> int:
        value = self.int64(number)
        if not -_INT32_END <= value < _INT32_END:
            raise Corrupt(f"{self._where}: field {number} is {value}, beyond 32 bits")
        return value

    def optional_int64(self, number: int) -> int | None:
        return self.int64(number) if number in self._found else None

    def optional_int32(self, number: int) -> int | None:
        return self.int32(number) if number in self._found else None

    def bytes(self, number: int) -> memoryview:
        """A view of the message's own buffer."""
        return self._view(self._last(number), number)

    def optional_bytes(self, number: int) -> memoryview | None:
        return self.bytes(number) if number in self._found else None

    def text(self, number: int) -> str:
        return self._text(self.bytes(number), number)

    def texts(self, number: int) -> Iterator[str]:
        """Of a repeated field, in order."""
        for value in self._found.get(number, ()):
            yield self._text(self._view(value, number), number)

    def message(self, number: int, fields: Fields, name: str) -> Message:
        """All that stand under `number`, merged: the same as reading them back to back."""
        self._last(number)
        every = [self._view(value, number) for value in self._found[number]]
        raw = every[0] if len(every) == 1 else memoryview(b"".join(every))
        return Message(raw, fields, f"{self._where}, {name}", depth=self._depth + 1)

    def messages(self, number: int, fields: Fields, name: str) -> Iterator[Message]:
        """Of a repeated field, in order."""
        for at, value in enumerate(self._found.get(number, ())):
            where = f"{self._where}, {name} {at}"
            yield Message(self._view(value, number), fields, where, depth=self._depth + 1)

    def _last(self, number: int) -> int | memoryview:
        values = self._found.get(number)
        if values is None:
            raise Corrupt(f"{self._where}: the required field {number} is missing")
        return values[-1]

    def _view(self, value: int | memoryview, number: int) -> memoryview:
        check(type(value) is memoryview, "bytes are asked for as bytes", number)
        return value  # type: ignore[return-value]

    def _text(self, value: memoryview, number: int) -> str:
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise Corrupt(f"{self._where}: field {number} is not UTF-8") from None


def _read_tag(view: memoryview, at: int, where: str) -> tuple[int, WireType, int]:
    tag, after = read_varint(view, at, where)
    number = tag >> 3
    if not 0 < number < _FIELD_NUMBER_END:
        raise Corrupt(f"{where}: there is no field {number}, at byte {at}")
    wire_type = _WIRE_TYPES.get(tag & 7)
    if wire_type is None:
        raise FormatError(f"{where}: field {number} has the unknown wire type {tag & 7}")
    return number, wire_type, after


def _end_of(view: memoryview, at: int, size: int, number: int, where: str) -> int:
    if size > len(view) - at:
        raise Corrupt(
            f"{where}: field {number} claims {size} bytes at byte {at}, of {len(view)} in all"
        )
    return at + size


def _skip(
    view: memoryview, at: int, number: int, wire_type: WireType, where: str, depth: int
) -> int:
    """Where the value of an unknown field ends."""
    if wire_type is WireType.GROUP:
        return _skip_group(view, at, number, where, depth + 1)
    if wire_type is WireType.END_GROUP:
        raise Corrupt(f"{where}: a group {number} ends that did not begin")
    if wire_type is WireType.VARINT:
        return read_varint(view, at, where)[1]
    size = 8 if wire_type is WireType.FIXED64 else 4
    if wire_type is WireType.BYTES:
        size, at = read_varint(view, at, where)
    return _end_of(view, at, size, number, where)


def _skip_group(view: memoryview, at: int, number: int, where: str, depth: int) -> int:
    if depth > NESTING_MAX:
        raise Corrupt(f"{where}: groups are nested more than {NESTING_MAX} deep")
    while True:
        inner, wire_type, at = _read_tag(view, at, where)
        if wire_type is WireType.END_GROUP:
            if inner != number:
                raise Corrupt(f"{where}: the group {number} ends as {inner}")
            return at
        at = _skip(view, at, inner, wire_type, where, depth)


_WIRE_TYPES = {int(wire_type): wire_type for wire_type in WireType}


def pack_varint(value: int) -> bytes:
    """A negative number takes all ten bytes: these fields are not zigzag."""
    if 0 <= value < 0x80:
        return _SMALL[value]
    check(-_INT64_END <= value < _UINT64_END, "a field holds 64 bits", value)
    value %= _UINT64_END
    packed = bytearray()
    while value >= 0x80:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


_SMALL = [bytes([value]) for value in range(0x80)]


def pack_number(number: int, value: int) -> bytes:
    """A whole field, tag and value."""
    return pack_varint(number << 3) + pack_varint(value)


def pack_bytes(number: int, value: Buffer) -> bytes:
    """A string of bytes, or a message that is packed already."""
    return b"".join((pack_bytes_front(number, len(value)), value))


def pack_bytes_front(number: int, size: int) -> bytes:
    """The field up to its value, for a value that stays where it is."""
    return pack_varint(number << 3 | WireType.BYTES) + pack_varint(size)


def pack_text(number: int, value: str) -> bytes:
    return pack_bytes(number, value.encode())
