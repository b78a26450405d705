"""Ledgers whose writer is fenced, recovered and closed by the other side: dead writers and living
ones, ledgers that changed bookies under way, and both sides at once. Nothing that was acknowledged
is lost, and nobody sees an end that somebody else does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from dlog.errors import Fenced, Unavailable
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerState
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.cluster.conversation import Refused
from dlog.testing.conformance.ledger_tools import in_time
from dlog.testing.raw_ledgers import head_of, metadata_of, node_path, stored_entry
from dlog.wire.ledger_metadata import LedgerMetadata
from integration.interop.java_ledgers import (
    LEDGER_CLOSED,
    LEDGER_FENCED,
    METADATA_VERSION,
    JavaLedgers,
    as_read,
)
from integration.interop.sides import Ours, new, payloads_in
from tests.tiers import in_full

WIRES = pytest.mark.parametrize("wire", ["v2", "v3"])
DIGESTS = pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
NUMBERED = [b"entry %d" % number for number in range(200)]
RACES = 20


async def stored(servers: Cluster, meta: ZooKeeperMetaStore, ledger_id: int) -> LedgerMetadata:
    raw = (await meta.get(node_path(servers, ledger_id))).value
    return metadata_of(servers, ledger_id, raw)


@contextlib.contextmanager
def killed(bookie: Bookie) -> Iterator[None]:
    bookie.kill()
    try:
        yield
    finally:
        bookie.start()
        bookie.wait_until_serving()


@WIRES
@DIGESTS
async def test_java_recovers_ours(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str, wire: str
) -> None:
    """Our writer died: nothing was published, and the last run of entries has one LAC."""
    ours = await new(store, digest=digest)
    await ours.birth(NUMBERED[0])
    last = await ours.add(*NUMBERED[1:])
    ours.appender.abandon()
    async with java.reading(ours.ledger_id, wire, digest=digest, recovery=True) as reader:
        assert (reader.last, reader.bytes) == (last, sum(map(len, NUMBERED)))
        assert await reader.read(0, last) == as_read(NUMBERED)
    end = ClosedLedger(last, sum(map(len, NUMBERED)))
    assert await store.recover(ours.ledger_id) == end
    assert await payloads_in(store, ours.ledger_id) == NUMBERED


@WIRES
@DIGESTS
async def test_we_recover_javas(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str, wire: str
) -> None:
    writer = await java.create(wire, digest=digest)
    assert await writer.add(*NUMBERED) == (199, None)
    await writer.forget()
    end = ClosedLedger(199, sum(map(len, NUMBERED)))
    assert await store.recover(writer.ledger_id) == end
    assert await payloads_in(store, writer.ledger_id) == NUMBERED
    async with java.reading(writer.ledger_id, wire, digest=digest) as reader:
        assert (reader.is_closed, reader.last, reader.bytes) == (True, end.last_entry, end.bytes)
        assert await reader.read(0, 199) == as_read(NUMBERED)


@DIGESTS
@pytest.mark.parametrize("count", [0, 1, 2, 100])
async def test_we_recover_striped_ledgers(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str, count: int
) -> None:
    writer = await java.create(ensemble=3, write_quorum=2, ack_quorum=2, digest=digest)
    if count > 0:
        assert await writer.add(*NUMBERED[:count]) == (count - 1, None)
    await writer.forget()
    end = ClosedLedger(count - 1, sum(map(len, NUMBERED[:count])))
    assert await store.recover(writer.ledger_id) == end
    assert await payloads_in(store, writer.ledger_id) == NUMBERED[:count]
    async with java.reading(writer.ledger_id, digest=digest) as reader:
        assert (reader.last, reader.bytes) == (end.last_entry, end.bytes)
        if count > 0:
            assert await reader.read(0, count - 1) == as_read(NUMBERED[:count])


@pytest.mark.parametrize("admin", [False, True], ids=["a client", "a replicator"])
async def test_java_fences_our_living_writer(
    java: JavaLedgers, store: BookKeeperLedgerStore, admin: bool
) -> None:
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    await ours.add(*NUMBERED[1:50])
    reader = await java.open(ours.ledger_id, "v3", recovery=True, admin=admin)
    assert reader.last == 49
    ours.send(*NUMBERED[50:60])
    await ours.heard.until_failed()
    assert isinstance(ours.heard.failed, Fenced)
    assert ours.heard.confirmed == 49
    assert await reader.read(0, 49) == as_read(NUMBERED[:50])
    await reader.close()
    assert await payloads_in(store, ours.ledger_id) == NUMBERED[:50]


async def test_java_fences_us_in_the_middle_of_adds(
    java: JavaLedgers, store: BookKeeperLedgerStore
) -> None:
    """Whatever we were told is confirmed is in the ledger that Java closed."""
    ours = await new(store)
    await ours.birth(b"0")
    recovering = asyncio.ensure_future(java.open(ours.ledger_id, "v3", recovery=True))
    last = 0
    async with in_time():
        while ours.heard.failed is None:
            last = ours.send(*(b"%d" % number for number in range(last + 1, last + 51)))
            await ours.heard.until(partial(_has_room, ours, last))
    assert isinstance(ours.heard.failed, Fenced)
    reader = await recovering
    assert reader.last >= ours.heard.confirmed
    await reader.close()
    found = await payloads_in(store, ours.ledger_id)
    assert found == [b"%d" % number for number in range(reader.last + 1)]


def _has_room(ours: Ours, last: int) -> bool:
    return ours.heard.failed is not None or ours.heard.confirmed > last - 500


@WIRES
async def test_we_fence_javas_living_writer(
    java: JavaLedgers, store: BookKeeperLedgerStore, wire: str
) -> None:
    writer = await java.create(wire)
    assert await writer.add(*NUMBERED[:50]) == (49, None)
    assert (await store.recover(writer.ledger_id)).last_entry == 49
    acked, code = await writer.add(*NUMBERED[50:60])
    assert acked == -1
    assert code in (LEDGER_FENCED, LEDGER_CLOSED)
    assert await payloads_in(store, writer.ledger_id) == NUMBERED[:50]


@WIRES
async def test_we_fence_java_in_the_middle_of_adds(
    java: JavaLedgers, store: BookKeeperLedgerStore, wire: str
) -> None:
    writer = await java.create(wire)
    await writer.add(b"0")
    acked, code, sent = 0, None, 1
    adding = asyncio.ensure_future(writer.add(*(b"%d" % number for number in range(1, 2_001))))
    recovering = asyncio.ensure_future(store.recover(writer.ledger_id))
    while code is None:
        told = await adding
        sent += 2_000
        acked, code = max(acked, told.acked), told.code
        if code is None:
            more = (b"%d" % number for number in range(sent, sent + 2_000))
            adding = asyncio.ensure_future(writer.add(*more))
    end = await recovering
    assert code in (LEDGER_FENCED, LEDGER_CLOSED)
    assert end.last_entry >= acked
    found = await payloads_in(store, writer.ledger_id)
    assert found == [b"%d" % number for number in range(end.last_entry + 1)]


async def test_java_closes_what_we_recovered(
    java: JavaLedgers, store: BookKeeperLedgerStore
) -> None:
    """Its own close says so if our end is the one it knows, and complains if it is not."""
    writer = await java.create()
    await writer.add(*NUMBERED)
    await store.recover(writer.ledger_id)
    told = await writer.close()
    assert (told["state"], told["last_entry"]) == ("CLOSED", 199)
    fenced = await java.create()
    await fenced.add(*NUMBERED[:10])
    adding = fenced.add_soon(*NUMBERED[10:])
    end = await store.recover(fenced.ledger_id)
    await asyncio.wrap_future(adding)
    code, told = None, {}
    try:
        told = await fenced.close()
    except Refused as refused:
        code = refused.code
    assert code == METADATA_VERSION or told["last_entry"] == end.last_entry
    assert await store.recover(fenced.ledger_id) == end


async def test_we_close_what_java_recovered(
    java: JavaLedgers, store: BookKeeperLedgerStore
) -> None:
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    await ours.add(*NUMBERED[1:])
    async with java.reading(ours.ledger_id, recovery=True) as reader:
        assert reader.last == 199
    assert await ours.appender.close() == ClosedLedger(199, sum(map(len, NUMBERED)))


@WIRES
async def test_bookies_changed_under_java(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    wire: str,
) -> None:
    """Two fragments by Java: read while open, recovered and read to the end by us."""
    writer = await java.create(wire)
    await writer.add(*NUMBERED[:50])
    first = (await stored(servers, meta, writer.ledger_id)).fragments[0]
    with killed(servers.bookie(first.ensemble[1])):
        # One by one: two bookies are enough for an entry, and Java replaces the third with the next
        # add after it noticed.
        for payload in NUMBERED[50:]:
            assert (await writer.add(payload)).code is None
        found = await stored(servers, meta, writer.ledger_id)
        assert len(found.fragments) == 2
        await writer.forget()
        end = await store.recover(writer.ledger_id)
        assert end == ClosedLedger(199, sum(map(len, NUMBERED)))
        assert await payloads_in(store, writer.ledger_id) == NUMBERED


async def test_entries_copied_while_the_ledger_is_open(
    servers: Cluster, java: JavaLedgers, store: BookKeeperLedgerStore, meta: ZooKeeperMetaStore
) -> None:
    """A replicator copies the first fragment of an open ledger to another bookie, with the LAC of
    the moment in every copy. They are read, also if nobody else has them, and prove no end."""
    writer = await java.create("v3")
    await writer.add(*NUMBERED[:50])
    first = (await stored(servers, meta, writer.ledger_id)).fragments[0]
    with killed(servers.bookie(first.ensemble[0])):
        for payload in NUMBERED[50:60]:
            assert (await writer.add(payload)).code is None
        await java.replace_bookie(writer.ledger_id, first.ensemble[0])
        changed = await stored(servers, meta, writer.ledger_id)
        assert len(changed.fragments) == 2
        assert changed.fragments[0] != first
        copies = set(changed.fragments[0].ensemble) - set(first.ensemble)
        copy = stored_entry(servers.bookie(copies.pop()), writer.ledger_id, 7)
        assert copy is not None
        assert head_of(copy).last_confirmed == 58
        assert await payloads_in(store, writer.ledger_id) == NUMBERED[:59]
        await writer.forget()
        end = ClosedLedger(59, sum(map(len, NUMBERED[:60])))
        assert await store.recover(writer.ledger_id) == end
        assert await payloads_in(store, writer.ledger_id) == NUMBERED[:60]


@pytest.mark.parametrize("wire", in_full(["v2", "v3"], but=["v2"], seconds=3))
async def test_bookies_changed_under_us(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    wire: str,
) -> None:
    """Two fragments by us: recovered and read by Java, and the same bytes of metadata in it."""
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    await ours.add(*NUMBERED[1:50])
    first = (await stored(servers, meta, ours.ledger_id)).fragments[0]
    with killed(servers.bookie(first.ensemble[1])):
        await ours.add(*NUMBERED[50:])
        async with in_time():
            while len((await stored(servers, meta, ours.ledger_id)).fragments) < 2:
                await ours.add(b"more")
        count = ours.heard.confirmed + 1
        raw = (await meta.get(node_path(servers, ours.ledger_id))).value
        assert (await java.parse(ours.ledger_id, raw))["raw"] == raw
        ours.appender.abandon()
        payloads = NUMBERED + [b"more"] * (count - len(NUMBERED))
        async with java.reading(ours.ledger_id, wire, recovery=True) as reader:
            assert reader.last == count - 1
            assert await reader.read(0, count - 1) == as_read(payloads)
        assert await payloads_in(store, ours.ledger_id) == payloads


@pytest.mark.parametrize("writer", ["java", "ours"])
async def test_both_recover_at_once(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    writer: str,
) -> None:
    """They agree, each time; what is stored is what both were told, and is never written again."""
    for number in range(RACES // 2):
        count = 1 + number * 7
        if writer == "ours":
            ours = await new(store)
            await ours.birth(NUMBERED[0])
            if count > 1:
                await ours.add(*NUMBERED[1:count])
            ours.appender.abandon()
            ledger_id = ours.ledger_id
        else:
            theirs = await java.create("v2" if number % 2 else "v3")
            await theirs.add(*NUMBERED[:count])
            await theirs.forget()
            ledger_id = theirs.ledger_id
        reader, end = await asyncio.gather(
            java.open(ledger_id, "v3" if number % 2 else "v2", recovery=True),
            store.recover(ledger_id),
        )
        assert (reader.last, reader.bytes) == (end.last_entry, end.bytes)
        assert end == ClosedLedger(count - 1, sum(map(len, NUMBERED[:count])))
        await reader.close()
        before = await meta.get(node_path(servers, ledger_id))
        info = await store.info(ledger_id)
        assert (info.state, info.closed) == (LedgerState.CLOSED, end)
        assert await store.recover(ledger_id) == end
        async with java.reading(ledger_id, recovery=True) as again:
            assert again.last == end.last_entry
        assert await meta.get(node_path(servers, ledger_id)) == before


async def recovered_in_the_end(store: BookKeeperLedgerStore, ledger_id: int) -> ClosedLedger:
    """A machine that stands still for seconds makes bookies look dead. Nothing is lost by that: the
    recovery says so and may be tried again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await store.recover(ledger_id)
            except Unavailable as error:
                print(f"tried again: {error}")


