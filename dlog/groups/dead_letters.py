"""The dead letters of a group: messages that could not be processed, in a log of their own.

Each goes there once: its producer is the group's shard and its number is the message's seq, which
the log refuses the second time. So whoever appended one and died before its checkpoint was kept, or
was fenced by another worker that had one to append, does no harm.

A log does not always know by its numbers. It tells of the last number of a producer alone what
message has it: so where a later one of the shard is there, as when a batch had two and its
checkpoint was not kept, or the group was put back, it cannot say. It forgets producers when many
others wrote, and then refuses numbers of those that it does not know. And a number 0 begins a
producer anew, also one that was forgotten. In all these cases the letters are looked through, and
one that is not among them is appended without a number. We are the log's writer by then, so nobody
adds to it behind our look.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.errors import AlreadyExists, ConfigError, Corrupt, DlogError, FormatError, NotFound, Retry
from dlog.groups.lease_driver import Logs
from dlog.groups.letters import ERROR_CHARS_MAX, Letter, error_text, letter_of, told_by
from dlog.ids import Position
from dlog.reader.message import Message
from dlog.writer.writer import Writer

logger = logging.getLogger("dlog.groups")

TRIES = 20


class DeadLetters:
    """A log has one writer: each letter opens it, and may be fenced by another worker's."""

    def __init__(self, logs: Logs, name: str, group: str, stream: str, chance: Chance) -> None:
        self.name = name
        self._logs = logs
        self._group, self._stream = group, stream
        self._chance = chance
        self._seen = _Letters(group, stream)
        self._looking = asyncio.Lock()

    async def put(
        self,
        shard: str,
        uid: str,
        message: Message,
        error: BaseException,
        tries: int,
        *,
        is_entry: bool = False,
    ) -> None:
        """Once this returns, it is durable. `uid`: of the shard's log. `is_entry`: it stands for an
        entry, whose messages have no numbers that anybody knows."""
        letter = letter_of(
            message,
            {
                "group": self._group,
                "stream": self._stream,
                "shard": shard,
                "seq": str(message.seq),
                "id": str(message.id),
                "error": error_text(error),
                "attempts": str(tries),
            },
        )
        if letter.cut:
            logger.warning(
                "log %r: the dead letter of %s at %s has not all of its %s: they stand there",
                self.name,
                shard,
                message.id,
                ", ".join(letter.cut),
            )
        # An entry has no number of its own, and 0 proves nothing of a producer that was forgotten.
        is_numbered = not is_entry and message.seq > 0
        number = (producer_of(self._group, uid), message.seq) if is_numbered else None
        for attempt in range(TRIES):
            try:
                async with self._logs.open_writer(self.name) as log:
                    await self._append(log, shard, message, letter, number)
                return
            except DlogError as refused:
                if refused.retry is Retry.NEVER or attempt + 1 == TRIES:
                    raise
                logger.info("log %r: a dead letter is tried again: %s", self.name, refused)
            await asyncio.sleep(backoff_s(attempt, self._chance, base_s=0.05, limit_s=5.0))

    async def _append(
        self,
        log: Writer,
        shard: str,
        message: Message,
        letter: Letter,
        number: tuple[int, int] | None,
    ) -> None:
        async def append(producer: tuple[int, int] | None) -> None:
            await log.append(
                letter.value,
                key=letter.key,
                headers=letter.headers,
                event_time=letter.event_time_us,
                producer=producer,
            )

        if number is not None:
            try:
                await append(number)
                return
            except AlreadyExists as there:
                if there.id is not None:
                    return
            except NotFound:
                logger.info("log %r knows no number of shard %r any more", self.name, shard)
        if not await self._is_there(shard, message):
            await append(None)

    async def _is_there(self, shard: str, message: Message) -> bool:
        """We hold the log: nobody adds to it behind our look."""
        wanted = shard.encode(errors="backslashreplace"), str(message.id).encode()
        async with self._looking:
            status = await self._logs.admin.status(self.name)
            head_seq, next_seq, seen = status.head_seq, status.next_seq, self._seen
            first = seen.goes_on_at(status.uid, head_seq)
            if await self._look_through(first, next_seq, wanted) or wanted in seen.known:
                return True
            if seen.forgot and first > head_seq:
                return await self._look_through(head_seq, next_seq, wanted)
            return False

    async def _look_through(self, first: int, next_seq: int, wanted: _Place) -> bool:
        """Note the letters of this group from seq `first` on. Whether the one that is `wanted` is
        among them."""
        is_there = False
        if first >= next_seq:
            return is_there
        async with self._logs.open_reader(self.name, start=first) as log:
            async for message in log:
                place = self._seen.note(message)
                is_there |= place == wanted
            self._seen.looked_through(log.position)
        return is_there


_Place = tuple[bytes, bytes]  # log and id of the message


class _Letters:
    """The letters of one group that were seen in the log, the latest ones; it is looked through
    once, and then from where that ended."""

    def __init__(self, group: str, stream: str) -> None:
        whose = {"group": group, "stream": stream}
        self._whose = {k: v.encode(errors="backslashreplace") for k, v in whose.items()}
        self._upto = Position("", 0, None)
        self.known: OrderedDict[_Place, None] = OrderedDict()
        self.forgot = False  # some, since there were too many

    def goes_on_at(self, uid: str, head_seq: int) -> int:
        if uid != self._upto.log_uid:  # the first time, or the log was removed and made anew
            self.known.clear()
            self.forgot = False
            self._upto = Position(uid, head_seq, None)
        return max(self._upto.next_seq, head_seq)

    def note(self, message: Message) -> _Place | None:
        told = told_by(message.headers)
        if any(told.get(name) != value for name, value in self._whose.items()):
            return None
        place = told.get("shard", b""), told.get("id", b"")
        self.known[place] = None
        if len(self.known) > limits.GROUP_LETTERS_KNOWN:
            self.known.popitem(last=False)
            self.forgot = True
        return place

    def looked_through(self, upto: Position) -> None:
        if upto.next_seq > self._upto.next_seq:
            self._upto = upto


def letter_for(error: Corrupt | FormatError, seq: int) -> Message | None:
    """What stands for an entry that cannot be decoded: where it is. None where the error is about
    something else."""
    if error.ledger_id is None or error.entry_id is None:
        return None
    return Message(error.ledger_id, error.entry_id, 0, seq, None, None, (), 0, None, 0)


def producer_of(group: str, log_uid: str) -> int:
    """By the log, not by its name: a stream that was made anew has other messages at its seqs."""
    name = f"{group}\0{log_uid}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()) >> 2


def check_letters_place(name: str, stream: str) -> None:
    """Letters in the stream that they come from would be consumed again, and whoever appends one
    takes the shard from the stream's writer."""
    shard = name.removeprefix(f"{stream}/")
    if name == stream or (shard != name and shard.isdecimal()):
        raise ConfigError(f"dead_letters={name!r} is of stream {stream!r} itself: name another log")


__all__ = ["ERROR_CHARS_MAX", "DeadLetters", "check_letters_place", "letter_for", "producer_of"]
