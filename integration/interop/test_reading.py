"""Closed ledgers, read by the other side: every digest, password and size, striped ones, large ids,
ledgers whose bookies changed under way or long after, and those that are deleted."""

from __future__ import annotations

import pytest

from dlog.errors import AuthError, NotFound, TooLarge
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import LedgerSpec, LedgerState
from dlog.limits import LEDGER_ENTRY_BYTES_MAX
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.cluster.conversation import Refused
from dlog.testing.raw_ledgers import metadata_of, node_path
from dlog.wire.ledger_metadata_format import pack_ledger_metadata
from integration.interop.conftest import MakeStore
from integration.interop.java_ledgers import (
    NO_SUCH_LEDGER,
    UNAUTHORIZED,
    JavaLedgers,
    Payload,
    Seeded,
    as_read,
    bytes_of,
)
from integration.interop.sides import SIZES, closed, new, payloads_in, reading

DIGESTS = pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
WIRES = pytest.mark.parametrize("wire", ["v2", "v3"])
PASSWORDS = pytest.mark.parametrize("password", [b"", b"secret"], ids=["no password", "password"])
NUMBERED = [b"entry %d" % number for number in range(50)]


@WIRES
@PASSWORDS
@DIGESTS
async def test_java_reads_ours(
    java: JavaLedgers, make_store: MakeStore, digest: str, password: bytes, wire: str
) -> None:
    store = await make_store(password)
    payloads = [Seeded(f"ours {digest}", size) for size in SIZES]
    ledger_id, last = await closed(store, payloads, digest=digest)
    async with java.reading(ledger_id, wire, digest=digest, password=password) as reader:
        assert (reader.is_closed, reader.last, reader.bytes) == (True, last, sum(SIZES))
        assert await reader.read(0, last) == as_read(payloads)
        if wire == "v2":
            found = await reader.read(0, last, how="batch")
            assert found == as_read(payloads)[: len(found)]


@WIRES
@PASSWORDS
@DIGESTS
async def test_we_read_javas(
    java: JavaLedgers, make_store: MakeStore, digest: str, password: bytes, wire: str
) -> None:
    payloads = [Seeded(f"java {digest}", size) for size in SIZES]
    writer = await java.create(wire, digest=digest, password=password, custom={"key": b"value"})
    assert await writer.add(*payloads) == (len(SIZES) - 1, None)
    await writer.close()
    store = await make_store(password)
    info = await store.info(writer.ledger_id)
    assert info.state is LedgerState.CLOSED
    assert info.closed is not None
    assert (info.closed.last_entry, info.closed.bytes) == (len(SIZES) - 1, sum(SIZES))
    assert info.spec == LedgerSpec(3, 3, 2, digest, {"key": b"value"})
    assert await payloads_in(store, writer.ledger_id) == [each.to_bytes() for each in payloads]


async def test_the_wrong_password_is_told(java: JavaLedgers, make_store: MakeStore) -> None:
    ours, _ = await closed(await make_store(b"right"), NUMBERED)
    with pytest.raises(Refused) as refused:
        await java.open(ours, password=b"wrong")
    assert refused.value.code == UNAUTHORIZED
    writer = await java.create(password=b"right")
    await writer.close()
    with pytest.raises(AuthError):
        await (await make_store(b"wrong")).open(writer.ledger_id)


@DIGESTS
async def test_the_largest_entry_of_ours(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str
) -> None:
    """Java can read it on both wires, and one byte more is refused before anything is sent."""
    payloads: list[Payload] = [Seeded("largest", LEDGER_ENTRY_BYTES_MAX), b"behind it"]
    ours = await new(store, digest=digest)
    await ours.birth(payloads[0])
    with pytest.raises(TooLarge):
        ours.send(Seeded("too large", LEDGER_ENTRY_BYTES_MAX + 1))
    assert await ours.add(payloads[1]) == 1
    await ours.appender.close()
    for wire in ("v2", "v3"):
        async with java.reading(ours.ledger_id, wire, digest=digest) as reader:
            assert await reader.read(0, 1) == as_read(payloads)
    assert await payloads_in(store, ours.ledger_id) == [bytes_of(each) for each in payloads]


@WIRES
async def test_the_largest_entry_of_java(
    java: JavaLedgers, store: BookKeeperLedgerStore, wire: str
) -> None:
    payloads: list[Payload] = [
        b"before it",
        Seeded("largest", LEDGER_ENTRY_BYTES_MAX),
        b"behind it",
    ]
    writer = await java.create(wire)
    assert await writer.add(*payloads) == (2, None)
    await writer.close()
    assert await payloads_in(store, writer.ledger_id) == [bytes_of(each) for each in payloads]


