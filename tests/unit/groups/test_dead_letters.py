"""Dead letters: each goes there once, whoever tries again, and in whatever order."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.chance import SYSTEM_CHANCE
from dlog.errors import ConfigError, Corrupt, DlogError, FormatError, Unavailable
from dlog.groups.dead_letters import ERROR_CHARS_MAX, TRIES, DeadLetters, letter_for
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


async def letters_of(client: Any) -> list[Any]:
    async with client.open_reader("dead") as log:
        return [letter async for letter in log]


async def test_a_letter_has_all_of_the_message_and_what_became_of_it() -> None:
    async with dlog.aio.connect("memory:letters-whole") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        await letters.put("s/0", "u0", message(4), ValueError("x" * 10_000), 7)
        (letter,) = await letters_of(client)
        assert (letter.key, letter.value) == (b"k", b"4")
        told = dict(letter.headers)
        assert told.pop("dlog.error").decode() == f"ValueError: {'x' * 10_000}"[:ERROR_CHARS_MAX]
        assert told == {
            "mine": b"1",
            "dlog.group": b"g",
            "dlog.stream": b"s",
            "dlog.shard": b"s/0",
            "dlog.seq": b"4",
            "dlog.id": str(message(4).id).encode(),
            "dlog.attempts": b"7",
        }


async def test_a_letter_for_an_entry_is_there_once_whatever_its_seq() -> None:
    """Nobody knows the numbers of its messages: it is known by its place."""
    async with dlog.aio.connect("memory:letters-entries") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        entries = []
        for entry_id, seq in ((3, 30), (4, 30), (3, 31)):
            letter = letter_for(Corrupt("no", ledger_id=7, entry_id=entry_id), seq)
            assert letter is not None
            assert (letter.seq, letter.value, letter.key) == (seq, None, None)
            entries.append(letter)
        for each in (*entries, entries[1]):
            await letters.put("s/0", "u0", each, ValueError("no"), 1, is_entry=True)
        assert await seqs(client) == [30, 30]
        await letters.put("s/0", "u0", message(30), ValueError("no"), 1)
        assert await seqs(client) == [30, 30, 30], "a message of that seq is something else"


def test_only_an_error_that_names_an_entry_has_a_letter() -> None:
    for about in ({}, {"ledger_id": 0}, {"entry_id": 0}):
        assert letter_for(Corrupt("no", **about), 1) is None
        assert letter_for(FormatError("no", **about), 1) is None
    found = letter_for(FormatError("no", ledger_id=0, entry_id=0), 1)
    assert found is not None, "ledger 0 and entry 0 are real"
    assert str(found.id) == "0:0:0"


class Away:
    """A client whose logs cannot be opened the first few times."""

    def __init__(self, client: Any, *errors: DlogError) -> None:
        self.client, self.errors = client, list(errors)
        self.admin, self.open_reader = client.admin, client.open_reader

    def open_writer(self, name: str) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.client.open_writer(name)


async def test_a_letter_is_tried_again_while_the_store_is_away() -> None:
    """A few times, and not where it would never be taken."""
    async with dlog.aio.connect("memory:letters-away") as client:
        for many in (1, TRIES - 1):
            away = Away(client, *[Unavailable("away")] * many)
            letters = DeadLetters(away, "dead", "g", "s", Quick())  # type: ignore[arg-type]
            await letters.put("s/0", "u0", message(many), ValueError("no"), 1)
        assert len(await seqs(client)) == 2
        for refusals in ([Unavailable("away")] * TRIES, [ConfigError("never")]):
            away = Away(client, *refusals)
            letters = DeadLetters(away, "dead", "g", "s", Quick())  # type: ignore[arg-type]
            with pytest.raises(type(refusals[0])):
                await letters.put("s/0", "u0", message(9), ValueError("no"), 1)
            assert away.errors == []
        assert len(await seqs(client)) == 2


class Quick:
    """Draws the shortest of all pauses."""

    def fraction(self) -> float:
        return 0.0

    def token(self) -> str:
        return "token"
