"""Columns: what an entry is made of. Numbers, bits, and byte strings behind 32-bit offsets.

Packing and unpacking for whole columns at once, because a Python loop over messages is what makes a
log slow. numpy sums and compares offsets when it is installed and the column is long enough to pay
for the call; without it the standard library does the same in C as far as it can, and gives the
same bytes and the same answers (a property test holds the two together). Nothing here trusts an
offset: `rising_to` is the check that every later slice relies on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import accumulate, chain, pairwise, repeat
from operator import is_not
from struct import Struct, pack, unpack_from
from typing import Any, NamedTuple

from dlog.errors import TooLarge
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.wire import Buffer

NUMPY_COUNT_MIN = 128  # below this the calls cost more than the loops they replace
_ONE_ITEM = Struct("<ii")
_AS_DIGITS = bytes([48, 49]) + bytes(254)
_BITS_OF = [tuple(byte >> bit & 1 for bit in range(8)) for byte in range(256)]


@functools.cache
def numpy() -> Any | None:
    """numpy, or None. Asked for only with a long column at hand: importing it takes 50 ms."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


class Binary(NamedTuple):
    """Where a column of byte strings stands in a body: `items + 1` offsets, then the bytes."""

    items: int
    offsets_at: int
    data_at: int
    data_bytes: int
    validity_at: int  # -1: all are there


def bitmap_bytes(count: int) -> int:
    return (count + 7) >> 3


def padding(size: int) -> int:
    return -size & 7


def pack_offsets(items: Sequence[bytes]) -> tuple[bytes, int]:
    """The offsets column of `items`, and the sum of their lengths. TypeError if one has none."""
    count = len(items)
    module = numpy() if count >= NUMPY_COUNT_MIN else None
    if module is None:
        offsets = list(accumulate(map(len, items), initial=0))
        total = offsets[-1]
        _check_total(total)
        return pack(f"<{count + 1}i", *offsets), total
    sums = module.zeros(count + 1, "<i8")
    module.cumsum(module.fromiter(map(len, items), "<i8", count), out=sums[1:])
    total = int(sums[-1])
    _check_total(total)
    return sums.astype("<i4").tobytes(), total


def _check_total(total: int) -> None:
    if total > LEDGER_ENTRY_BYTES_MAX:
        raise TooLarge(f"{total} bytes in one entry, which holds {LEDGER_ENTRY_BYTES_MAX}")


def rising_to(body: Buffer, at: int, count: int) -> int | None:
    """The last of `count + 1` offsets, or None unless they begin at 0 and never fall."""
    if count == 1:
        first, last = _ONE_ITEM.unpack_from(body, at)
        return last if first == 0 <= last else None
    module = numpy() if count >= NUMPY_COUNT_MIN else None
    if module is None:
        offsets = unpack_offsets(body, at, count)
        return offsets[-1] if offsets[0] == 0 and sorted(offsets) == list(offsets) else None
    column = module.frombuffer(body, "<i4", count + 1, at)
    if column[0] != 0 or (column[1:] < column[:-1]).any():
        return None
    return int(column[-1])


def never_falls(body: Buffer, at: int, count: int) -> bool:
    """Whether each of `count` 64-bit numbers is at least the one before."""
    module = numpy() if count >= NUMPY_COUNT_MIN else None
    if module is None:
        numbers = unpack_numbers(body, at, count)
        return sorted(numbers) == list(numbers)
    column = module.frombuffer(body, "<i8", count, at)
    return not (column[1:] < column[:-1]).any()


def unpack_offsets(body: Buffer, at: int, count: int) -> tuple[int, ...]:
    return unpack_from(f"<{count + 1}i", body, at)


def pack_numbers(numbers: Sequence[int]) -> bytes:
    return pack(f"<{len(numbers)}q", *numbers)


def unpack_numbers(body: Buffer, at: int, count: int) -> tuple[int, ...]:
    return unpack_from(f"<{count}q", body, at)


def pack_validity(items: Sequence[object]) -> bytes:
    """One bit per item, the least significant first: set where the item is not None."""
    if None not in items:
        return ((1 << len(items)) - 1).to_bytes(bitmap_bytes(len(items)), "little")
    present = bytes(map(is_not, items, repeat(None)))
    bits = int(present[::-1].translate(_AS_DIGITS), 2)
    return bits.to_bytes(bitmap_bytes(len(items)), "little")


def unpack_validity(body: Buffer, at: int, count: int) -> Iterable[int]:
    """0 or 1 for each item, and for the rest of the last byte."""
    return chain.from_iterable(
        map(_BITS_OF.__getitem__, bytes(body[at : at + bitmap_bytes(count)]))
    )


def unpack_items(body: memoryview, column: Binary) -> list[bytes]:
    """The byte strings of a column that was checked; an absent one reads as what its slot holds."""
    count, offsets_at, data_at, data_bytes, _ = column
    data = body[data_at : data_at + data_bytes]
    if count == 1:
        return [bytes(data)]
    module = numpy() if count >= NUMPY_COUNT_MIN else None
    if module is None:
        whole = bytes(data)
        bounds = pairwise(unpack_offsets(body, offsets_at, count))
        return [whole[begin:end] for begin, end in bounds]
    # Reading on and on from one stream makes no slice objects: twice as fast as slicing.
    lengths = module.diff(module.frombuffer(body, "<i4", count + 1, offsets_at)).tolist()
    return list(map(BytesIO(data).read, lengths))


def unpack_nullable(body: memoryview, column: Binary) -> list[bytes | None]:
    items = unpack_items(body, column)
    if column.validity_at < 0:
        return list(items)
    present = unpack_validity(body, column.validity_at, column.items)
    return [item if there else None for item, there in zip(items, present, strict=False)]


def is_text(body: memoryview, column: Binary) -> bool:
    """Whether each item is UTF-8 by itself: all of it is, and none starts inside a character."""
    whole = bytes(body[column.data_at : column.data_at + column.data_bytes])
    if whole.isascii():
        return True
    try:
        str(whole, "utf-8")
    except UnicodeDecodeError:
        return False
    starts = set(unpack_offsets(body, column.offsets_at, column.items))
    starts.discard(column.data_bytes)
    return all(whole[start] & 0xC0 != 0x80 for start in starts)
