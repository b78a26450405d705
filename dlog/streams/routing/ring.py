"""The ketama ring: every server stands at many points of the hash space, and owns each key whose
hash lies between the point before one of its own and that one.

A server leaves with all of its points, so its keys go to whoever stands next, and no other key
moves; one that comes takes keys of those that stand behind its points, and nobody gives away more.

Points are where twemproxy has them: the labels "name-0", "name-1" and so on, four points from each
label's MD5. How many a server has is another matter. twemproxy derives it from the mean of all
weights, in single precision: 25 equal servers have 156 points each where 24 and 26 have 160, and
with unequal weights a server that comes moves the points of all. `Ring.of` counts from each weight
alone. `Ring.as_twemproxy` counts as twemproxy does, for who shares servers with one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from struct import Struct

from dlog.errors import ConfigError, Unavailable
from dlog.limits import RING_POINTS_MAX
from dlog.streams.routing.hashing import KEY_HASH_MAX, four_hashes, key_hash

POINTS_OF_WEIGHT_ONE = 160
_POINTS_PER_LABEL = 4
_LABELS_OF_WEIGHT_ONE = POINTS_OF_WEIGHT_ONE // _POINTS_PER_LABEL
SERVER_NAME_BYTES_MAX = 255  # beyond it twemproxy cuts labels off

_single = Struct("<f")


class Ring:
    """Immutable. Where two servers have the same point, the one that was named first owns it."""

    __slots__ = ("_hashes", "_owners", "servers")

    def __init__(self, points: Iterable[tuple[int, str]]) -> None:
        """`of` and `as_twemproxy` are for everybody; this is for who has points already."""
        ordered = sorted(
            points, key=lambda point: point[0]
        )  # stable: equal points keep their order
        self._hashes = [each for each, _ in ordered]
        self._owners = [owner for _, owner in ordered]
        self.servers = frozenset(self._owners)
        if self._owners:
            self._owners.append(self._owners[0])  # past the last point comes the first

    @classmethod
    def of(cls, weights: Mapping[str, float]) -> Ring:
        """Of weight 1 are 160 points; a weight is told by nobody else's."""
        return cls(_points({name: _labels(name, weight) for name, weight in weights.items()}))

    @classmethod
    def as_twemproxy(cls, weights: Mapping[str, int]) -> Ring:
        return cls(_points(twemproxy_labels(weights)))

    def without(self, names: Collection[str]) -> Ring:
        """The others stay where they are."""
        return Ring((hash, owner) for hash, owner in self.points() if owner not in names)

    def owner_of(self, hash: int) -> str:
        """Who has the first point at this hash or beyond it."""
        if not 0 <= hash <= KEY_HASH_MAX:
            raise ConfigError(f"a key hash is from 0 to {KEY_HASH_MAX}, not {hash}")
        if not self._hashes:
            raise _nobody()
        return self._owners[bisect_left(self._hashes, hash)]

    def owner_of_key(self, key: bytes) -> str:
        if not self._hashes:
            raise _nobody()
        return self._owners[bisect_left(self._hashes, key_hash(key))]

    def points(self) -> Iterable[tuple[int, str]]:
        """In their order; of equal ones the first is the owner's."""
        return zip(self._hashes, self._owners, strict=False)  # the owners end with the first again

    def shares(self) -> dict[str, float]:
        """How much of the hash space each has; together 1."""
        owned = dict.fromkeys(self._owners, 0)
        before = self._hashes[-1] - KEY_HASH_MAX - 1 if self._hashes else 0
        for hash, owner in self.points():
            owned[owner] += hash - before
            before = hash
        return {name: count / (KEY_HASH_MAX + 1) for name, count in owned.items()}

    def __len__(self) -> int:
        return len(self._hashes)


def twemproxy_labels(weights: Mapping[str, int]) -> dict[str, int]:
    """How many labels each server has there: its part of all weights times the servers, as floats
    of 32 bits have it, every step rounded."""
    if not all(isinstance(each, int) and each > 0 for each in weights.values()):
        raise ConfigError("twemproxy's weights are whole numbers from 1 on")
    total, count = _float32(sum(weights.values())), _float32(len(weights))
    labels = {}
    for name, weight in weights.items():
        part = _float32(_float32(weight) / total)
        labels_of_mean = _float32(_float32(part * POINTS_OF_WEIGHT_ONE) / _POINTS_PER_LABEL)
        labels[name] = math.floor(_float32(_float32(labels_of_mean * count) + 1e-10))
    return labels


def _labels(name: str, weight: float) -> int:
    labels = 0
    if isinstance(weight, (int, float)) and weight < RING_POINTS_MAX:
        labels = math.floor(weight * _LABELS_OF_WEIGHT_ONE + 1e-9)
    if labels < 1:  # also what is no number
        least = 1 / _LABELS_OF_WEIGHT_ONE
        raise ConfigError(f"the weight of {name!r} is {least} or more, and not {weight!r}")
    return labels


def _points(labels: Mapping[str, int]) -> list[tuple[int, str]]:
    if sum(labels.values()) * _POINTS_PER_LABEL > RING_POINTS_MAX:
        raise ConfigError(f"a ring has {RING_POINTS_MAX} points at most: make all weights smaller")
    points = []
    for name, count in labels.items():
        head = name.encode()
        if not 0 < len(head) <= SERVER_NAME_BYTES_MAX:
            raise ConfigError(f"a server's name has 1 to {SERVER_NAME_BYTES_MAX} bytes: {name!r}")
        for index in range(count):
            points += [(point, name) for point in four_hashes(b"%b-%d" % (head, index))]
    return points


def _float32(value: float) -> float:
    rounded: float = _single.unpack(_single.pack(value))[0]
    return rounded


def _nobody() -> Unavailable:
    return Unavailable("there is nobody on the ring", missing=("a server",), needed=1)
