"""Which ledgers a reader of a log holds open, and how it lets go of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog import aio, backends
from dlog.effects import LastReadable
from dlog.errors import NotFound, Truncated
from dlog.ledger.memory import MemoryLedgerStore
from dlog.ledger.store import LedgerReader
from dlog.reader.feed import OPEN_LEDGERS_MAX, Feed, ReaderDriver
from dlog.reader.segments import SegmentView
from dlog.reason import ReasonCode
from tests.api.waiting import eventually

PLACE, NAME = "reader-driver", "log"
SEGMENTS = OPEN_LEDGERS_MAX + 3


class Opened:
    """Every reader of a ledger that the store opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open: list[int] = []
        self.times = 0
        real_open = MemoryLedgerStore.open

        async def opening(store: MemoryLedgerStore, ledger_id: int, **how: Any) -> LedgerReader:
            reader = await real_open(store, ledger_id, **how)
            self.open.append(ledger_id)
            self.times += 1
            real_close = reader.close

            async def closing() -> None:
                if ledger_id in self.open:
                    self.open.remove(ledger_id)
                await real_close()

            monkeypatch.setattr(reader, "close", closing, raising=False)
            return reader

        monkeypatch.setattr(MemoryLedgerStore, "open", opening)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@pytest.fixture
async def client() -> AsyncIterator[aio.Client]:
    """With a log of many segments, one message in each."""
    try:
        async with aio.connect(f"memory:{PLACE}") as client:
            async with client.open_writer(NAME) as writer:
                for number in range(SEGMENTS):
                    await writer.append(b"%d" % number)
                    if number + 1 < SEGMENTS:
                        await writer.rotate()
            yield client
    finally:
        backends._memory_worlds.pop(PLACE, None)


async def driver_of(client: aio.Client) -> tuple[ReaderDriver, list[int]]:
    """And the ledgers of the log."""
    stores = await client._stores(False)
    view = SegmentView(NAME, stores.layout)
    driver = ReaderDriver(stores, view)
    await driver.run(view.refresh())
    return driver, [segment.ledger_id for segment in view.meta.segments]


async def read_all(reader: aio.Reader) -> None:
    got = 0
    while got < SEGMENTS:
        got += len(await reader.read(SEGMENTS))


async def test_the_ledgers_that_were_used_last_stay_open(
    client: aio.Client, opened: Opened
) -> None:
    driver, ids = await driver_of(client)
    for ledger_id in ids[:OPEN_LEDGERS_MAX]:
        await driver.perform(LastReadable(ledger_id))
    assert opened.open == ids[:OPEN_LEDGERS_MAX]
    await driver.perform(LastReadable(ids[0]))
    assert opened.times == OPEN_LEDGERS_MAX, "it is open already"
    await driver.perform(LastReadable(ids[OPEN_LEDGERS_MAX]))
    assert opened.open == [ids[0], *ids[2 : OPEN_LEDGERS_MAX + 1]]
    assert driver.opened(ids[1]) is None
    assert driver.opened(ids[0]) is not None
    await driver.close()
    assert opened.open == []


@pytest.mark.parametrize(("copy", "preferred"), [(None, []), (0, [0]), (2, [2])])
async def test_a_reader_of_one_copy_asks_each_ledger_for_it(
    client: aio.Client, monkeypatch: pytest.MonkeyPatch, copy: int | None, preferred: list[int]
) -> None:
    """Where a ledger has several."""
    asked: list[int] = []
    real_open = MemoryLedgerStore.open

    async def with_copies(store: MemoryLedgerStore, ledger_id: int, **how: Any) -> LedgerReader:
        reader = await real_open(store, ledger_id, **how)
        monkeypatch.setattr(reader, "prefer", asked.append, raising=False)
        return reader

    driver, ids = await driver_of(client)
    driver.copy = copy
    await driver.perform(LastReadable(ids[0]))
    assert asked == [], "this one has a single copy"
    monkeypatch.setattr(MemoryLedgerStore, "open", with_copies)
    await driver.perform(LastReadable(ids[1]))
    await driver.perform(LastReadable(ids[1]))
    assert asked == preferred
    await driver.close()


async def test_a_seek_that_fails_lets_go_of_all_that_it_opened(
    client: aio.Client, opened: Opened
) -> None:
    async with client.open_reader(NAME, follow=True) as reader:
        await read_all(reader)
        await eventually(lambda: reader.at_tail, lambda: "it reads on")
        before = list(opened.open)
        id_ = (await reader.tail() or pytest.fail("there are messages"))._replace(batch_idx=9)
        for _ in range(3):
            with pytest.raises((NotFound, Truncated)):
                await reader.seek(id_)
        assert sorted(opened.open) == sorted(before)
        why = reader.why()
        assert why is not None
        assert why.code is ReasonCode.AT_TAIL, "as before"
        async with client.open_writer(NAME) as writer:
            await writer.append(b"later")
            assert [each.value for each in await reader.read(1)] == [b"later"]
    assert opened.open == []


async def test_a_seek_lets_go_of_what_was_open_before(client: aio.Client, opened: Opened) -> None:
    async with client.open_reader(NAME, follow=True) as reader:
        await read_all(reader)
        for _ in range(3):
            await reader.seek(SEGMENTS - 1)
            assert [each.seq for each in await reader.read(1)] == [SEGMENTS - 1]
        assert len(opened.open) <= 1
    assert opened.open == []


async def test_a_feed_that_is_abandoned_reads_no_further(client: aio.Client) -> None:
    reader = await client.open_reader(NAME, follow=True)
    await read_all(reader)
    feed: Feed = reader._feed
    task = feed._task
    assert task is not None
    assert not task.done()
    feed.abandon()
    await eventually(task.done, lambda: "it runs on")
    assert task.cancelled()
    assert await feed.take(wait=False) == [], "nothing is left to take"
    await reader.close()
