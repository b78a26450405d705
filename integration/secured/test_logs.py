"""Whole logs on a cluster with everything on, and who is kept out of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kazoo.client import KazooClient

import dlog
from dlog.aio import Client, connect
from dlog.errors import AuthError, Fenced
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.conformance.meta_tools import until
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from dlog.wire.ledger_paths import Manager, ledger_path
from integration.secured.tools import SECRETS, Secured, filled, read_all

HMAC = dlog.LogOptions(segment_bytes=4096, digest="hmac")


async def test_whole_logs_on_a_secured_cluster(client: Client, secured: Secured) -> None:
    await filled(client, "whole")
    wanted = [b"%d" % number * 100 for number in range(50)]
    assert await read_all(client, "whole") == wanted
    async with client.open_writer("whole") as old:
        await old.append(b"old")
        async with connect(secured.url) as other, other.open_writer("whole") as new:
            await new.append(b"new")
            with pytest.raises(Fenced):
                await old.append(b"zombie")
    assert await read_all(client, "whole") == [*wanted, b"old", b"new"]
    await client.admin.remove("whole")


async def test_who_has_not_the_credentials_has_no_log(
    secured: Secured, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(client, "closed")
    monkeypatch.setenv("DLOG_ZK_AUTH", "ben:guessed")
    async with connect(secured.of("stranger")) as stranger:
        with pytest.raises(AuthError):
            await read_all(stranger, "closed")
        with pytest.raises(AuthError):
            await stranger.open_writer("closed")
    monkeypatch.setenv("DLOG_ZK_AUTH", SECRETS["DLOG_ZK_AUTH"])
    monkeypatch.setenv("DLOG_PASSWORD", "another")
    async with connect(secured.url) as stranger:
        with pytest.raises(AuthError, match="another password"):
            await read_all(stranger, "closed")


async def gives_up(cluster: Cluster, times: int) -> None:
    """Until each bookie has given up so many more rounds of its garbage collection."""

    def count(bookie: Bookie) -> int:
        return bookie.log_path.read_text("utf-8").count("when iterating over the metadata")

    before = {bookie.bookie_id: count(bookie) for bookie in cluster.bookies}

    async def all_have() -> bool:
        return all(count(b) >= before[b.bookie_id] + times for b in cluster.bookies)

    await until(all_have, "garbage collection gave up")


async def test_bookies_that_may_not_read_our_nodes_keep_our_entries(
    secured: Secured, client: Client
) -> None:
    """Their garbage collection looks for ledgers that are not in the metadata any more. Ours are
    hidden from bookies that have other credentials, and that must not look like a deletion: they
    give the whole round up. (So they need to be let in; see the how-to.)"""
    await filled(client, "kept")
    await gives_up(secured.cluster, 3)
    assert len(await read_all(client, "kept")) == 50


# --- Digests


def ledger_node(ledger_id: int) -> str:
    return "/ledgers" + ledger_path(Manager.HIERARCHICAL, ledger_id)


def claim_digest(raw: KazooClient, ledger_id: int, digest: DigestType) -> None:
    """What somebody does who may write ZooKeeper, and knows that HMAC's key is not needed then."""
    path = ledger_node(ledger_id)
    metadata = parse_ledger_metadata(raw.get(path)[0], where=path)
    assert metadata.digest_type is not digest
    raw.set(path, pack_ledger_metadata(replace(metadata, digest_type=digest)))


def claim_digest_of_log(raw: KazooClient, name: str, was: bytes, now: bytes) -> None:
    path = f"/dlog/logs/{name}"
    value = raw.get(path)[0]
    assert value.count(b'"digest":"%b"' % was) == 1
    raw.set(path, value.replace(b'"digest":"%b"' % was, b'"digest":"%b"' % now))


@pytest.mark.parametrize("claimed", [DigestType.CRC32C, DigestType.CRC32, DigestType.DUMMY])
async def test_a_digest_that_was_changed_in_a_ledgers_metadata_is_refused(
    secured: Secured, client: Client, raw: KazooClient, claimed: DigestType
) -> None:
    """Of a closed ledger, and of one that a takeover would recover."""
    name = f"changed-{claimed.name}"
    await filled(client, name, 5, HMAC)
    assert len(await read_all(client, name)) == 5
    (first,) = (await client.admin.describe(name)).segments
    async with connect(secured.url) as left, left.open_writer(name) as log:
        await log.append(b"open")
        last = (await client.admin.describe(name)).segments[-1]
        claim_digest(raw, last.ledger_id, claimed)
        with pytest.raises(AuthError, match="should have the digest hmac"):
            await client.open_writer(name)
        claim_digest(raw, last.ledger_id, DigestType.HMAC)
        assert (await client.admin.describe(name)).segments[-1].state == "open", "untouched"
        claim_digest(raw, first.ledger_id, claimed)
        with pytest.raises(AuthError, match="should have the digest hmac"):
            await read_all(client, name)
        claim_digest(raw, first.ledger_id, DigestType.HMAC)
        assert len(await read_all(client, name)) == 6


async def test_a_digest_that_was_changed_everywhere_is_refused_by_who_was_told_it(
    secured: Secured, client: Client, raw: KazooClient
) -> None:
    """In the list of the log and in its ledger: only the option knows better."""
    async with connect(secured.url, digest="hmac") as told:
        await filled(told, "everywhere", 5, HMAC)
        assert len(await read_all(told, "everywhere")) == 5
        async with told.open_writer("by-default"):
            assert (await told.admin.describe("by-default")).digest == "hmac"
        described = await told.admin.describe("everywhere")
        assert described.digest == "hmac"
        with pytest.raises(dlog.ConfigError, match="no logs but with digest='hmac'"):
            await told.admin.create("other", digest="crc32c")
    claim_digest_of_log(raw, "everywhere", b"hmac", b"crc32c")
    claim_digest(raw, described.segments[0].ledger_id, DigestType.CRC32C)
    with pytest.raises(dlog.Corrupt):  # it believes what it reads, and the digests are no CRCs
        await read_all(client, "everywhere")
    async with connect(secured.url, digest="hmac") as told:
        with pytest.raises(AuthError, match="should have the digest hmac"):
            await read_all(told, "everywhere")
        with pytest.raises(AuthError, match="only ledgers with the digest hmac"):
            await told.open_writer("everywhere")


async def test_a_mac_that_was_made_with_another_password_is_damage(
    secured: Secured, client: Client, raw: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's entries under our ledger's name: what a bookie could make, which knows the
    master key of the ledger and not its password."""
    await filled(client, "forged", 5, HMAC)
    (segment,) = (await client.admin.describe("forged")).segments
    path = ledger_node(segment.ledger_id)
    metadata = parse_ledger_metadata(raw.get(path)[0], where=path)
    raw.set(path, pack_ledger_metadata(replace(metadata, password=b"the true one")))
    monkeypatch.setenv("DLOG_PASSWORD", "the true one")
    async with connect(secured.url) as reader:
        with pytest.raises(dlog.Corrupt, match="bad digest"):
            await read_all(reader, "forged")
