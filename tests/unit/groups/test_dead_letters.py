"""Dead letters: each goes there once, whoever tries again, and in whatever order."""

from __future__ import annotations

from typing import Any

import dlog
from dlog.chance import SYSTEM_CHANCE
from dlog.groups.dead_letters import DeadLetters
from dlog.reader.message import Message


def message(seq: int) -> Message:
    return Message(1, seq, 0, seq, b"k", b"%d" % seq, (("mine", b"1"),), 0, None, 1)


async def seqs(client: Any) -> list[int]:
    async with client.open_reader("dead") as log:
        return [int(dict(letter.headers)["dlog.seq"]) async for letter in log]


async def test_lh_60_each_letter_is_there_once_in_whatever_order_it_comes_again() -> None:
    """Two of one batch, whose checkpoint was not kept: the first one comes again behind the second,
    and the log alone does not know it any more."""
    async with dlog.aio.connect("memory:letters") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        error = ValueError("no")
        for seq in (3, 5, 5, 3, 4, 4, 3, 5, 9):
            await letters.put("s/0", "u0", message(seq), error, 2)
        assert await seqs(client) == [3, 5, 4, 9]
        await letters.put("s/1", "u1", message(3), error, 2)
        other = DeadLetters(client, "dead", "another", "s", SYSTEM_CHANCE)
        await other.put("s/0", "u0", message(5), error, 2)
        await other.put("s/0", "u0", message(3), error, 2)
        assert await seqs(client) == [3, 5, 4, 9, 3, 5, 3]
