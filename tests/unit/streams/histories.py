"""Random lawful changes of a stream, as values: what becomes of its document, and of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dlog.errors import ConfigError, NotFound
from dlog.options import LogOptions
from dlog.streams.document import StreamMeta, new_stream
from dlog.streams.routing.hashing import key_hash

KEYS = [b"key %d" % number for number in range(12)]
Draw = Callable[[int], int]  # a number below that


def fresh(shards: int = 2, **options: Any) -> StreamMeta:
    return new_stream("s", "uid", LogOptions(), shards=shards, **options)


def changed(meta: StreamMeta, draw: Draw, token: str) -> StreamMeta:
    """One change, drawn; the same value where what was drawn is not lawful."""
    shards = sorted(meta.open_shards, key=lambda shard: shard.range)
    shard = shards[draw(len(shards))]
    key = KEYS[draw(len(KEYS))]
    kind = draw(4)
    try:
        if kind == 0:
            # At a hash of a key, so that small histories part keys.
            return meta.split("s", shard.number, [key_hash(key)], token)
        if kind == 1:
            at = draw(len(shards))
            some = shards[at : at + 2 + draw(2)]
            return meta.merged("s", [each.number for each in some], token)
        if kind == 2:
            return meta.pinned("s", key, shard.number, token)
        return meta.pinned("s", key, None, token)
    except (ConfigError, NotFound):
        return meta


def history(draw: Draw, changes: int, shards: int = 2) -> Iterator[StreamMeta]:
    """The document before the first change and after each."""
    meta = fresh(shards)
    yield meta
    for number in range(changes):
        meta = changed(meta, draw, f"token {number}")
        yield meta
