"""What a processor is given with each batch: how far it is done is said here, and whether the shard
is still its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from dlog.errors import ConfigError
from dlog.groups.consumer import StopReason
from dlog.groups.heart import Heart
from dlog.groups.leases import Checkpoint
from dlog.groups.parents import ParentShard
from dlog.ids import Position
from dlog.reader.message import Message, MessageBatch

Done = Message | MessageBatch | Position


class ShardInfo:
    """One shard, as long as this worker has it."""

    def __init__(
        self, heart: Heart, log: str, number: int, epoch: int, start: Checkpoint | None
    ) -> None:
        self.stream = heart.stream
        self.group = heart.group
        self.log = log
        self.number = number
        self.token = epoch
        """The fencing token: whoever has the shard later has a larger one. A store that remembers
        the largest it saw, and refuses smaller ones, takes nothing from whoever lost it."""
        self.start: Position | None = None if start is None else start.position
        """Where it begins: behind the last checkpoint."""
        self.app: bytes = b"" if start is None else start.app
        """What the program kept with that checkpoint."""
        self.parents: tuple[ParentShard, ...] = ()
        """The shards that it was split or merged from, with what the program kept at the end of
        each. None for a shard that came from no other. A program that keeps its state in `app`
        takes it over from here while its own `app` is empty; after a split each of the new shards
        finds the same parent here."""
        self._heart = heart

    def still_owner(self) -> bool:
        """Nobody else can have had the shard up to this moment: by our own clock, and by what we
        heard. Asks nobody; may be called from any thread."""
        return self._heart.still_owner(self.log, self.token)

    def __repr__(self) -> str:
        return f"<shard {self.number} of {self.stream!r}, token {self.token}>"


class _Tracker:
    def __init__(self, heart: Heart, shard: ShardInfo) -> None:
        self.shard = shard
        self._heart = heart
        self._upto: Position | None = None
        self.has_spoken = False

    @property
    def token(self) -> int:
        return self.shard.token

    def still_owner(self) -> bool:
        return self.shard.still_owner()

    def handed(self, upto: Position) -> None:
        """By the worker: the program has all before that."""
        self._upto = upto

    def checkpoint(self, done: Done | None = None, *, app: bytes = b"") -> None:
        """All up to and with `done` is processed: a message, a batch, or a position; all that was
        handed over without it. Kept in memory, and written as often as `flush_ms` says, and when
        the shard is given up. `app`: up to 4 KiB that whoever goes on from there gets.
        `LeaseLost`: the shard is not ours any more."""
        self._say(done, app, at_once=False, waiter=None)

    def move_on(self, done: Done | None = None, *, at_once: bool = False) -> None:
        """By the worker: a checkpoint that the program did not take itself. What the program kept
        with its last one stays."""
        kept = self._heart.newest(self.shard.log)
        self._say(done, b"" if kept is None else kept.app, at_once=at_once, waiter=None)

    def _say(
        self, done: Done | None, app: bytes, *, at_once: bool, waiter: Future[None] | None
    ) -> None:
        shard = self.shard
        checkpoint = Checkpoint(self._place(done), bytes(app))
        self._heart.checkpoint(shard.log, shard.token, checkpoint, at_once=at_once, waiter=waiter)
        self.has_spoken = True

    def _save(self, done: Done | None, app: bytes) -> Future[None]:
        waiter: Future[None] = Future()
        waiter.set_running_or_notify_cancel()  # whoever waits may go: it is told all the same
        self._say(done, app, at_once=True, waiter=waiter)
        return waiter

    def _place(self, done: Done | None) -> Position:
        upto = self._upto or self.shard.start
        if upto is None:
            raise ConfigError("nothing was handed over yet that a checkpoint could be behind")
        match done:
            case None:
                return upto
            case Position():
                return done
            case Message():
                return Position(upto.log_uid, done.seq + 1, done.id)
            case MessageBatch():
                return Position(upto.log_uid, done.last_seq + 1, done.last_id)
        raise ConfigError(f"a checkpoint is behind a message, a batch or a position, not {done!r}")


class Tracker(_Tracker):
    """Of an async processor."""

    async def save(self, done: Done | None = None, *, app: bytes = b"") -> None:
        """The same, and it is kept once this returns."""
        await asyncio.wrap_future(self._save(done, app))


class BlockingTracker(_Tracker):
    """Of a processor that runs on a thread."""

    def save(self, done: Done | None = None, *, app: bytes = b"") -> None:
        """The same, and it is kept once this returns."""
        self._save(done, app).result()


__all__ = ["BlockingTracker", "Done", "ParentShard", "ShardInfo", "StopReason", "Tracker"]