@DIGESTS
async def test_striped_ledgers_of_java(
    java: JavaLedgers, store: BookKeeperLedgerStore, digest: str
) -> None:
    writer = await java.create(ensemble=3, write_quorum=2, ack_quorum=2, digest=digest)
    assert await writer.add(*NUMBERED) == (49, None)
    await writer.close()
    assert await payloads_in(store, writer.ledger_id) == NUMBERED


# None of test_bytes: on the same servers a bookie remembers that it was fenced.
@pytest.mark.parametrize("ledger_id", [1 << 31, (1 << 31) + 77, (1 << 53) + 1])
async def test_large_ids_of_java(
    java: JavaLedgers, store: BookKeeperLedgerStore, ledger_id: int
) -> None:
    writer = await java.create(ledger_id=ledger_id)
    assert await writer.add(*NUMBERED, first=0) == (49, None)
    assert (await store.recover(ledger_id)).last_entry == 49
    assert await payloads_in(store, ledger_id) == NUMBERED
    assert ledger_id in [each async for each in store.scan_ids()]
    await store.delete(ledger_id)
    with pytest.raises(Refused) as refused:
        await java.open(ledger_id)
    assert refused.value.code == NO_SUCH_LEDGER


async def test_deleted_by_the_other(java: JavaLedgers, store: BookKeeperLedgerStore) -> None:
    ours, _ = await closed(store, NUMBERED)
    await java.delete(ours)
    with pytest.raises(NotFound):
        await store.open(ours)
    writer = await java.create()
    await writer.add(*NUMBERED)
    await writer.close()
    await store.delete(writer.ledger_id)
    with pytest.raises(Refused) as refused:
        await java.open(writer.ledger_id)
    assert refused.value.code == NO_SUCH_LEDGER


async def test_metadata_of_ours_is_the_same_in_java(
    servers: Cluster, java: JavaLedgers, store: BookKeeperLedgerStore, meta: ZooKeeperMetaStore
) -> None:
    """As we wrote it when the ledger was made, and when it was closed."""
    ours = await new(store)
    path = node_path(servers, ours.ledger_id)
    raw = (await meta.get(path)).value
    told = await java.parse(ours.ledger_id, raw)
    assert told["raw"] == raw
    assert (told["state"], told["digest"], told["format"]) == ("OPEN", "CRC32C", 3)
    assert told["custom"] == {"who": b"ours".hex()}
    await ours.birth(b"one")
    await ours.appender.close()
    raw = (await meta.get(path)).value
    told = await java.parse(ours.ledger_id, raw)
    assert told["raw"] == raw
    assert (told["state"], told["last_entry"], told["bytes"]) == ("CLOSED", 0, 3)


@pytest.mark.parametrize(("writer", "digest"), [("java", "crc32c"), ("ours", "hmac")])
async def test_bookies_changed_long_after(
    servers: Cluster,
    java: JavaLedgers,
    store: BookKeeperLedgerStore,
    meta: ZooKeeperMetaStore,
    writer: str,
    digest: str,
) -> None:
    """A bookie is lost, its entries are copied to another, and the metadata of a closed ledger
    changes: under a reader of ours that had it open all the while."""
    if writer == "ours":
        ledger_id, _ = await closed(store, NUMBERED, digest=digest)
    else:
        theirs = await java.create("v3", digest=digest)
        await theirs.add(*NUMBERED)
        await theirs.close()
        ledger_id = theirs.ledger_id
    path = node_path(servers, ledger_id)
    before = metadata_of(servers, ledger_id, (await meta.get(path)).value)
    lost = servers.bookie(before.fragments[0].ensemble[0])
    async with reading(store, ledger_id) as reader:
        assert bytes((await reader.read(0, 0, bytes_max=1))[0]) == NUMBERED[0]
        lost.kill()
        try:
            await java.replace_bookie(ledger_id, lost.bookie_id)
            raw = (await meta.get(path)).value
            after = metadata_of(servers, ledger_id, raw)
            assert lost.bookie_id not in after.fragments[0].ensemble
            assert pack_ledger_metadata(after) == raw
            for other in before.fragments[0].ensemble[1:]:
                servers.bookie(other).freeze()  # what is left is the copy alone
            found: list[bytes] = []
            while len(found) < len(NUMBERED):
                found += map(bytes, await reader.read(len(found), 49, bytes_max=1 << 20))
            assert found == NUMBERED
        finally:
            for bookie in servers.bookies:
                bookie.thaw()
                bookie.start()
            for bookie in servers.bookies:
                bookie.wait_until_serving()
