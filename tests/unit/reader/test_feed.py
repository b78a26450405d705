"""What a reader asks of the stores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dlog
from dlog.effects import Effect
from dlog.reader.feed import ReaderDriver

MESSAGES = 20


async def test_a_message_at_the_tail_costs_a_wait_and_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What may be read is asked when a segment is entered; then each wait tells."""
    asked: Counter[str] = Counter()
    real = ReaderDriver.perform

    async def perform(self: ReaderDriver, effect: Effect) -> Any:
        asked[type(effect).__name__] += 1
        return await real(self, effect)

    monkeypatch.setattr(ReaderDriver, "perform", perform)
    async with (
        dlog.aio.connect("memory:tail-costs") as client,
        client.open_writer("log") as log,
        client.open_reader("log", follow=True) as reader,
    ):
        await log.append(b"first")
        assert await reader.read(1)
        before = asked.copy()
        for number in range(MESSAGES):
            await log.append(b"%d" % number)
            assert [message.value for message in await reader.read(1)] == [b"%d" % number]
    asked -= before
    assert asked["LastReadable"] == asked["LookAtLedger"] == asked["ReadNode"] == 0, asked
    assert asked["ReadRun"] <= MESSAGES
    assert asked["WaitPast"] <= MESSAGES + 2
