"""The shards of a stream, or a plain log, as a group takes them."""

from __future__ import annotations

from collections.abc import Mapping

from dlog.effects import Procedure, ReadNode
from dlog.groups.shards import GroupShard
from dlog.meta.layout import Layout
from dlog.streams.document import StreamMeta


def shards_of(stream: StreamMeta, weights: Mapping[str, int] | None = None) -> list[GroupShard]:
    """Each by its number. Those that ended are still there: a group that did not finish them has
    to, before their children. `weights`: of some of them, by lag or bytes; of the others 1."""
    known = weights or {}
    return [
        GroupShard(
            str(each.number),
            tuple(str(number) for number in each.parents),
            max(1, known.get(str(each.number), 1)),
        )
        for each in stream.shards
    ]


def read_stream_shards(
    layout: Layout, stream: str, weights: Mapping[str, int] | None = None
) -> Procedure[list[GroupShard]]:
    path = layout.stream(stream)
    value, _ = yield ReadNode(path)
    return shards_of(StreamMeta.from_bytes(value, path), weights)
