"""The dead letters of a group: messages that could not be processed, in a log of their own.

Each goes there once: its producer is the group's shard and its number is the message's seq, which
the log refuses the second time. So whoever appended one and died before its checkpoint was kept, or
was fenced by another worker that had one to append, does no harm. A log tells of the last number of
a producer alone what message has it: so where a later one of the shard is there, as when a batch
had two and its checkpoint was not kept, or the group was put back, the letters are looked through.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from functools import partial

from dlog.chance import Chance, backoff_s
from dlog.errors import AlreadyExists, Corrupt, DlogError, FormatError, Retry
from dlog.groups.lease_driver import Logs
from dlog.reader.message import Message

logger = logging.getLogger("dlog.groups")

ERROR_CHARS_MAX = 2_000
TRIES = 20
LOOKED_THROUGH = 10_000  # of the last letters
PREFIX = "dlog."


class DeadLetters:
    """A log has one writer: each letter opens it, and may be fenced by another worker's."""

    def __init__(self, logs: Logs, name: str, group: str, stream: str, chance: Chance) -> None:
        self.name = name
        self._logs = logs
        self._group, self._stream = group, stream
        self._chance = chance

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
        told = {
            "group": self._group,
            "stream": self._stream,
            "shard": shard,
            "seq": str(message.seq),
            "id": str(message.id),
            "error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX],
            "attempts": str(tries),
        }
        headers = [
            *message.headers,
            *((f"{PREFIX}{name}", value.encode()) for name, value in told.items()),
        ]
        producer = producer_of(self._group, uid), message.seq
        if is_entry:
            producer = producer_of(self._group, f"{uid}\0{message.id}"), 0
        for attempt in range(TRIES):
            try:
                async with self._logs.open_writer(self.name) as log:
                    append = partial(log.append, message.value, key=message.key, headers=headers)
                    try:
                        await append(producer=producer)
                    except AlreadyExists as there:
                        if there.id is None and not await self._is_there(shard, message):
                            await append()
                    return
            except DlogError as refused:
                if refused.retry is Retry.NEVER or attempt + 1 == TRIES:
                    raise
                logger.info("log %r: a dead letter is tried again: %s", self.name, refused)
            await asyncio.sleep(backoff_s(attempt, self._chance, base_s=0.05, limit_s=5.0))

    async def _is_there(self, shard: str, message: Message) -> bool:
        """Among the last ones. We hold the log: nobody adds to it behind our look."""
        wanted = {
            "group": self._group,
            "stream": self._stream,
            "shard": shard,
            "id": str(message.id),
        }
        looked_for = {(f"{PREFIX}{name}", value.encode()) for name, value in wanted.items()}
        status = await self._logs.admin.status(self.name)
        first = max(status.head_seq, status.next_seq - LOOKED_THROUGH)
        async with self._logs.open_reader(self.name, start=first) as log:
            async for letter in log:
                if looked_for <= set(letter.headers):
                    return True
        return False


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
