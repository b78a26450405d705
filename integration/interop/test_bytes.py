"""Entries and ledger metadata, byte by byte: what the Java client made bookies and ZooKeeper keep
is what our codecs make of the same facts, and what they make is what Java reads.

Java adds one entry at a time here, so that the LAC in each head is known: the entry before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.limits import KIB, LEDGER_ENTRY_BYTES_MAX, MIB
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.raw_ledgers import connected, head_of, metadata_of, node_path, stored_entry
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_v2 import payload_bytes_max
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata
from integration.interop.java_ledgers import JavaLedgers, Seeded, as_read

DIGESTS = pytest.mark.parametrize("digest", ["crc32c", "crc32", "hmac", "dummy"])
WIRES = pytest.mark.parametrize("wire", ["v2", "v3"])
PASSWORDS = pytest.mark.parametrize("password", [b"", b"secret"], ids=["no password", "password"])
SIZES = [0, 1, KIB, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, MIB]


async def stored_metadata(
    servers: Cluster, meta: ZooKeeperMetaStore, ledger_id: int
) -> tuple[bytes, LedgerMetadata]:
    raw = (await meta.get(node_path(servers, ledger_id))).value
    return raw, metadata_of(servers, ledger_id, raw)


@WIRES
@PASSWORDS
@DIGESTS
async def test_entries_of_java_are_what_we_would_have_made(
    servers: Cluster,
    java: JavaLedgers,
    meta: ZooKeeperMetaStore,
    digest: str,
    password: bytes,
    wire: str,
) -> None:
    writer = await java.create(wire, digest=digest, password=password)
    payloads = [Seeded(f"{digest} {wire}", size) for size in SIZES]
    for number, payload in enumerate(payloads):
        assert await writer.add(payload) == (number, None)
    ours = EntryDigest(DigestType[digest.upper()], password)
    _, metadata = await stored_metadata(servers, meta, writer.ledger_id)
    assert (metadata.digest_type, metadata.password) == (ours.type, password)
    ledger_bytes = 0
    for entry_id, seeded in enumerate(payloads):
        raw = seeded.to_bytes()
        ledger_bytes += len(raw)
        made = ours.pack_head(writer.ledger_id, entry_id, entry_id - 1, ledger_bytes, [raw])
        for bookie_id in metadata.fragments[0].ensemble[:2]:
            kept = stored_entry(servers.bookie(bookie_id), writer.ledger_id, entry_id)
            if kept is not None:  # two of three had it when Java went on
                assert kept == made + raw
    await writer.close()


@WIRES
@PASSWORDS
@DIGESTS
async def test_java_reads_and_recovers_entries_that_our_codecs_made(
    servers: Cluster,
    java: JavaLedgers,
    meta: ZooKeeperMetaStore,
    digest: str,
    password: bytes,
    wire: str,
) -> None:
    """Java only makes the ledger's node here; what is in the ledger is ours."""
    empty = await java.create(wire, digest=digest, password=password)
    payloads = [Seeded(f"ours {digest}", size) for size in SIZES]
    _, metadata = await stored_metadata(servers, meta, empty.ledger_id)
    add_raw(servers, metadata, empty.ledger_id, payloads)
    async with java.reading(
        empty.ledger_id, wire, digest=digest, password=password, recovery=True
    ) as reader:
        assert reader.is_closed
        assert (reader.last, reader.bytes) == (len(SIZES) - 1, sum(SIZES))
        assert await reader.read(0, reader.last) == as_read(payloads)
        if wire == "v2":
            batch = await reader.read(0, reader.last, how="batch")
            assert batch == as_read(payloads)[: len(batch)]
            assert batch
    raw, metadata = await stored_metadata(servers, meta, empty.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert (metadata.last_entry_id, metadata.length_bytes) == (len(SIZES) - 1, sum(SIZES))
    assert pack_ledger_metadata(metadata) == raw
    await empty.forget()


def add_raw(
    servers: Cluster, metadata: LedgerMetadata, ledger_id: int, payloads: list[Seeded]
) -> None:
    """As a client that knows the answer to each entry before it sends the next."""
    assert metadata.digest_type is not None
    assert metadata.password is not None
    ours, key = EntryDigest(metadata.digest_type, metadata.password), master_key(metadata.password)
    for bookie_id in metadata.fragments[-1].ensemble:
        ledger_bytes = 0
        with connected(servers.bookie(bookie_id)) as bookie:
            for entry_id, payload in enumerate(map(Seeded.to_bytes, payloads)):
                ledger_bytes += len(payload)
                head = ours.pack_head(ledger_id, entry_id, entry_id - 1, ledger_bytes, [payload])
                assert bookie.add(head, payload, key=key).answer is Answer.OK


async def test_javas_metadata_is_written_back_as_it_was(
    servers: Cluster, java: JavaLedgers, meta: ZooKeeperMetaStore
) -> None:
    custom = {"application": b"dlog", "empty": b"", "bytes": bytes(range(256))}
    writer = await java.create(password=b"secret", custom=custom, digest="hmac", ack_quorum=3)
    raw, metadata = await stored_metadata(servers, meta, writer.ledger_id)
    assert pack_ledger_metadata(metadata) == raw
    assert {pair.key: pair.value for pair in metadata.custom} == custom
    assert (metadata.write_quorum, metadata.ack_quorum) == (3, 3)
    await writer.add(b"one", b"two")
    told = await writer.close()
    raw, metadata = await stored_metadata(servers, meta, writer.ledger_id)
    assert pack_ledger_metadata(metadata) == raw
    assert told["state"] == metadata.state.name == "CLOSED"
    assert (told["last_entry"], told["bytes"]) == (metadata.last_entry_id, metadata.length_bytes)


@pytest.mark.parametrize("state", LedgerState)
async def test_our_metadata_is_the_same_in_java(java: JavaLedgers, state: LedgerState) -> None:
    """Every field at once, also those that we never write ourselves."""
    closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        3,
        3,
        2,
        (Fragment(0, ("b-1", "b-2", "b-3")), Fragment(70_000, ("b-1", "10.0.0.4:3181", "b-3"))),
        state=state,
        last_entry_id=(1 << 40) + 7 if closed else -1,
        length_bytes=1 << 50 if closed else 0,
        digest_type=DigestType.CRC32C,
        password=b"\x00secret\xff",
        custom=(CustomPair("log", "Größe".encode()),),
        ctime_ms=1_700_000_000_000,
        creator_token=0x1122334455667788,
    )
    raw = pack_ledger_metadata(metadata)
    told = await java.parse(1 << 33, raw)
    assert told["raw"] == raw
    assert told["state"] == state.name
    assert bytes.fromhex(told["password"]) == metadata.password
    assert told["last_entry"] == metadata.last_entry_id
    assert told["bytes"] == metadata.length_bytes
    assert told["digest"] == "CRC32C"
    assert told["fragments"] == {
        str(each.first_entry_id): list(each.ensemble) for each in metadata.fragments
    }
    assert told["custom"] == {"log": "Größe".encode().hex()}


