"""Where a reader stands in a stream, and which shards it may read next.

A `StreamPosition` is one value for all shards: a place in each shard that was begun, the shards
that were read to their end, and nothing of those that come after. `ReadOrder` is the core of a
reader: a shard is read only when every shard before it has been read to its end, so each key keeps
its order, whatever was split or merged.

A shard that is not begun yet is read from the first message that its log ever had. If its head is
past that, messages were missed. A reading that begins at "earliest" is different for the shards
that had lost messages by then: it remembers their heads, and begins there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Set
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
    # Shards that are not begun, and had lost messages when the reading began: their heads then. All
    # others begin at the first message of their log. None: unknown, as in a position of no shard at
    # all that a program made, which means "earliest".
    heads: Mapping[int, Position] | None = None
    # What was known of the stream when it stood here, which makes no other place of it: the number
    # that no shard had yet, and the shards below it that were still to begin. What is listed no
    # more when the reading goes on was missed if it is one of these, or younger. None: unknown.
    next_number: int | None = field(default=None, compare=False)
    to_come: frozenset[int] = field(default=frozenset(), compare=False)

    @property
    def is_blank(self) -> bool:
        """It says nothing of any shard: a reading from here is one from "earliest"."""
        nothing = not self.shards and not self.done and self.since_us is None
        return nothing and self.heads is None

    def to_text(self) -> str:
        fields: dict[str, Any] = {
            "stream": self.stream_uid,
            "shards": _fields(self.shards),
            "done": sorted(self.done),
        }
        if self.since_us is not None:
            fields["since_us"] = self.since_us
        if self.heads is not None:
            fields["heads"] = _fields(self.heads)
        if self.next_number is not None:
            fields["next_number"] = self.next_number
        if self.to_come:
            fields["to_come"] = sorted(self.to_come)
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> StreamPosition:
        if len(text) > POSITION_TEXT_MAX:
            raise FormatError(f"a stream position has at most {POSITION_TEXT_MAX} characters")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise FormatError(f"a stream position is a JSON object, not {text[:80]!r}") from None
        if not isinstance(fields, dict) or not _KNOWN >= set(fields) >= _NEEDED:
            raise FormatError(
                "a stream position has the fields stream, shards and done, and may have since_us, "
                "heads, next_number and to_come"
            )
        uid, since_us = fields["stream"], fields.get("since_us")
        if not isinstance(uid, str):
            raise FormatError("a stream position names its stream, its shards and what is done")
        if since_us is not None and type(since_us) is not int:
            raise FormatError("since_us is a whole number of microseconds")
        next_number = fields.get("next_number")
        if next_number is not None and not _is_number(next_number):
            raise FormatError(f"next_number is the number of a shard, not {next_number!r}")
        return cls(
            uid,
            _parsed(fields["shards"]),
            _numbers(fields, "done"),
            since_us,
            _parsed(fields["heads"]) if "heads" in fields else None,
            next_number,
            _numbers(fields, "to_come"),
        )

    def __str__(self) -> str:
        return self.to_text()


_NEEDED = frozenset(("stream", "shards", "done"))
_KNOWN = _NEEDED | {"since_us", "heads", "next_number", "to_come"}


def _is_number(value: object) -> bool:
    return type(value) is int and value >= 0


def _numbers(fields: Mapping[str, object], name: str) -> frozenset[int]:
    numbers = fields.get(name, [])
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        raise FormatError(f"{name} is a list of numbers of shards, not {numbers!r}")
    return frozenset(numbers)


def _fields(places: Mapping[int, Position]) -> dict[str, Any]:
    return {str(number): json.loads(place.to_text()) for number, place in sorted(places.items())}


def _parsed(fields: object) -> dict[int, Position]:
    if not isinstance(fields, dict) or not all(name.isdecimal() for name in fields):
        raise FormatError("a stream position names shards by their numbers")
    return {
        int(name): Position.parse(json.dumps(place, sort_keys=True))
        for name, place in fields.items()
    }


class ReadOrder:
    """Which shards are being read, which are done, which may begin."""

    def __init__(self, meta: StreamMeta, at: StreamPosition, *, only: Iterable[int] | None) -> None:
        self.meta = meta
        self._only = None if only is None else frozenset(only)
        self._begun: dict[int, Position] = dict(at.shards)
        self._done: set[int] = set(at.done)
        self._since_us = at.since_us
        self._heads = None if at.heads is None else dict(at.heads)
        if at.stream_uid and at.stream_uid != meta.uid:
            raise ConfigError(
                f"a position of stream {at.stream_uid}, but this one is {meta.uid}: made anew"
            )
        for number in (*self._begun, *at.done):  # what is before these has been read
            if meta.has(number):
                before = meta.before(meta.shard(number).parents)
                self._done.update(shard.number for shard in before)

        self._to_come, self._next_number = self._known_at(at)

    def _known_at(self, at: StreamPosition) -> tuple[frozenset[int], int]:
        """Shards that were still to begin, and the number that none had yet."""
        if at.next_number is not None:
            return at.to_come, at.next_number
        # Of a program, or of an older version: what is younger than all that was read is not before
        # it, and so was not read.
        parents = {parent for shard in self._unread() for parent in shard.parents}
        read = self._begun.keys() | self._done
        next_number = max(read) + 1 if read else self.meta.next_number
        return frozenset(parents.union(self._heads or ())), next_number

    def missed(self, meta: StreamMeta | None = None) -> list[int]:
        """Shards that are listed no more (by this newer list) and were not read to their end: what
        they had is gone. Those that had nothing are to be ended first."""
        return sorted(n for n in self._gone(meta or self.meta) if self._counts(n))

    def _gone(self, meta: StreamMeta) -> set[int]:
        listed = {shard.number for shard in meta.shards}
        candidates = {*self._to_come, *range(self._next_number, meta.next_number)}
        return candidates - listed - self._done - self._begun.keys()

    def refuse_missed(self) -> None:
        """`Truncated` if a shard left the list before the reader came to it."""
        if missed := self.missed():
            raise trimmed(missed)

    def skip_missed(self) -> None:
        """Take what left the list before the reader came to it for read."""
        self._done.update(self.missed())

    def refuse_forgotten(self) -> None:
        """`Truncated` if a shard that was being read, or was still to be, is not listed any
        more."""
        gone = {n for n in self.reading if not self.meta.has(n)}
        if forgotten := sorted(gone.union(self.missed())):
            raise trimmed(forgotten)

    def skip_forgotten(self) -> list[int]:
        """Take what is not listed any more for read."""
        gone = [n for n in self.reading if not self.meta.has(n)]
        for number in gone:
            self.end(number)
        self.skip_missed()
        return gone

    def saw(self, meta: StreamMeta) -> None:
        self.meta = meta

    @property
    def reading(self) -> Mapping[int, Position]:
        """Begun, and not done, of the shards that are to be read."""
        if self._only is None:
            return self._begun
        return {number: at for number, at in self._begun.items() if number in self._only}

    @property
    def done(self) -> Set[int]:
        """Read to their end."""
        return self._done

    @property
    def since_us(self) -> int | None:
        return self._since_us

    def head_of(self, number: int) -> Position | None:
        """Where a shard that is not begun begins, if not at the first message of its log."""
        return None if self._heads is None else self._heads.get(number)

    def ready(self) -> list[Shard]:
        """That may begin now: everything before them was read to its end, or is listed no more."""
        listed = {shard.number for shard in self.meta.shards}
        return [
            shard
            for shard in self._unread()
            if all(
                parent in self._done or (parent not in listed and parent not in self._begun)
                for parent in shard.parents
                if self._counts(parent)
            )
        ]

    def _unread(self) -> list[Shard]:
        """Neither begun nor done, of the shards that are to be read."""
        return [
            shard
            for shard in self.meta.shards
            if shard.number not in self._begun
            and shard.number not in self._done
            and self._counts(shard.number)
        ]

    def _counts(self, number: int) -> bool:
        return self._only is None or number in self._only

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
        return not self.reading and not self.ready()

    @property
    def position(self) -> StreamPosition:
        """Of what is done only that is kept which is not told by a child that was begun. A shard
        that is listed no more is kept while a child of it is to begin: it was not missed."""
        begun = dict(self._begun)
        read = begun.keys() | self._done
        before_read = {n for s in self.meta.shards if s.number in read for n in s.parents}
        before_unread = {n for s in self.meta.shards if s.number not in read for n in s.parents}
        told = {shard.number for shard in self.meta.before(before_read)}
        done = {n for n in self._done if n in before_unread or (n not in told and self.meta.has(n))}
        to_come = {s.number for s in self.meta.shards}.union(self._gone(self.meta)) - read - told
        at = StreamPosition(
            self.meta.uid,
            begun,
            frozenset(done),
            self._since_us,
            next_number=self.meta.next_number,
            to_come=frozenset(to_come),
        )
        if self._heads is None:
            return at
        heads = {
            number: head
            for number, head in self._heads.items()
            if number not in read and self.meta.has(number)
        }
        return dataclasses.replace(at, heads=heads) if heads or at.is_blank else at


def trimmed(numbers: Iterable[int]) -> Truncated:
    """What is told of shards that left the list unread."""
    return Truncated(
        f"shards {sorted(numbers)} of the stream were trimmed before they were read to the end"
    )


def trimmed_parents(meta: StreamMeta) -> frozenset[int]:
    """Parents that are listed no more. To a reading that begins with this list they are read."""
    return frozenset(
        parent for shard in meta.shards for parent in shard.parents if not meta.has(parent)
    )


def ends_are_looked_for(meta: StreamMeta) -> list[tuple[Shard, ...]]:
    """Shards in groups, in the order in which to look where each ends for who reads them all up to
    there, whatever follows what: children before their parents. So what is seen of a child has, in
    its parents, everything that came before it. What ended already can be looked at any time."""
    sealed = [s for s in reversed(meta.shards) if s.state is ShardState.SEALED]
    ended = tuple(s for s in meta.shards if s.state is ShardState.ENDED)
    return [meta.open_shards, *((shard,) for shard in sealed), ended]
