"""What a bounded table dropped, kept small: enough to tell a producer or a query that is new from
one that was forgotten.

Both sets may claim more than was added, never less. So an id or a name that is not in them was
never used, and one that is in them is refused rather than believed to be new.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from dlog import limits
from dlog.errors import FormatError

ID_MAX = (1 << 63) - 1  # of a producer

_KEPT = 3, 4  # this share of the ranges is kept once there are too many
_PROBES = struct.Struct("<8I")  # the bits of a name, from 32 bytes of its hash


@dataclass(frozen=True, slots=True)
class ForgottenIds:
    """Ids as ranges with both ends included, in order and apart from each other. Past
    `limits.FORGOTTEN_RANGES_MAX` the closest ones are joined, with the ids between them."""

    firsts: tuple[int, ...] = ()
    lasts: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def __contains__(self, id: object) -> bool:
        assert isinstance(id, int)
        at = bisect_right(self.firsts, id) - 1
        return at >= 0 and id <= self.lasts[at]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.firsts, self.lasts, strict=True))

    @property
    def widest_free(self) -> tuple[int, int] | None:
        """The longest range of ids of which none was ever forgotten."""
        begins = (0, *(last + 1 for last in self.lasts))
        ends = (*(first - 1 for first in self.firsts), ID_MAX)
        free = [each for each in zip(begins, ends, strict=True) if each[0] <= each[1]]
        return max(free, key=lambda each: each[1] - each[0], default=None)

    def coarser(self, ranges_max: int) -> ForgottenIds:
        """At most so many ranges, one at least: the closest ones are joined."""
        count = len(self.firsts)
        if count <= max(1, ranges_max):
            return self
        gaps = sorted(range(1, count), key=lambda i: self.lasts[i - 1] - self.firsts[i])
        cuts = sorted(gaps[: max(1, ranges_max) - 1])  # before these, for there the gaps are widest
        return ForgottenIds(
            tuple(self.firsts[i] for i in (0, *cuts)),
            tuple(self.lasts[i - 1] for i in (*cuts, count)),
        )

    def joined(self, other: ForgottenIds) -> ForgottenIds:
        """Everything that one of the two has."""
        return ForgottenIds.of_ranges((*self.ranges, *other.ranges)).coarser(
            limits.FORGOTTEN_RANGES_MAX
        )

    @classmethod
    def of(cls, ids: Iterable[int]) -> ForgottenIds:
        return cls.of_ranges((id, id) for id in ids)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> ForgottenIds:
        """In any order, and they may overlap."""
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in sorted(ranges):
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        return cls(tuple(firsts), tuple(lasts))

    @classmethod
    def from_stored(cls, raw: object, where: str) -> ForgottenIds:
        """Of a list of pairs. `FormatError` for ranges that are empty, overlap or touch, or are in
        another order."""
        if not isinstance(raw, (list, tuple)):
            raise FormatError(f"{where}: ranges of forgotten ids are a list, not {raw!r}")
        before = -2
        for pair in raw:
            is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
            if not is_pair or any(type(end) is not int for end in pair):
                raise FormatError(f"{where}: a range of forgotten ids is two numbers, not {pair!r}")
            if pair[0] < 0 or not before + 1 < pair[0] <= pair[1] <= ID_MAX:
                raise FormatError(f"{where}: ranges of forgotten ids are in order, not {pair!r}")
            before = pair[1]
        return cls(tuple(pair[0] for pair in raw), tuple(pair[1] for pair in raw))


ALL_IDS = ForgottenIds((0,), (ID_MAX,))  # of a table that does not say which ones it forgot


class GrowingIds:
    """The same, for whoever adds one id after another: that copies no ranges. One thread adds;
    others may look meanwhile, and find every id that was added before."""

    __slots__ = ("_bounds",)

    def __init__(self, ids: ForgottenIds = ForgottenIds()) -> None:
        # Where a range begins, and where the ids behind it do, in turn. Other threads look here: it
        # changes from one state to the next by one assignment, to the list or of another list.
        self._bounds = _bounds_of(ids)

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def __contains__(self, id: object) -> bool:
        assert isinstance(id, int)
        return bool(bisect_right(self._bounds, id) & 1)

    def add(self, id: int) -> None:
        bounds = self._bounds
        at = bisect_right(bounds, id)
        if at & 1:
            return
        joins_before = at > 0 and bounds[at - 1] == id
        joins_behind = at < len(bounds) and bounds[at] == id + 1
        more = [] if joins_before else [id]
        if not joins_behind:
            more.append(id + 1)
        bounds[at - joins_before : at + joins_behind] = more
        most = limits.FORGOTTEN_RANGES_MAX
        if len(bounds) > 2 * most:
            self._bounds = _bounds_of(self.frozen().coarser(most * _KEPT[0] // _KEPT[1]))

    def frozen(self) -> ForgottenIds:
        bounds = tuple(self._bounds)
        return ForgottenIds(bounds[::2], tuple(behind - 1 for behind in bounds[1::2]))


def _bounds_of(ids: ForgottenIds) -> list[int]:
    return [bound for first, last in ids.ranges for bound in (first, last + 1)]


@dataclass(frozen=True, slots=True)
class ForgottenNames:
    """Names as a Bloom filter: of 5,000 names it mistakes about one new name in 500 for a
    forgotten one. Empty bytes stand for a filter without names."""

    bits: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.bits)

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)
        return bool(self.bits) and all(self.bits[at] & bit for at, bit in _places(name))

    def with_name(self, name: str) -> ForgottenNames:
        bits = bytearray(self.bits or bytes(limits.FORGOTTEN_NAMES_BYTES))
        for at, bit in _places(name):
            bits[at] |= bit
        return dataclasses.replace(self, bits=bytes(bits))

    def to_text(self) -> str:
        return base64.b64encode(zlib.compress(self.bits)).decode()

    @classmethod
    def from_text(cls, text: str, where: str) -> ForgottenNames:
        unpacking = zlib.decompressobj()
        try:
            packed = base64.b64decode(text, validate=True)
            bits = unpacking.decompress(packed, limits.FORGOTTEN_NAMES_BYTES + 1)
        except (binascii.Error, ValueError, zlib.error) as error:
            raise FormatError(f"{where}: what was forgotten cannot be unpacked: {error}") from None
        if len(bits) != limits.FORGOTTEN_NAMES_BYTES or not unpacking.eof:
            raise FormatError(
                f"{where}: what was forgotten has {limits.FORGOTTEN_NAMES_BYTES} bytes, not "
                f"{len(bits)}"
            )
        return cls(bits)


# Of a table that does not say which names it forgot.
ALL_NAMES = ForgottenNames(b"\xff" * limits.FORGOTTEN_NAMES_BYTES)


def _places(name: str) -> list[tuple[int, int]]:
    """The bytes and bits that stand for a name."""
    found = _PROBES.unpack(hashlib.blake2b(name.encode(), digest_size=_PROBES.size).digest())
    size = 8 * limits.FORGOTTEN_NAMES_BYTES
    return [(probe % size >> 3, 1 << (probe & 7)) for probe in found]
