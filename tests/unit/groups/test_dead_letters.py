"""Dead letters: each goes there once, whoever tries again, and in whatever order."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog import limits
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


@pytest.fixture
def few_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 4)


async def crowd(client: Any, first: int, many: int = 8) -> None:
    """More producers than the log remembers."""
    async with client.open_writer("dead") as log:
        for number in range(first, first + many):
            await log.append(b"somebody else's", producer=(number, 0))


async def whole_letters(client: Any) -> list[tuple[str, int]]:
    async with client.open_reader("dead") as log:
        told = [dict(letter.headers) async for letter in log if letter.headers]
    return [(each["dlog.shard"].decode(), int(each["dlog.seq"])) for each in told]


async def test_a_log_that_forgot_producers_takes_the_first_letter_of_a_new_shard(
    few_producers: None,
) -> None:
    """And each once all the same, whoever tries again: the log cannot tell by its numbers."""
    async with dlog.aio.connect("memory:letters-crowd") as client:
        await crowd(client, 100)
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        later = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        error = ValueError("no")
        for each in (letters, letters, later, letters):
            for seq in (7, 3, 0):
                await each.put("s/0", "u0", message(seq), error, 2)
            await each.put("s/1", "u1", message(7), error, 2)
        await letters.put("s/0", "u0", message(8), error, 2)
        there = [("s/0", 7), ("s/0", 3), ("s/0", 0), ("s/1", 7), ("s/0", 8)]
        assert await whole_letters(client) == there


async def test_a_letter_whose_shard_was_forgotten_is_there_once(few_producers: None) -> None:
    """Also the one of seq 0, and one for an entry: with number 0 a log would take them again."""
    async with dlog.aio.connect("memory:letters-forgotten") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        entry = letter_for(Corrupt("no", ledger_id=7, entry_id=3), 30)
        assert entry is not None
        error = ValueError("no")
        for round in range(3):
            for seq in (0, 5):
                await letters.put("s/0", "u0", message(seq), error, 2)
            await letters.put("s/0", "u0", entry, error, 2, is_entry=True)
            await crowd(client, 100 * (round + 1))
        again = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        await again.put("s/0", "u0", message(0), error, 2)
        assert await whole_letters(client) == [("s/0", 0), ("s/0", 5), ("s/0", 30)]


async def test_more_letters_than_are_remembered_are_looked_through_again(
    few_producers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUP_LETTERS_KNOWN", 2)
    async with dlog.aio.connect("memory:letters-many") as client:
        await crowd(client, 100)
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        for seq in (1, 2, 3, 4, 5, 1, 3, 5, 2, 4):
            await letters.put("s/0", "u0", message(seq), ValueError("no"), 1)
        assert await whole_letters(client) == [("s/0", seq) for seq in (1, 2, 3, 4, 5)]


async def test_a_log_that_was_made_anew_is_looked_through_from_its_beginning(
    few_producers: None,
) -> None:
    async with dlog.aio.connect("memory:letters-anew") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        for first in (100, 200):
            await crowd(client, first)
            await letters.put("s/0", "u0", message(4), ValueError("no"), 1)
            assert await whole_letters(client) == [("s/0", 4)]
            await client.admin.remove("dead")


async def test_a_letter_of_a_letter_is_a_letter_of_its_own(few_producers: None) -> None:
    """A group that consumes dead letters puts those that it cannot process into the same log: what
    they say of themselves is behind what they said before."""
    async with dlog.aio.connect("memory:letters-of-letters") as client:
        await crowd(client, 100)
        first = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        await first.put("s/0", "u0", message(4), ValueError("no"), 1)
        *_, letter = await letters_of(client)
        second = DeadLetters(client, "dead", "again", "dead", SYSTEM_CHANCE)
        for _ in range(2):
            await second.put("dead", "u1", letter, ValueError("no"), 1)
            await first.put("s/0", "u0", message(4), ValueError("no"), 1)
        assert await whole_letters(client) == [("s/0", 4), ("dead", letter.seq)]


class Wordless(Exception):
    """Has no text to be had."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize("error", [ValueError("\udc80 and \ud800"), Wordless()], ids=type)
async def test_an_error_that_no_text_can_hold_is_told_all_the_same(error: Exception) -> None:
    async with dlog.aio.connect("memory:letters-wordless") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        await letters.put("s/0", "u0", message(4), error, 1)
        letter = (await letters_of(client))[-1]
        assert dict(letter.headers)["dlog.error"].decode().startswith(type(error).__name__)
        await client.admin.remove("dead")


async def test_a_letter_keeps_the_event_time() -> None:
    async with dlog.aio.connect("memory:letters-times") as client:
        letters = DeadLetters(client, "dead", "g", "s", SYSTEM_CHANCE)
        await letters.put("s/0", "u0", message(4)._replace(event_time_us=17), ValueError(), 1)
        (letter,) = await letters_of(client)
        assert letter.event_time_us == 17
