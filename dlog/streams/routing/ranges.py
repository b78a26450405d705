"""Parts of the hash space, and who owns each.

`HashRanges` covers the whole space, each hash once: what has a gap or an overlap cannot be made, so
whoever holds one need not ask whether a key has an owner, or two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from dlog.errors import ConfigError
from dlog.streams.routing.hashing import KEY_HASH_MAX, key_hash

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """Both ends belong to it."""

    first_hash: int
    last_hash: int

    def __post_init__(self) -> None:
        if not 0 <= self.first_hash <= self.last_hash <= KEY_HASH_MAX:
            raise ConfigError(
                f"a hash range goes from 0 or more to {KEY_HASH_MAX} or less, "
                f"not from {self.first_hash} to {self.last_hash}"
            )

    def __len__(self) -> int:
        return self.last_hash - self.first_hash + 1

    def contains(self, hash: int) -> bool:
        return self.first_hash <= hash <= self.last_hash

    def split_at(self, hash: int) -> tuple[HashRange, HashRange]:
        """What is below `hash`, and what begins with it. Neither may be empty."""
        if not self.first_hash < hash <= self.last_hash:
            raise ConfigError(f"{self} cannot be split at {hash}: one part would be empty")
        return HashRange(self.first_hash, hash - 1), HashRange(hash, self.last_hash)

    def joined(self, other: HashRange) -> HashRange:
        """With a neighbour, on whichever side it is."""
        low, high = sorted((self, other))
        if low.last_hash + 1 != high.first_hash:
            raise ConfigError(f"{self} and {other} are no neighbours")
        return HashRange(low.first_hash, high.last_hash)

    def __str__(self) -> str:
        return f"{self.first_hash:08x}-{self.last_hash:08x}"


WHOLE_SPACE = HashRange(0, KEY_HASH_MAX)


class HashRanges(Generic[Owner]):
    """Immutable. Made of pairs in any order; an owner may have several ranges."""

    __slots__ = ("_last_hashes", "_owners", "_ranges")

    def __init__(self, owned: Iterable[tuple[HashRange, Owner]]) -> None:
        pairs = sorted(owned, key=lambda pair: pair[0])
        self._ranges = tuple(pair[0] for pair in pairs)
        self._owners = tuple(pair[1] for pair in pairs)
        self._last_hashes = [each.last_hash for each in self._ranges]
        next_hash = 0
        for each in self._ranges:
            if each.first_hash != next_hash:
                what = "nobody owns" if each.first_hash > next_hash else "two ranges hold"
                raise ConfigError(f"{what} the hash {min(next_hash, each.first_hash):08x}")
            next_hash = each.last_hash + 1
        if next_hash <= KEY_HASH_MAX:
            raise ConfigError(f"nobody owns the hash {next_hash:08x}")

    def owner_of(self, hash: int) -> Owner:
        if not 0 <= hash <= KEY_HASH_MAX:
            raise ConfigError(f"a key hash is from 0 to {KEY_HASH_MAX}, not {hash}")
        return self._owners[bisect_left(self._last_hashes, hash)]

    def owner_of_key(self, key: bytes) -> Owner:
        return self._owners[bisect_left(self._last_hashes, key_hash(key))]

    def range_of(self, hash: int) -> HashRange:
        if not 0 <= hash <= KEY_HASH_MAX:
            raise ConfigError(f"a key hash is from 0 to {KEY_HASH_MAX}, not {hash}")
        return self._ranges[bisect_left(self._last_hashes, hash)]

    def __iter__(self) -> Iterator[tuple[HashRange, Owner]]:
        return iter(zip(self._ranges, self._owners, strict=True))

    def __len__(self) -> int:
        return len(self._ranges)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HashRanges)
            and self._ranges == other._ranges
            and self._owners == other._owners
        )

    def __hash__(self) -> int:
        return hash((self._ranges, self._owners))

    def __repr__(self) -> str:
        return f"HashRanges({', '.join(f'{each}: {owner!r}' for each, owner in self)})"


def even_ranges(count: int) -> tuple[HashRange, ...]:
    """The whole space in so many parts, which differ by one hash at most, lowest first."""
    if not 1 <= count <= KEY_HASH_MAX + 1:
        raise ConfigError(f"the hash space has 1 to {KEY_HASH_MAX + 1} parts, not {count}")
    firsts = [index * (KEY_HASH_MAX + 1) // count for index in range(count)]
    lasts = [first - 1 for first in firsts[1:]] + [KEY_HASH_MAX]
    return tuple(map(HashRange, firsts, lasts))
