"""A second, plain reading of protobuf, to compare with: one field after the other, no views, no
tables, nothing shared with the product. Slow, and written to be looked through at one glance.

It refuses what `dlog.wire.protobuf` says that it refuses: a known field of another wire type,
numbers beyond 64 bits, groups that do not fit, field numbers that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NUMBER, BYTES = 0, 2
_GROUPS_MAX = 16


class Refused(Exception):
    """It is no message with these fields."""


@dataclass
class Told:
    numbers: dict[int, int] = field(default_factory=dict)  # the last one, as it stood: unsigned
    strings: dict[int, list[bytes]] = field(default_factory=dict)
    unknown: bytes = b""
    depth: int = 0  # of messages around this one: groups are counted from here on

    def int64(self, number: int) -> int:
        if number not in self.numbers:
            raise Refused
        value = self.numbers[number]
        return value - (1 << 64) if value >> 63 else value

    def int32(self, number: int) -> int:
        value = self.int64(number)
        if not -(1 << 31) <= value < 1 << 31:
            raise Refused
        return value

    def last(self, number: int) -> bytes:
        if number not in self.strings:
            raise Refused
        return self.strings[number][-1]

    def merged(self, number: int, kinds: Mapping[int, int]) -> Told:
        """A message that is sent in pieces is the message of all the pieces in a row; each piece is
        a message by itself."""
        self.last(number)
        for piece in self.strings[number]:
            read_message(piece, kinds, self.depth + 1)
        return read_message(b"".join(self.strings[number]), kinds, self.depth + 1, 1 << 60)


def read_message(
    raw: bytes, kinds: Mapping[int, int], depth: int = 0, fields_max: int = 1 << 15
) -> Told:
    told = Told(depth=depth)
    at = count = 0
    while at < len(raw):
        begin = at
        count += 1
        if count > fields_max:
            raise Refused
        tag, at = read_varint(raw, at)
        number, wire_type = _split(tag)
        if number not in kinds:
            at = _skip(raw, at, number, wire_type, depth + 1)
            told.unknown += raw[begin:at]
            continue
        if wire_type != kinds[number]:
            raise Refused
        value, at = read_varint(raw, at)
        if wire_type == NUMBER:
            told.numbers[number] = value
            continue
        if at + value > len(raw):
            raise Refused
        told.strings.setdefault(number, []).append(raw[at : at + value])
        at += value
    return told


def read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(10):
        if at + index >= len(raw):
            raise Refused
        byte = raw[at + index]
        value += (byte % 128) * 128**index
        if byte < 128:
            if value >= 2**64:
                raise Refused
            return value, at + index + 1
    raise Refused


def _split(tag: int) -> tuple[int, int]:
    number, wire_type = tag // 8, tag % 8
    if not 1 <= number < 2**29 or wire_type > 5:
        raise Refused
    return number, wire_type


def _skip(raw: bytes, at: int, number: int, wire_type: int, depth: int) -> int:
    if wire_type == 0:
        return read_varint(raw, at)[1]
    if wire_type == 4 or (wire_type == 3 and depth > _GROUPS_MAX):
        raise Refused
    if wire_type == 3:
        while True:
            tag, at = read_varint(raw, at)
            inner, inner_type = _split(tag)
            if inner_type == 4:
                if inner != number:
                    raise Refused
                return at
            at = _skip(raw, at, inner, inner_type, depth + 1)
    size = {1: 8, 5: 4}.get(wire_type)
    if size is None:
        size, at = read_varint(raw, at)
    if at + size > len(raw):
        raise Refused
    return at + size


def as_text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused from None
