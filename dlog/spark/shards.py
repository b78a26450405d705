"""Streams of shards in Spark: each shard is a log, read as one, and shown as a part of its stream
(`topic` is the stream, `partition` the number of the shard).

A shard that follows others is read in a later micro-batch than the one that reads these to their
end: so each key is in order over micro-batches. A shard that came and was trimmed between two of
them shows in the numbers: each is given once, and an offset says up to which number all shards are
accounted for. Pure, but for what asks a client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import dlog
from dlog.errors import ConfigError, NotFound, Unsupported
from dlog.spark.places import SHARD, UID, Place, Places

OVER = "over"  # in an offset: a shard that was read to its end, for good
# In an offset, at each shard: the uid of its stream, and the first number of a shard that is not
# accounted for. Shards below it were read, stand in the offset, or were trimmed, and that was told.
STREAM = "stream"
NEXT = "next"
PARENTS = "parents"  # of a tail: the listed shards before it, by their logs

Offset = Mapping[str, Mapping[str, Any]]


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


@dataclass(frozen=True, slots=True)
class Listing:
    """Which shards a stream lists, and where the logs of these end. A shard whose log is not made
    yet is listed, and has no tail."""

    name: str
    uid: str
    next_number: int
    listed: frozenset[int]
    tails: tuple[dlog.ShardTail, ...]
    trimmed: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def numbers(self) -> frozenset[int]:
        return self.listed | {tail.number for tail in self.tails}

    def is_other(self, start: Offset) -> bool:
        """The offset is of a stream of this name that was removed."""
        uids = {
            at.get(STREAM, at.get(UID) if log == self.name else None) for log, at in start.items()
        }
        return not uids <= {None, self.uid}

    def missed(self, start: Offset) -> list[int]:
        """The numbers of shards that came since an offset, and are not there any more, but for
        those that never had a message. `start` is what the offset has of this stream; a stream
        that it does not have is new to the query."""
        if not start:
            return []
        known = self._known({} if self.is_other(start) else start)
        first = 0
        if not self.is_other(start):
            # Offsets of earlier versions do not say it. They know the shards that they name.
            first = min(int(at.get(NEXT, max(known) + 1)) for at in start.values())
        there = known | self.numbers
        gone = [number for number in range(first, self.next_number) if number not in there]
        return [number for number in gone if not self.has_ended(number, 0)]

    def has_ended(self, number: int, seq: int) -> bool:
        """A shard that was trimmed had nothing at or behind a seq."""
        first_seq, next_seq = self.trimmed.get(number, (0, 1 << 63))
        return max(first_seq, seq) >= next_seq

    def accounted(self, offset: Offset) -> dict[str, Any]:
        """What an offset says of the stream, at each of its shards. A shard that is listed and not
        in the offset yet is not accounted for, nor are those that were made after it."""
        waiting = self.numbers - self._known(offset)
        return {STREAM: self.uid, NEXT: min(waiting, default=self.next_number)}

    def _known(self, offset: Offset) -> frozenset[int]:
        return frozenset(column_of(log, (self.name,)).shard for log in offset)


def listing_of(client: dlog.Client, name: str, seen: Listing | None = None) -> Listing | None:
    """Of a stream; None of a plain log. `seen` by the look before: as long as the stream lists the
    same shards, only their tails are asked for again."""
    stream = client.stream(name)
    shards = stream.shards()
    if [shard.log for shard in shards] == [name]:
        return None
    tails = stream.tails()
    listed = frozenset(shard.number for shard in shards)
    if seen is not None and seen.listed == listed and _uids(seen.tails) == _uids(tails):
        return replace(seen, tails=tails)
    found = stream.describe()
    listed = frozenset(shard.number for shard in found.shards)
    return Listing(name, found.uid, found.next_number, listed, tails, found.trimmed)


def refuse_twice(listing: Listing, names: Iterable[str]) -> None:
    """A row has one topic: a shard that is asked for by name, too, would be missing from one."""
    shards = {f"{listing.name}/{number}" for number in listing.numbers}
    twice = sorted(shards.intersection(names))
    if twice:
        raise ConfigError(
            f"{', '.join(twice)}: of the stream {listing.name!r}, which is asked for as a whole; "
            "name the stream, or its shards"
        )


def _uids(tails: Iterable[dlog.ShardTail]) -> set[tuple[str, str]]:
    return {(tail.log, tail.uid) for tail in tails}


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
