"""Streams of shards in Spark: each shard is a log, read as one, and shown as a part of its stream
(`topic` is the stream, `partition` the number of the shard).

A shard that follows others is read in a later micro-batch than the one that reads these to their
end: so each key is in order over micro-batches. Pure, but for `tails_of`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dlog
from dlog.errors import ConfigError, NotFound, Unsupported
from dlog.spark.places import SHARD, UID, Place, Places

OVER = "over"  # in an offset: a shard that was read to its end, for good
PARENTS = "parents"  # of a tail: the listed shards before it, by their logs


class Column(NamedTuple):
    """What `topic` and `partition` say."""

    name: str
    shard: int


def column_of(log: str, names: Iterable[str]) -> Column:
    """A log that was asked for by its name is shard 0 of its own."""
    known = set(names)
    name, _, number = log.rpartition("/")
    if log not in known and name in known and number.isdecimal():
        return Column(name, int(number))
    return Column(log, 0)


def tails_of(client: dlog.Client, name: str) -> tuple[dlog.ShardTail, ...]:
    """Of a stream; none of a plain log."""
    stream = client.stream(name)
    if [shard.log for shard in stream.shards()] == [name]:
        return ()
    return stream.tails()


def place_of(places: Places, name: str) -> Place:
    """One place for all shards of a stream."""
    if places.everywhere is None:
        raise ConfigError(
            f"{name!r} is a stream of shards: begin and end at earliest, latest or a time, the "
            "same for all of them; or subscribe to the logs that its shards are"
        )
    return places.everywhere


def may_begin(tail: Mapping[str, Any], start: Mapping[str, Any], tails: Mapping[str, Any]) -> bool:
    """All shards before this one were read to their end by the batches before; those that are
    listed no more have been trimmed, which nobody may wait for."""
    return all(
        _is_read(start.get(parent), tails[parent])
        for parent in tail.get(PARENTS, ())
        if parent in tails
    )


def _is_read(at: Mapping[str, Any] | None, tail: Mapping[str, Any]) -> bool:
    if not tail.get(OVER):
        return False
    seq = 0 if at is None or at.get(UID) != tail[UID] else at[SHARD]
    return int(seq) >= int(tail[SHARD])


def refuse_streams(client: dlog.Client, name: str) -> None:
    """What tasks filled for a shard could not be published when it was split meanwhile, and the
    same batch, run again, would send its keys elsewhere."""
    try:
        is_stream = name in client.streams(name)
    except NotFound:  # nothing is there yet
        is_stream = False
    if is_stream:
        raise Unsupported(
            f"{name!r} is a stream of shards, which Spark does not write: let a program with "
            "client.stream(…).open_writer() do it, or write to a plain log"
        )
