"""What must hold of a stream, whoever changes it, writes it and reads it.

Every intent of a producer is one message with one key. Once it is acknowledged it is in exactly one
shard; it never is in two; along the shards that had its key, the messages of that key stand in the
order in which they were sent; a child takes nothing before all shards before it have ended; and a
shard takes only keys that it has.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dlog.streams.document import ShardState, StreamMeta
from dlog.streams.lanes import producer_key
from dlog.streams.routes import routes_of
from dlog.testing.sim.stream_logs import AbstractLog, AbstractLogs, Stored
from dlog.testing.sim.world import World, require

ORDER = "I30 (order of a key over shards)"
ONCE = "I31 (in one shard, once)"
AFTER = "I32 (a child after its parents)"
OWNED = "I33 (a key in its shard)"
LIST = "I34 (the list of shards)"


@dataclass(slots=True)
class Intents:
    """What one producer means to send: `keys[n]` is the key of number n."""

    producer_id: int
    keys: list[bytes | None]
    acked: set[int] = field(default_factory=set)
    tries: Counter[int] = field(default_factory=Counter)
    refused: set[int] = field(default_factory=set)  # certainly nowhere
    given_up: set[int] = field(default_factory=set)  # its shard is not the sender's any more

    def refuse(self, number: int) -> None:
        """Who tried says that it is nowhere. Others may try, too."""
        self.refused.add(number)

    def first_open(self) -> int:
        done = self.acked | self.given_up
        return next((n for n in range(len(self.keys)) if n not in done), len(self.keys))


class StreamOracle:
    def __init__(self, world: World, logs: AbstractLogs, path: str) -> None:
        self.world = world
        self.logs = logs
        self.path = path
        self.meta: StreamMeta | None = None
        self.intents: dict[int, Intents] = {}
        self.where: dict[tuple[int, int], tuple[int, int]] = {}  # of a message: shard, index
        self.last_of_key: dict[tuple[int, bytes | None], int] = {}
        self._numbers: dict[str, int] = {}  # of shards, by their logs
        logs.on_stored = self.on_stored

    # --- the list

    def on_written(self, path: str, value: bytes) -> None:
        if path != self.path:
            return
        meta = StreamMeta.from_bytes(value, path)
        before = self.meta
        self.meta = meta
        for shard in meta.shards:
            self._numbers.setdefault(shard.log, shard.number)
        if before is None:
            return
        if self.world.is_told and meta.version != before.version:
            shards = [(s.number, str(s.range), s.parents) for s in meta.open_shards]
            self.world.note(f"version {meta.version}: {shards}, pinned {dict(meta.pins)}")
        require(meta.version >= before.version, LIST, "the version of a stream went back")
        require(meta.next_number >= before.next_number, LIST, "a number is given twice")
        old = {shard.number: shard for shard in before.shards}
        order = list(ShardState)
        for shard in meta.shards:
            was = old.pop(shard.number, None)
            if was is None:
                require(shard.number >= before.next_number, LIST, "a new shard with an old number")
                sealed = [before.shard(p) for p in shard.parents if before.has(p)]
                require(all(p.is_open for p in sealed), LIST, "a child of what was sealed before")
                continue
            same = (was.log, was.range, was.parents) == (shard.log, shard.range, shard.parents)
            require(same, LIST, "a shard was changed in place", shard.number)
            grown = order.index(shard.state) >= order.index(was.state)
            require(grown, LIST, "a shard was opened again", shard.number)
            if shard.state is ShardState.ENDED:
                log = self.logs.logs.get(shard.log)
                ended = log is not None and log.is_terminated
                require(ended, AFTER, "listed as ended, and its log is open", shard.number)
        require(not old, LIST, "shards are gone from the list", sorted(old))
        is_same = meta.next_number == before.next_number and meta.pins == before.pins
        require(is_same or meta.version > before.version, LIST, "changed, in the same version")
        if meta.version != before.version:
            children = [s for s in meta.shards if s.number >= before.next_number]
            for shard in children:
                for parent in shard.parents:
                    sealed_now = not meta.has(parent) or not meta.shard(parent).is_open
                    require(sealed_now, LIST, "a parent stayed open", parent)

    # --- messages

    def on_stored(self, log: AbstractLog, message: Stored) -> None:
        meta = self.meta
        assert meta is not None
        require(message.producer is not None, ONCE, "a message of nobody")
        assert message.producer is not None
        number = self._numbers.get(log.name)
        require(number is not None, LIST, "a message in a log that is no shard", log.name)
        assert number is not None
        at = (number, len(log.stored) - 1)
        if self.world.is_told:
            self.world.note(f"stored {message.producer} {message.key!r} in {log.name}")
        there = self.where.get(message.producer)
        require(there is None, ONCE, "a message is there twice", message.producer, there, at)
        self.where[message.producer] = at
        before = [s for s in meta.before((number,)) if s.number != number]
        for shard in before:
            parent = self.logs.logs.get(shard.log)
            ended = parent is not None and parent.is_terminated
            require(ended, AFTER, "a child took a message, and what is before it is open", number)
        key = message.key if message.key is not None else producer_key(*message.producer)
        self._check_owner(meta, number, key)
        self._check_order(meta, message, at)

    def _check_owner(self, meta: StreamMeta, number: int, key: bytes) -> None:
        """Of an open shard the list says it; a sealed one may still get what it had."""
        shard = meta.shard(number)
        if shard.is_open:
            require(routes_of(meta).owner_of(key) == number, OWNED, "a key elsewhere", key, number)

    def _check_order(self, meta: StreamMeta, message: Stored, at: tuple[int, int]) -> None:
        assert message.producer is not None
        producer_id, number = message.producer
        if message.key is None:
            return
        last = self.last_of_key.get((producer_id, message.key), -1)
        require(number > last, ORDER, "a later message of the key is there", message.producer, last)
        self.last_of_key[producer_id, message.key] = number
        if last >= 0:
            shard, _ = self.where[producer_id, last]
            follows = shard == at[0] or shard in {s.number for s in meta.before((at[0],))}
            follows |= not meta.has(shard)
            require(
                follows, ORDER, "the message before is in a shard that is not read before", at, last
            )

    def check_end(self) -> None:
        """Once everything came right."""
        for intents in self.intents.values():
            for number in sorted(intents.acked):
                told = (intents.producer_id, number)
                require(told in self.where, ONCE, "an acknowledged message is in no shard", told)
            for number in sorted(intents.refused):
                told = (intents.producer_id, number)
                alone = intents.tries[number] == 1
                require(
                    not alone or told not in self.where, ONCE, "a refused message is there", told
                )

    def all_there(self) -> set[tuple[int, int]]:
        return set(self.where)
