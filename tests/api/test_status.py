"""Compares the status of a log with the log itself: its readers, its list and its ledgers."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog import limits
from dlog.drive import Stores
from tests.api.adapter import Api, rest_of
from tests.api.planting import meta_of


class Truth:
    """A log as its ledgers have it, counted entry by entry."""

    def __init__(self) -> None:
        self.messages: list[dlog.Message] = []
        self.entry_bytes: dict[tuple[int, int], int] = {}  # by ledger and entry
        self.sealed_bytes = 0
        self.listed = 0


class Watched:
    """A log under one look after the other, over connections that stay."""

    def __init__(self, client: Any, stores: Stores) -> None:
        self.client = client
        self._stores = stores

    async def truth(self) -> Truth:
        truth = Truth()
        async with self.client.open_reader("log") as reader:
            truth.messages = await rest_of(reader)
        meta = await meta_of(self._stores)
        truth.listed = len(meta.segments) + sum(page.segments for page in meta.pages)
        for segment in meta.segments:
            ledger = await self._stores.ledgers.open(segment.ledger_id)
            size = 0
            for entry_id in range(await ledger.last_readable() + 1):
                (raw,) = await ledger.read(entry_id, entry_id, bytes_max=1)
                size += len(raw)
                truth.entry_bytes[segment.ledger_id, entry_id] = len(raw)
            if segment.sealed is not None:
                truth.sealed_bytes += size
            await ledger.close()
        return truth

    async def check(self, *, head: int, tail: int, writer: bool, truncated: bool = False) -> Any:
        """Of status, description and listing, each number."""
        truth = await self.truth()
        messages = truth.messages
        assert [message.seq for message in messages] == list(range(head, tail))
        admin = self.client.admin
        status = await admin.status("log")
        described = await admin.describe("log")
        (listed,) = await admin.list()
        segments = await admin.segments("log")
        assert segments == described.segments
        for each in (status, described, listed):
            assert (each.name, each.state) == ("log", "open")
            assert (each.head_seq, each.next_seq) == (head, tail)
            assert (each.writer is not None) is writer
        assert (status.uid, status.epoch) == (described.uid, described.epoch)
        assert listed.epoch == status.epoch
        assert (described.messages, listed.messages) == (len(messages), len(messages))
        assert described.tail == (messages[-1].id if messages else None)
        assert status.segments == listed.segments == truth.listed
        assert status.bytes == listed.bytes
        if not truncated:  # whose first segment is counted whole
            assert status.bytes == truth.sealed_bytes
        assert described.bytes == sum(each.bytes or 0 for each in segments)
        of_segments = [each.messages for each in segments if each.messages is not None]
        assert truncated or sum(of_segments) == len(messages)
        assert [each.base_seq for each in segments[1:]] == [each.next_seq for each in segments[:-1]]
        assert [each.number for each in segments] == sorted({each.number for each in segments})
        if not messages:
            told = (status.last_id, status.last_time_us, status.message_bytes)
            assert (*told, listed.last_time_us, described.last_time_us) == (None,) * 5
        else:
            last = messages[-1]
            assert described.last_time_us == last.timestamp_us
            assert status.last_id == last.id
            assert status.last_time_us == listed.last_time_us == last.timestamp_us
            in_entry = sum(message.id[:2] == last.id[:2] for message in messages)
            assert status.message_bytes == truth.entry_bytes[last.id[:2]] / in_entry
        return status


async def test_a_log_is_told_as_it_is_at_every_step_of_its_life(api: Api) -> None:
    async with dlog.aio.connect(api.url) as inner, api.connect() as client:
        stores = await inner._stores(True)
        watched = Watched(client, stores)
        check = watched.check
        await client.admin.create("log")
        status = await check(head=0, tail=0, writer=False)
        assert (status.last_id, status.last_time_us, status.message_bytes) == (None, None, None)
        async with client.open_writer("log") as log:
            status = await check(head=0, tail=0, writer=True)
            assert (status.segments, status.bytes) == (1, 0)
            await log.append_many([b"x" * 100] * 7, atomic=True)
            status = await check(head=0, tail=7, writer=True)
            assert (status.bytes, status.last_id.batch_idx) == (0, 6)
            await log.append(b"y" * 50)
            await check(head=0, tail=8, writer=True)
            await log.rotate()
            status = await check(head=0, tail=8, writer=True)
            assert status.segments == 2, "the new ledger has no message"
            await log.append_many([b"z" * 10] * 20, atomic=True)
            await check(head=0, tail=28, writer=True)
        epoch = (await check(head=0, tail=28, writer=False)).epoch
        async with client.open_writer("log") as log:
            await log.append(b"later")
            assert (await check(head=0, tail=29, writer=True)).epoch > epoch
        for _ in range(3):
            async with client.open_writer("log"):
                await check(head=0, tail=29, writer=True)
        await check(head=0, tail=29, writer=False)
        for before in (10, 29):
            await client.admin.truncate("log", before=before)
            await check(head=before, tail=29, writer=False, truncated=True)


async def test_segments_in_pages_count_as_all_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    async with dlog.aio.connect(api.url) as inner, api.connect() as client:
        stores = await inner._stores(True)
        async with client.open_writer("log") as log:
            for number in range(7):
                await log.append_many([b"%d" % number] * (number + 1), atomic=True)
                await log.rotate()
        assert (await meta_of(stores)).pages, "some are in pages"
        status = await client.admin.status("log")
        (listed,) = await client.admin.list()
        described = await client.admin.describe("log")
    in_all = sum(range(1, 8))
    assert (status.next_seq, described.messages, listed.messages) == (in_all, in_all, in_all)
    sealed = [each for each in described.segments if each.state == "sealed"]
    assert [each.messages for each in sealed if each.messages] == list(range(1, 8))
    assert status.segments == listed.segments == len(described.segments)
    assert status.bytes == listed.bytes == sum(each.bytes or 0 for each in sealed)
