"""Where a reader stands in a stream, and which shards it may read next.

A `StreamPosition` is one value for all shards: a place in each shard that was begun, the shards
that were read to their end, and nothing of those that come after. `ReadOrder` is the core of a
reader: a shard is read only when every shard before it has been read to its end, so each key keeps
its order, whatever was split or merged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import ConfigError, FormatError, Truncated
from dlog.ids import Position
from dlog.streams.document import Shard, ShardState, StreamMeta

POSITION_TEXT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """After the last message delivered of each shard."""

    stream_uid: str
    shards: Mapping[int, Position] = field(default_factory=dict)  # begun, and not read to the end
    done: frozenset[int] = frozenset()  # read to the end, and not all that follows them is begun
    since_us: int | None = None  # shards that are not begun are read from this time on

    def to_text(self) -> str:
        fields: dict[str, Any] = {
            "stream": self.stream_uid,
            "shards": {
                str(number): json.loads(position.to_text())
                for number, position in sorted(self.shards.items())
            },
            "done": sorted(self.done),
        }
        if self.since_us is not None:
            fields["since_us"] = self.since_us
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> StreamPosition:
        if len(text) > POSITION_TEXT_MAX:
            raise FormatError(f"a stream position has at most {POSITION_TEXT_MAX} characters")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(f"a stream position is a JSON object, not {text[:80]!r}") from None
        known = {"stream", "shards", "done", "since_us"}
        if not isinstance(fields, dict) or not known >= set(fields) >= {"stream", "shards", "done"}:
            raise FormatError("a stream position has the fields stream, shards, done and since_us")
        uid, shards, done = fields["stream"], fields["shards"], fields["done"]
        since_us = fields.get("since_us")
        if not isinstance(uid, str) or not isinstance(shards, dict) or not isinstance(done, list):
            raise FormatError("a stream position names its stream, its shards and what is done")
        if not all(type(number) is int and number >= 0 for number in done):
            raise FormatError("what is done is told by numbers of shards")
        if since_us is not None and type(since_us) is not int:
            raise FormatError("since_us is a whole number of microseconds")
        if not all(name.isdecimal() for name in shards):
            raise FormatError("a stream position names shards by their numbers")
        places = {
            int(name): Position.parse(json.dumps(place, sort_keys=True))
            for name, place in shards.items()
        }
        return cls(uid, places, frozenset(done), since_us)

    def __str__(self) -> str:
        return self.to_text()


class ReadOrder:
    """Which shards are being read, which are done, which may begin."""

    def __init__(self, meta: StreamMeta, at: StreamPosition, *, only: Iterable[int] | None) -> None:
        self.meta = meta
        self._only = None if only is None else frozenset(only)
        self._begun: dict[int, Position] = dict(at.shards)
        self._done: set[int] = set(at.done)
        self._since_us = at.since_us
        self._skipped: set[int] = set()
        if at.stream_uid and at.stream_uid != meta.uid:
            raise ConfigError(
                f"a position of stream {at.stream_uid}, but this one is {meta.uid}: made anew"
            )
        for number in (*self._begun, *at.done):  # what is before these has been read
            if meta.has(number):
                before = meta.before(meta.shard(number).parents)
                self._done.update(shard.number for shard in before)

    def refuse_forgotten(self) -> None:
        """`Truncated` if a shard that was being read is not listed any more."""
        gone = sorted(n for n in self._begun if not self.meta.has(n))
        if gone:
            raise Truncated(
                f"shards {gone} of the stream were trimmed before they were read to the end"
            )

    def skip_forgotten(self) -> list[int]:
        """Take what is not listed any more for read."""
        gone = [n for n in self._begun if not self.meta.has(n)]
        for number in gone:
            del self._begun[number]
            self._done.add(number)
        return gone

    def saw(self, meta: StreamMeta) -> None:
        self.meta = meta

    @property
    def reading(self) -> Mapping[int, Position]:
        """Begun, and not done."""
        return self._begun

    @property
    def since_us(self) -> int | None:
        return self._since_us

    def ready(self) -> list[Shard]:
        """That may begin now: everything before them was read to its end, or is listed no more."""
        listed = {shard.number for shard in self.meta.shards}
        return [
            shard
            for shard in self.meta.shards
            if shard.number not in self._begun
            and shard.number not in self._done
            and (self._only is None or shard.number in self._only)
            and all(
                parent in self._done for parent in shard.parents if self._counts(parent, listed)
            )
        ]

    def _counts(self, parent: int, listed: set[int]) -> bool:
        return parent in listed and (self._only is None or parent in self._only)

    def begin(self, number: int, at: Position) -> None:
        self._begun[number] = at

    def delivered(self, number: int, at: Position) -> None:
        self._begun[number] = at

    def end(self, number: int) -> None:
        """Read to its end: nothing comes there any more."""
        self._begun.pop(number, None)
        self._done.add(number)

    @property
    def is_over(self) -> bool:
        """All that is listed has been read to its end."""
        return not self._begun and not self.ready()

    @property
    def position(self) -> StreamPosition:
        """Of what is done only that is kept which is not told by a child that was begun."""
        told: set[int] = set()
        for shard in self.meta.shards:
            if shard.number in self._begun or shard.number in self._done:
                told.update(each.number for each in self.meta.before(shard.parents))
        done = {
            n
            for n in self._done
            if self.meta.has(n) and (n not in told or self._has_unread_child(n))
        }
        return StreamPosition(self.meta.uid, dict(self._begun), frozenset(done), self._since_us)

    def _has_unread_child(self, number: int) -> bool:
        return any(
            child.number not in self._begun and child.number not in self._done
            for child in self.meta.children(number)
        )


def ends_are_looked_for(meta: StreamMeta) -> list[tuple[Shard, ...]]:
    """Shards in groups, in the order in which to look where each ends for who reads them all up to
    there, whatever follows what: children before their parents. So what is seen of a child has, in
    its parents, everything that came before it. What ended already can be looked at any time."""
    sealed = [s for s in reversed(meta.shards) if s.state is ShardState.SEALED]
    ended = tuple(s for s in meta.shards if s.state is ShardState.ENDED)
    return [meta.open_shards, *((shard,) for shard in sealed), ended]
