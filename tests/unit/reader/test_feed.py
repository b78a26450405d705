"""What a reader asks of the stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import dlog
from dlog.effects import Effect
from dlog.options import ReaderOptions
from dlog.reader.feed import Feed, ReaderDriver

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


class Watch:
    """Hears what a feed tells the watch of its reader."""

    def __init__(self) -> None:
        self.ahead: list[int] = []

    def read(self, batches: Sequence[Any], ahead_bytes: int) -> None:
        self.ahead.append(ahead_bytes)

    def taken(self) -> None:
        self.ahead.append(0)


async def test_what_is_read_ahead_counts_the_bytes_that_nobody_took() -> None:
    stores: Any = SimpleNamespace(meta=None, ledgers=None, clock=None, metrics=None)
    core: Any = SimpleNamespace(view=None)
    feed = Feed(stores, core, ReaderOptions())
    watch: Any = Watch()
    feed.watch = watch
    for _ in range(2):
        await feed.deliver([SimpleNamespace(bytes=10), SimpleNamespace(bytes=5)])  # type: ignore[list-item]
        await feed.deliver([SimpleNamespace(bytes=1)])  # type: ignore[list-item]
        assert len(await feed.take()) == 3
    assert watch.ahead == [15, 16, 0] * 2
