"""Which shard has a key, as one immutable value per version of a stream.

Whoever holds one sees a stream as it was at one moment: a change is another value, never another
answer of this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dlog.streams.document import StreamMeta
from dlog.streams.routing.ranges import HashRanges
from dlog.streams.routing.router import Router


class ShardRoutes(NamedTuple):
    version: int
    shards: tuple[int, ...]  # the open ones
    owner_of: Callable[[bytes], int]  # the number of the shard that has a key


def routes_of(meta: StreamMeta) -> ShardRoutes:
    """Of a stream with open shards."""
    numbers = tuple(shard.number for shard in meta.open_shards)
    if meta.routing == "ketama":
        names = {str(shard.number): float(shard.weight) for shard in meta.open_shards}
        router = Router.of(names, pins={key: str(n) for key, n in meta.pins.items()})
        return ShardRoutes(meta.version, numbers, lambda key: int(router.owner_of(key)))
    by_hash = HashRanges((shard.range, shard.number) for shard in meta.open_shards)
    pins = dict(meta.pins)
    if not pins:
        return ShardRoutes(meta.version, numbers, by_hash.owner_of_key)

    def owner_of(key: bytes) -> int:
        pinned = pins.get(key)
        return by_hash.owner_of_key(key) if pinned is None else pinned

    return ShardRoutes(meta.version, numbers, owner_of)