@pytest.mark.parametrize("number", in_full(range(4), but=[0, 3], seconds=2))
async def test_both_recover_a_living_writer_at_once(
    java: JavaLedgers, store: BookKeeperLedgerStore, number: int
) -> None:
    """Java adds on and on over one wire while the other wire and we recover its ledger."""
    writer = await java.create("v2")
    await writer.add(b"0")
    adding = asyncio.ensure_future(writer.add(*(b"%d" % each for each in range(1, 3_001))))
    for _ in range(3 * number):  # each time a little later
        await store.info(writer.ledger_id)
    reader, end = await asyncio.gather(
        java.open(writer.ledger_id, "v3", recovery=True),
        recovered_in_the_end(store, writer.ledger_id),
    )
    acked, code = await adding
    assert (reader.last, reader.bytes) == (end.last_entry, end.bytes)
    assert end.last_entry >= acked
    assert code is None or code in (LEDGER_FENCED, LEDGER_CLOSED)
    await reader.close()
    found = await payloads_in(store, writer.ledger_id)
    assert found == [b"%d" % each for each in range(end.last_entry + 1)]


def _lacs(servers: Cluster, ensemble: Sequence[str], ledger_id: int, last: int) -> list[int]:
    """What the copies of the last entry say is confirmed."""
    found = (stored_entry(servers.bookie(each), ledger_id, last) for each in ensemble)
    return [head_of(copy).last_confirmed for copy in found if copy is not None]


@pytest.mark.parametrize("by", ["java", "us"])
async def test_whose_write_backs_show_entries_early(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    by: str,
) -> None:
    """H1, H2. Each entry that Java's recovery writes back carries a LAC that rises with what was
    written back before, so readers may be shown entries before the end is decided; ours carry the
    LAC of the beginning. It is why there is a strict tail."""
    ours = await new(store)
    await ours.birth(NUMBERED[0])
    last = await ours.add(*NUMBERED[1:])
    ours.appender.abandon()
    ensemble = (await stored(servers, meta, ours.ledger_id)).fragments[-1].ensemble
    before = _lacs(servers, ensemble, ours.ledger_id, last)
    if by == "java":
        async with java.reading(ours.ledger_id, recovery=True) as reader:
            assert reader.last == last
    else:
        assert (await store.recover(ours.ledger_id)).last_entry == last
    after = _lacs(servers, ensemble, ours.ledger_id, last)
    print(by, before, after)
    assert (max(after) > max(before)) is (by == "java")
