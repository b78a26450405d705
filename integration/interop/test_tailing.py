"""Open ledgers, read behind their writer by the other side: what its adds and its explicit LAC let
be seen, and no more."""

from __future__ import annotations

import asyncio

import pytest

from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.conformance.ledger_tools import LONG_MS, in_time
from dlog.testing.raw_ledgers import head_of, metadata_of, node_path, stored_entry
from integration.interop.java_ledgers import JavaLedgers, as_read
from integration.interop.sides import new, reading

WIRES = pytest.mark.parametrize("wire", ["v2", "v3"])
DIGESTS = pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
NUMBERED = [b"entry %d" % number for number in range(20)]


@WIRES
async def test_what_is_not_published_java_does_not_see(
    java: JavaLedgers, store: BookKeeperLedgerStore, wire: str
) -> None:
    """The last entry shows only once another one, or a LAC, says that it is confirmed."""
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    for payload in NUMBERED[1:]:
        await ours.add(payload)
    async with java.reading(ours.ledger_id, wire) as reader:
        assert not reader.is_closed
        assert reader.last == 18
        assert await reader.read(0, 18) == as_read(NUMBERED[:19])
    ours.appender.abandon()


@DIGESTS
async def test_java_sees_what_we_publish(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str
) -> None:
    """Over v3: its other wire has no explicit LAC."""
    ours = await new(store, digest=digest)
    await ours.birth(NUMBERED[0])
    await ours.add(*NUMBERED[1:])
    assert await ours.publish() == 19
    async with java.reading(ours.ledger_id, "v3", digest=digest) as reader:
        assert await reader.last_confirmed() == 19
        assert await reader.read(0, 19) == as_read(NUMBERED)
    await ours.appender.close()


async def test_java_follows_what_we_publish(
    java: JavaLedgers, store: BookKeeperLedgerStore
) -> None:
    """By long polls, each for a second at most: a bookie forgets a poll that was woken too early,
    by a LAC that is not news, whoever wrote it."""
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    async with java.reading(ours.ledger_id, "v3") as reader:
        for entry_id, payload in enumerate(NUMBERED[1:6], 1):
            polling = asyncio.ensure_future(reader.tail(entry_id))
            await ours.add(payload)
            await ours.publish()
            async with in_time():
                last, entry = await polling
                while last < entry_id:
                    last, entry = await reader.tail(entry_id)
            assert last == entry_id
            if entry is not None:
                assert entry[:3] == as_read([payload], first=entry_id)[0][:3]
    await ours.appender.close()


async def test_java_learns_of_our_close(java: JavaLedgers, store: BookKeeperLedgerStore) -> None:
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    async with java.reading(ours.ledger_id, "v3") as reader:
        await ours.add(*NUMBERED[1:])
        await ours.appender.close()
        async with in_time():
            while (await reader.state())["state"] != "CLOSED":
                await reader.last_confirmed()
        assert await reader.last_confirmed() == 19


@WIRES
async def test_we_see_no_more_than_java_confirmed(
    java: JavaLedgers, store: BookKeeperLedgerStore, wire: str
) -> None:
    writer = await java.create(wire)
    for payload in NUMBERED:
        await writer.add(payload)
    async with reading(store, writer.ledger_id) as reader:
        assert await reader.last_readable() == 18
        assert await reader.wait_past(18, 200) == 18
    await writer.close()


@DIGESTS
async def test_we_see_what_java_publishes(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str
) -> None:
    """Its timer sends an explicit LAC soon after the last add; a wait of ours ends by it."""
    writer = await java.create("publishing", digest=digest)
    async with reading(store, writer.ledger_id) as reader:
        for entry_id, payload in enumerate(NUMBERED):
            waiting = asyncio.ensure_future(reader.wait_past(entry_id - 1, LONG_MS))
            await writer.add(payload)
            async with in_time():
                while await waiting < entry_id:
                    waiting = asyncio.ensure_future(reader.wait_past(entry_id - 1, LONG_MS))
            (found,) = await reader.read(entry_id, entry_id, bytes_max=1)
            assert bytes(found) == payload
    await writer.close()


async def test_we_learn_of_javas_close(java: JavaLedgers, store: BookKeeperLedgerStore) -> None:
    writer = await java.create("v3")
    await writer.add(*NUMBERED)
    async with reading(store, writer.ledger_id) as reader:
        seen = await reader.last_readable()
        waiting = asyncio.ensure_future(reader.wait_past(max(seen, 18), LONG_MS))
        await writer.close()
        async with in_time():
            while await waiting < 19:
                waiting = asyncio.ensure_future(reader.wait_past(18, LONG_MS))


@pytest.mark.parametrize("digest", ["crc32c", "hmac"])
async def test_heads_and_explicit_lacs_are_those_of_java(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    digest: str,
) -> None:
    """The same entries, one at a time, by both: but for the ledger's id and what follows from it,
    bookies keep the same bytes."""
    ours = await new(store, digest=digest)
    await ours.birth(NUMBERED[0])
    writer = await java.create("v2", digest=digest)
    await writer.add(NUMBERED[0])
    for payload in NUMBERED[1:]:
        await ours.add(payload)
        await writer.add(payload)
    kept = []
    for ledger_id in (ours.ledger_id, writer.ledger_id):
        raw = (await meta.get(node_path(servers, ledger_id))).value
        (fragment,) = metadata_of(servers, ledger_id, raw).fragments
        heads = []
        for entry_id in range(len(NUMBERED)):
            found = [
                stored_entry(servers.bookie(bookie_id), ledger_id, entry_id)
                for bookie_id in fragment.ensemble
            ]
            assert len({each for each in found if each is not None}) == 1
            heads.append(head_of(next(each for each in found if each is not None))[1:])
        kept.append(heads)
    assert kept[0] == kept[1]
    await ours.appender.close()
    await writer.close()