@pytest.mark.parametrize("fields", ["custom", "ctime", "token", "none"])
async def test_fields_that_may_be_absent(java: JavaLedgers, fields: str) -> None:
    metadata = LedgerMetadata(
        2,
        2,
        1,
        (Fragment(0, ("b-1", "b-2")),),
        digest_type=DigestType.DUMMY,
        password=b"",
        custom=(CustomPair("key", b""),) if fields == "custom" else (),
        ctime_ms=1 if fields == "ctime" else None,
        creator_token=1 if fields == "token" else None,
    )
    raw = pack_ledger_metadata(metadata)
    told = await java.parse(1, raw)
    if metadata.creator_token is None:  # Java always writes one
        metadata = replace(metadata, creator_token=0)
    assert told["raw"] == pack_ledger_metadata(metadata)


@DIGESTS
async def test_the_largest_entry_is_read_by_java(
    servers: Cluster, java: JavaLedgers, meta: ZooKeeperMetaStore, digest: str
) -> None:
    """On both wires, alone and in batches: that is why the bound is where it is."""
    payload = Seeded("large", LEDGER_ENTRY_BYTES_MAX)
    assert payload.size < payload_bytes_max(20)
    ledger = await java.create(digest=digest)
    _, metadata = await stored_metadata(servers, meta, ledger.ledger_id)
    add_raw(servers, metadata, ledger.ledger_id, [payload, Seeded("small", 1)])
    for wire in ("v2", "v3"):
        async with java.reading(ledger.ledger_id, wire, digest=digest, recovery=True) as reader:
            assert await reader.read(0, 1) == as_read([payload, Seeded("small", 1)])
            if wire == "v2":
                batch = await reader.read(0, 1, how="batch")  # 4.18 stops after the first
                assert batch == as_read([payload, Seeded("small", 1)])[: len(batch)]
                assert batch
    await ledger.forget()


async def test_an_entry_of_java_beyond_our_bound(
    servers: Cluster, java: JavaLedgers, meta: ZooKeeperMetaStore
) -> None:
    """Java may write what we would not; bookies give it back to a v2 read."""
    size = LEDGER_ENTRY_BYTES_MAX + KIB
    writer = await java.create("v2")
    assert await writer.add(Seeded("beyond", size)) == (0, None)
    _, metadata = await stored_metadata(servers, meta, writer.ledger_id)
    found = [
        stored_entry(servers.bookie(bookie_id), writer.ledger_id, 0)
        for bookie_id in metadata.fragments[0].ensemble
    ]
    kept = next(each for each in found if each is not None)
    ours = EntryDigest(DigestType.CRC32C, b"")
    entry = ours.verify(kept, ledger_id=writer.ledger_id, entry_id=0)
    assert bytes(entry.payload) == Seeded("beyond", size).to_bytes()
    assert head_of(kept) == (writer.ledger_id, 0, -1, size)
    await writer.close()


@pytest.mark.parametrize("ledger_id", [(1 << 31) - 2, (1 << 31) - 1, (1 << 32) + 5, (1 << 62) + 9])
async def test_ids_of_sixty_four_bits(
    servers: Cluster, java: JavaLedgers, meta: ZooKeeperMetaStore, ledger_id: int
) -> None:
    """Where the node of an id stands, and an entry that says so."""
    writer = await java.create(ledger_id=ledger_id)
    assert writer.ledger_id == ledger_id
    assert await writer.add(b"far out", first=0) == (0, None)
    _, metadata = await stored_metadata(servers, meta, ledger_id)
    found = [
        stored_entry(servers.bookie(bookie_id), ledger_id, 0)
        for bookie_id in metadata.fragments[0].ensemble
    ]
    head = EntryDigest(DigestType.CRC32C, b"").pack_head(ledger_id, 0, -1, 7, [b"far out"])
    assert found.count(head + b"far out") >= 2
    await writer.close()
    await java.delete(ledger_id)
