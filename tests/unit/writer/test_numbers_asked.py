"""The first message with a producer's number makes its log say that it has producers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dlog import Fenced, Outcome, Timeout, aio, backends

PLACE, NAME = "numbers-asked", "log"


@pytest.fixture
async def client() -> AsyncIterator[aio.Client]:
    try:
        async with aio.connect(f"memory:{PLACE}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(PLACE, None)


async def test_a_log_says_so_once_it_is_asked(client: aio.Client) -> None:
    async with client.open_writer(NAME) as writer:
        engine = writer._engine
        said = [engine.core.seen.meta.producers]
        for _ in range(2):
            await engine.allow_numbers()
            said.append(engine.core.seen.meta.producers)
        assert said == [False, True, True]
        first = await writer.append(b"first", producer=(7, 0))
        assert await writer.append(b"again", producer=(7, 1)) > first


async def test_a_writer_that_was_fenced_meanwhile_is_told(client: aio.Client) -> None:
    fenced = await client.open_writer(NAME)
    async with client.open_writer(NAME, takeover="always") as winner:
        with pytest.raises(Fenced):
            await fenced._engine.allow_numbers()
        await winner.append(b"ours")
    await fenced.close()


async def test_who_has_no_time_to_wait_for_it_is_told_that_nothing_was_sent(
    client: aio.Client,
) -> None:
    async with client.open_writer(NAME) as writer:
        with pytest.raises(Timeout) as told:
            await writer.submit(b"first", producer=(7, 0), timeout=0)
        assert told.value.outcome is Outcome.NOT_HAPPENED
        assert "nothing was sent" in told.value.message
        assert "may still happen" not in told.value.message
