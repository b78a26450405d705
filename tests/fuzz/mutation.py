"""Valid bytes to nearly valid ones: bit flips, splices, lies about lengths, words of a dictionary.

A mutation is drawn from one `random.Random`, so a seed is a run. What is known of a format comes in
two ways: as a dictionary of its tags and magic numbers, and as `mutate_fields`, which takes a
protobuf message apart, changes a field at any depth and puts it together again with lengths that
are right, so that what stands behind the first check is reached, too.

Speed is the point: a decoder takes some microseconds, and so may a mutation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

_EDGES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, 255, 256, 1 << 10, 0xFFFF, 1 << 16)
_LARGE = (0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def varint(value: int) -> bytes:
    packed = bytearray()
    while value >= 0x80:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def _words() -> list[bytes]:
    """Numbers at the edges of their types, in every width and order of bytes, and as varints."""
    found: set[bytes] = set()
    for value in (*_EDGES, *_LARGE, *((1 << 64) - edge for edge in (1, 2, 3, 8, 102))):
        found.add(varint(value))
        for width in (1, 2, 4, 8):
            for order in ("big", "little"):
                found.add((value % (1 << 8 * width)).to_bytes(width, order))
    found |= {b"\x80" * 9 + b"\x01", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80\x00", b"\x80" * 11}
    return sorted(found)


WORDS = _words()


class Mutator:
    """One source of chance, one dictionary."""

    def __init__(self, chance: random.Random, dictionary: Sequence[bytes] = ()) -> None:
        self.random = chance.random
        self._dictionary = [*dictionary] or WORDS
        steps: list[Callable[[bytearray], None]] = [
            *[self._flip] * 5,
            *[self._set_byte] * 3,
            *[self._overwrite_word] * 3,
            *[self._overwrite_token] * 2,
            *[self._length_lie] * 3,
            self._add,
            self._insert_word,
            self._insert_token,
            self._delete,
            self._cut,
            self._repeat,
            self._grow,
        ]
        self._steps = steps
        self._count = len(steps)

    def below(self, end: int) -> int:
        return int(self.random() * end)

    def choice(self, options: Sequence[bytes]) -> bytes:
        return options[int(self.random() * len(options))]

    def mutate(self, raw: bytes, corpus: Sequence[bytes]) -> bytes:
        """One step, or a few; now and then the end of another one of the corpus."""
        data = bytearray(raw)
        random, steps, count = self.random, self._steps, self._count
        if random() < 0.03:
            other = self.choice(corpus)
            data[self.below(len(data) + 1) :] = other[self.below(len(other) + 1) :]
        while True:
            steps[int(random() * count)](data)
            if random() < 0.6:
                return bytes(data)

    def _flip(self, data: bytearray) -> None:
        if data:
            bit = int(self.random() * len(data) * 8)
            data[bit >> 3] ^= 1 << (bit & 7)

    def _set_byte(self, data: bytearray) -> None:
        if data:
            data[int(self.random() * len(data))] = int(self.random() * 256)

    def _overwrite_word(self, data: bytearray) -> None:
        word = self.choice(WORDS)
        at = int(self.random() * (len(data) + 1))
        data[at : at + len(word)] = word

    def _overwrite_token(self, data: bytearray) -> None:
        word = self.choice(self._dictionary)
        at = int(self.random() * (len(data) + 1))
        data[at : at + len(word)] = word

    def _length_lie(self, data: bytearray) -> None:
        """A number near to how much is left, where a length may stand."""
        at = int(self.random() * (len(data) + 1))
        told = len(data) - at + int(self.random() * 17) - 12
        if self.random() < 0.3:
            told = len(data) + int(self.random() * 5) - 2
        kind = int(self.random() * 4)
        if kind == 0:
            data[at : at + 1] = bytes([told & 0xFF])
        else:
            data[at : at + 4] = pack((">i", "<i", ">i")[kind - 1], told)

    def _add(self, data: bytearray) -> None:
        if data:
            at = int(self.random() * len(data))
            data[at] = (data[at] + int(self.random() * 33) - 16) & 0xFF

    def _insert_word(self, data: bytearray) -> None:
        at = int(self.random() * (len(data) + 1))
        data[at:at] = self.choice(WORDS)

    def _insert_token(self, data: bytearray) -> None:
        at = int(self.random() * (len(data) + 1))
        data[at:at] = self.choice(self._dictionary)

    def _delete(self, data: bytearray) -> None:
        begin = int(self.random() * (len(data) + 1))
        del data[begin : begin + 1 + int(self.random() * 16)]

    def _cut(self, data: bytearray) -> None:
        del data[int(self.random() * (len(data) + 1)) :]

    def _repeat(self, data: bytearray) -> None:
        begin = int(self.random() * (len(data) + 1))
        piece = bytes(data[begin : begin + 1 + int(self.random() * 40)])
        data[begin:begin] = piece * (1 + int(self.random() * 3))

    def _grow(self, data: bytearray) -> None:
        data += bytes([int(self.random() * 256)]) * (1 + int(self.random() * 64))

    # --- Messages of protobuf, field by field

    def mutate_fields(self, raw: bytes, depth: int = 0) -> bytes:
        """The message with one or a few fields changed, its lengths right again."""
        fields = split_fields(raw)
        if fields is None or not fields:
            return self.mutate(raw, (raw,))
        while True:
            self._change_field(fields, depth)
            if self.random() < 0.6 or not fields:
                return join_fields(fields)

    def _change_field(self, fields: list[tuple[int, int | bytes]], depth: int) -> None:
        at = int(self.random() * len(fields))
        tag, value = fields[at]
        kind = int(self.random() * 12)
        if kind == 0:
            del fields[at]
        elif kind == 1:
            fields.insert(int(self.random() * (len(fields) + 1)), fields[at])
        elif kind == 2:
            other = int(self.random() * len(fields))
            fields[at], fields[other] = fields[other], fields[at]
        elif kind == 3:
            fields.insert(at, self._field())
        elif kind == 4:
            fields[at] = (tag ^ 1 << int(self.random() * 8), value)
        elif isinstance(value, int):
            edges = _EDGES + _LARGE
            new = edges[int(self.random() * len(edges))] - (self.random() < 0.3)
            if self.random() < 0.3:
                new = value + int(self.random() * 9) - 4
            fields[at] = (tag, new % (1 << 64))
        elif depth < 4 and kind < 10 and split_fields(value):
            fields[at] = (tag, self.mutate_fields(value, depth + 1))
        else:
            fields[at] = (tag, self.mutate(value, (value,)))

    def _field(self) -> tuple[int, int | bytes]:
        """Any field of any type; a group is whole, as a rule."""
        number = (1, 2, 3, 4, 5, 6, 13, 15, 16, 100, 107, (1 << 29) - 1)[int(self.random() * 12)]
        kind = int(self.random() * 5)
        if kind == 0:
            return number << 3, int(self.random() * 300)
        if kind == 1:
            return number << 3 | 2, bytes([int(self.random() * 256)]) * int(self.random() * 9)
        if kind == 2:
            return number << 3 | 1, bytes(8)
        if kind == 3:
            return number << 3 | 5, bytes(4)
        return number << 3 | 3, b"\x08\x01" + varint(number << 3 | 4)

    # --- JSON, value by value

    def mutate_json(self, raw: bytes) -> bytes:
        """The same document with one or a few of its values changed."""
        try:
            root = json.loads(raw)
        except (ValueError, RecursionError):
            return self.mutate(raw, (raw,))
        holder = [root]
        while True:
            self._change_value(holder)
            if self.random() < 0.6 or not holder:
                break
        try:
            return json.dumps(
                holder[0] if holder else None, separators=(",", ":"), ensure_ascii=False
            ).encode()
        except (ValueError, RecursionError):
            return raw

    def _change_value(self, holder: Any) -> None:
        """Go down by chance, then change what is there."""
        while True:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            if not keys:
                return
            key = keys[int(self.random() * len(keys))]
            value = holder[key]
            if not (isinstance(value, dict | list) and value) or self.random() < 0.1:
                break
            holder = value
        kind = int(self.random() * 8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.insert(int(self.random() * (len(holder) + 1)), value)
        elif kind == 1:
            holder[_NAMES[int(self.random() * len(_NAMES))]] = value
        elif kind < 5 and type(value) is int:
            holder[key] = value + int(self.random() * 7) - 3
        elif kind < 6 and isinstance(value, str):
            changed = bytearray(value.encode("utf-8", "replace"))
            self._steps[int(self.random() * self._count)](changed)
            holder[key] = changed.decode("utf-8", "replace")
        else:
            holder[key] = _VALUES[int(self.random() * len(_VALUES))]


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -2, 2, 1.0, -0.0, 1e300, float("inf"), (1 << 63) - 1, 1 << 63,
    -(1 << 63), 1 << 70, "", "0", "a", "x" * 300, "-1", "null", "open", "closed", "deleted",
    "\x00", "\ud7ff", [], [[]], [1], {}, {"a": {}}, {"format": 1},
)  # fmt: skip
_NAMES = ("later", "format", "last_entry", "sealed", "options", "x", "", "number", "bytes")


def split_fields(raw: bytes) -> list[tuple[int, int | bytes]] | None:
    """Tags with their values, of a message without groups and without faults; else None."""
    fields: list[tuple[int, int | bytes]] = []
    at, end = 0, len(raw)
    try:
        while at < end:
            tag, at = _varint_at(raw, at)
            wire_type = tag & 7
            value: int | bytes
            if wire_type == 0:
                value, at = _varint_at(raw, at)
            elif wire_type == 2:
                size, at = _varint_at(raw, at)
                value = raw[at : at + size]
                at += size
            elif wire_type in (1, 5):
                size = 8 if wire_type == 1 else 4
                value = raw[at : at + size]
                at += size
            else:
                return None
            if at > end or not tag >> 3:
                return None
            fields.append((tag, value))
    except IndexError:
        return None
    return fields


def _varint_at(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError


def join_fields(fields: Sequence[tuple[int, int | bytes]]) -> bytes:
    """A value whose tag was changed to another type goes out as that type has it, or as it is."""
    packed = []
    for tag, value in fields:
        packed.append(varint(tag))
        if isinstance(value, int):
            packed.append(varint(value))
        elif tag & 7 == 2:
            packed += [varint(len(value)), value]
        else:
            packed.append(value)
    return b"".join(packed)
