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
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from dlog.errors import Corrupt, FormatError, check
from dlog.wire import Buffer

VARINT_BYTES_MAX: Final = 10
NESTING_MAX: Final = 16  # messages in messages and groups in groups; three is the most in use
FIELDS_MAX: Final = 1 << 15  # of one message
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
    """How a known field stands on the wire. Fixed widths and repeated numbers are not in use."""

    NUMBER = WireType.VARINT
    BYTES = WireType.BYTES


NUMBER, BYTES = Kind.NUMBER, Kind.BYTES


class Fields:
    """The fields that a message is asked for, made once for each kind of message."""

    __slots__ = ("kinds", "of_tag")

    def __init__(self, kinds: Mapping[int, Kind]) -> None:
        self.kinds = dict(kinds)
        # By tag, which is number and wire type in one: a field of another type is not found.
        self.of_tag = {
            number << 3 | kind.value: (number, kind is BYTES) for number, kind in kinds.items()
        }


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

    __slots__ = ("_depth", "_numbers", "_strings", "_where", "unknown")

    def __init__(self, raw: Buffer, fields: Fields, where: str, *, depth: int = 0) -> None:
        if depth > NESTING_MAX:
            raise Corrupt(f"{where}: messages are nested more than {NESTING_MAX} deep")
        self._where = where
        self._depth = depth
        self._numbers: dict[int, int] = {}  # the last one of each field
        self._strings: dict[int, list[memoryview]] = {}  # all of each field
        self.unknown = b""
        self._sort(memoryview(raw), fields)

    def _sort(self, view: memoryview, fields: Fields) -> None:
        where, of_tag = self._where, fields.of_tag
        unknown: list[slice] = []
        at, end, count = 0, len(view), 0
        while at < end:
            count += 1
            if count > FIELDS_MAX:
                raise Corrupt(f"{where}: more than {FIELDS_MAX} fields")
            begin = at
            tag, at = _read(view, at, end, where)
            known = of_tag.get(tag)
            if known is None:
                at = self._pass_by(view, tag, at, fields)
                if unknown and unknown[-1].stop == begin:
                    begin = unknown.pop().start
                unknown.append(slice(begin, at))
                continue
            number, is_string = known
            value, at = _read(view, at, end, where)
            if not is_string:
                self._numbers[number] = value
                continue
            begin, at = at, _end_of(view, at, value, number, where)
            self._strings.setdefault(number, []).append(view[begin:at])
        if unknown:
            self.unknown += b"".join(map(view.__getitem__, unknown))

    def _pass_by(self, view: memoryview, tag: int, at: int, fields: Fields) -> int:
        """Where an unknown field ends."""
        number, wire_type = _checked_tag(tag, at, self._where)
        if number in fields.kinds:
            raise Corrupt(f"{self._where}: field {number} has wire type {wire_type.name}")
        return _skip(view, at, number, wire_type, self._where, self._depth)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers or number in self._strings

    def string_numbers(self) -> Iterable[int]:
        """Of the fields of bytes that are there."""
        return self._strings.keys()

    def uint64(self, number: int) -> int:
        """Required, as is every field that is asked for without `optional`."""
        try:
            return self._numbers[number]
        except KeyError:
            raise self._missing(number) from None

    def int64(self, number: int) -> int:
        value = self.uint64(number)
        return value - _UINT64_END if value >= _INT64_END else value

    def int32(self, number: int) -> int:
        value = self.int64(number)
        if not -_INT32_END <= value < _INT32_END:
            raise Corrupt(f"{self._where}: field {number} is {value}, beyond 32 bits")
        return value

    def optional_int64(self, number: int) -> int | None:
        return self.int64(number) if number in self._numbers else None

    def optional_int32(self, number: int) -> int | None:
        return self.int32(number) if number in self._numbers else None

    def bytes(self, number: int) -> memoryview:
        """A view of the message's own buffer."""
        try:
            return self._strings[number][-1]
        except KeyError:
            raise self._missing(number) from None

    def optional_bytes(self, number: int) -> memoryview | None:
        return self.bytes(number) if number in self._strings else None

    def text(self, number: int) -> str:
        return self._text(self.bytes(number), number)

    def texts(self, number: int) -> Iterator[str]:
        """Of a repeated field, in order."""
        for value in self._strings.get(number, ()):
            yield self._text(value, number)

    def message(self, number: int, fields: Fields, name: str) -> Message:
        """All that stand under `number`, each whole by itself, merged into one."""
        self.bytes(number)
        first, *others = self._strings[number]
        merged = Message(first, fields, f"{self._where}, {name}", depth=self._depth + 1)
        for raw in others:
            merged._sort(raw, fields)
        return merged

    def messages(self, number: int, fields: Fields, name: str) -> Iterator[Message]:
        """Of a repeated field, in order."""
        for at, value in enumerate(self._strings.get(number, ())):
            yield Message(value, fields, f"{self._where}, {name} {at}", depth=self._depth + 1)

    def _text(self, value: memoryview, number: int) -> str:
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise Corrupt(f"{self._where}: field {number} is not UTF-8") from None

    def _missing(self, number: int) -> Corrupt:
        return Corrupt(f"{self._where}: the required field {number} is missing")


def _read(view: memoryview, at: int, end: int, where: str) -> tuple[int, int]:
    """`read_varint`, without detours for the one byte that most numbers are."""
    if at < end:
        byte = view[at]
        if byte < 0x80:
            return byte, at + 1
    return read_varint(view, at, where)


def _checked_tag(tag: int, at: int, where: str) -> tuple[int, WireType]:
    number = tag >> 3
    if not 0 < number < _FIELD_NUMBER_END:
        raise Corrupt(f"{where}: there is no field {number}, before byte {at}")
    wire_type = _WIRE_TYPES.get(tag & 7)
    if wire_type is None:
        raise FormatError(f"{where}: field {number} has the unknown wire type {tag & 7}")
    return number, wire_type


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
        tag, at = read_varint(view, at, where)
        inner, wire_type = _checked_tag(tag, at, where)
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
