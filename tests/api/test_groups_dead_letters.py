"""Dead letters of workers: of messages of any size, and in logs that do not take them."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog import limits
from dlog.wire.batch import encoded_bytes_max
from tests.api.adapter import Api
from tests.api.grouping import GROUP, STREAM, Seen, a_group, kept_up_to, send, why, work
from tests.api.waiting import eventually, until

pytestmark = pytest.mark.crosswise(seconds=1)

POISON = b"poison"
LETTERS: dict[str, Any] = {
    "on_error": "dead_letter",
    "dead_letters": "dead",
    "attempts": 1,
    "retry_pause_ms": 1,
    "stall_after_ms": 100,
    "flush_ms": 0,
}


class Poisoned(Seen):
    def process(self, batch: Any, tracker: Any) -> None:
        if any(value.startswith(POISON) for value in batch.values()):
            raise ValueError("I do not like it")
        super().process(batch, tracker)


async def letters_in(client: Any) -> list[Any]:
    async with client.open_reader("dead") as log:
        return [letter async for letter in log]


async def test_poison_as_large_as_a_message_can_be_becomes_a_dead_letter(api: Api) -> None:
    """Its letter has headers beside it, and is larger than a message can be. What does not fit is
    left out, is said, and stands where it was."""
    room = limits.LEDGER_ENTRY_BYTES_MAX - encoded_bytes_max(messages=1, payload_bytes=0)
    value = POISON + b"x" * (room - len(POISON))
    seen = Poisoned()
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await writer.append(value)
        await send(writer, 5)
        async with work(client, seen.process, **LETTERS):
            await kept_up_to(client, 6)
        (letter,) = await letters_in(client)
        told = {name: text.decode() for name, text in letter.headers}
        assert (told["dlog.cut"], told["dlog.seq"]) == ("value", "0")
        assert told["dlog.value_bytes"] == str(len(value))
        assert value.startswith(letter.value)
        assert len(letter.value) > len(value) - 1_000
        whole = dlog.MessageId.parse(told["dlog.id"])
        async with client.open_reader(told["dlog.shard"], start=whole) as log:
            (there,) = await log.read(1)
        assert there.value == value


async def test_a_log_that_takes_no_letters_is_told_with_its_cause(api: Api) -> None:
    """By the worker, by the group, and until it takes them: then the shard goes on by itself."""
    seen = Poisoned()
    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        async with client.open_writer("dead") as log:
            await log.append(b"a letter of before")
        await client.admin.terminate("dead")
        await writer.append(POISON)
        await send(writer, 5)
        async with work(client, seen.process, **LETTERS) as worker:
            await eventually(lambda: "dead letter" in "".join(s.doing for s in worker.shards))
            reason = await why(worker)
            assert reason is not None
            assert reason.code is dlog.ReasonCode.DEAD_LETTER_REFUSED
            assert "log 'dead' takes no dead letter of seq 0: Unsupported" in str(reason)
            assert "terminated" in str(reason)
            assert "I do not like it" in str(reason)
            group = client.group(GROUP, STREAM)

            async def is_told() -> bool:
                (member,) = (await group.describe()).members
                refused = {f"{STREAM}/0": "dead_letter_refused"}
                causes = "".join(member.causes.values())
                return member.waits == refused and "terminated" in causes

            await until(is_told)
            await client.admin.remove("dead")
            await kept_up_to(client, 6)

            async def is_over() -> bool:
                (member,) = (await group.describe()).members
                return not member.waits and not member.causes

            await until(is_over)
            assert await why(worker) is None
        assert [letter.value for letter in await letters_in(client)] == [POISON]


async def test_an_error_without_words_is_processed_like_any_other(api: Api) -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even that")

    def process(batch: Any, tracker: Any) -> None:
        if POISON in batch.values():
            raise Wordless
        tracker.checkpoint()

    async with a_group(api, shards=1, messages=0) as (client, _, writer):
        await writer.append(POISON)
        await send(writer, 5)
        async with work(client, process, **LETTERS) as worker:
            await kept_up_to(client, 6)
            assert not worker.failed
        (letter,) = await letters_in(client)
        assert dict(letter.headers)["dlog.error"].startswith(b"Wordless")


async def test_dead_letters_do_not_go_into_the_stream_that_they_come_from(api: Api) -> None:
    """They would be consumed again, and their writer would take the shard from the stream's."""
    async with a_group(api, shards=1, messages=0) as (client, _, _writer):
        for name in (STREAM, f"{STREAM}/0", f"{STREAM}/17"):
            with pytest.raises(dlog.ConfigError, match="dead_letters"):
                await work(client, Seen().process, **{**LETTERS, "dead_letters": name})
        worker = await work(client, Seen().process, **{**LETTERS, "dead_letters": "orders/dead"})
        await worker.close()
