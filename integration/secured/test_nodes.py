"""Whose the nodes are that we make: their maker's, and of who is let in by name; never the
world's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl_credential

from dlog import limits
from dlog.aio import connect
from dlog.errors import AuthError
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.meta.zookeeper_acl import acl_of
from integration.secured.tools import SMALL, Secured, filled, read_all, walk

GUEST = "guest:of the house"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """By path, the lists that new nodes were asked for with: also of those that are gone before
    anybody could look at them."""
    lists: dict[str, list[Any]] = {}
    real = KazooClient.create_async

    def create_async(self: Any, path: str, value: bytes, acl: Any = None, **how: Any) -> Any:
        lists[path] = acl
        return real(self, path, value, acl, **how)

    monkeypatch.setattr(KazooClient, "create_async", create_async)
    return lists


async def live(secured: Secured, url: str, **options: Any) -> None:
    """All that makes nodes: parents, the root, logs, pages of their history, presence, ledgers and
    the ids for them, a standby, a takeover, a removal and a rebirth."""
    async with connect(url, **options) as client:
        async with client.open_writer("audited", create=SMALL) as log:
            for number in range(6):
                await log.append(b"%d" % number)
                await log.rotate()
        assert (await client.admin.describe("audited")).pages
        async with client.open_standby("audited") as standby, connect(url, **options) as other:
            async with other.open_writer("audited") as log:
                await log.append(b"other")
            async with await standby.take_over() as taken:
                await taken.append(b"taken")
        await filled(client, "reborn", 3)
        await client.admin.remove("reborn")
        await filled(client, "reborn", 3)


@pytest.mark.parametrize("credentials", ["both", "a certificate", "a password"])
async def test_with_credentials_no_node_of_ours_is_open_to_the_world(
    secured: Secured,
    secrets: None,
    raw: KazooClient,
    asked: dict[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    credentials: str,
) -> None:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    before = set(await asyncio.to_thread(lambda: list(walk(raw))))
    root = f"deep/er-{credentials.partition(' ')[2] or 'both'}"
    url, owners = secured.at(root), {"ana", "CN=client"}
    if credentials == "a certificate":
        monkeypatch.delenv("DLOG_ZK_AUTH")
        owners = {"CN=client"}
    elif credentials == "a password":
        # The port without TLS: where there is no certificate.
        url = f"zk://{secured.cluster.zookeeper.hosts}/{root}"
        monkeypatch.delenv("DLOG_TLS_KEY_PASSPHRASE")
        monkeypatch.delenv("DLOG_BOOKIE_AUTH")
        owners = {"ana"}
    if credentials == "a password":
        async with connect(url) as client:
            await client.admin.create("audited")
    else:
        await live(secured, url)
    made = [path for path in walk(raw) if path not in before]
    lists = {path: raw.get_acls(path)[0] for path in made if raw.exists(path)}
    assert [path for path, acls in lists.items() if acls == OPEN_ACL_UNSAFE] == []
    anyone = [p for p, acls in lists.items() if any(acl.id.scheme == "world" for acl in acls)]
    assert anyone == []
    assert {acl.id.id.partition(":")[0] for acls in lists.values() for acl in acls} == owners
    assert asked
    assert [path for path, acl in asked.items() if acl != CREATOR_ALL_ACL] == []
    parts = [f"/{root}", "/audited"]
    if credentials != "a password":
        parts += ["/audited/pages/", "/audited/writer", "/ledgers/00", "/reborn"]
        assert any("/ledgers/idgen/" in path or "/ledgers/ID-" in path for path in asked), asked
        assert any("/audited/writer/" in path for path in asked)
    for part in parts:
        assert any(part in path for path in made), (part, made)
    stranger = KazooClient(secured.cluster.zookeeper.hosts)
    await asyncio.to_thread(stranger.start)
    try:
        for path in lists:
            with pytest.raises(NoAuthError):
                stranger.get(path)
    finally:
        await asyncio.to_thread(stranger.stop)
        await asyncio.to_thread(stranger.close)


async def test_others_may_do_what_they_are_let_in_for(
    secured: Secured, secrets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who reads only: the list of a log cannot be changed by it, so it never becomes a
    writer."""
    guest = make_digest_acl_credential(*GUEST.split(":"))
    async with connect(secured.at("shared"), zk_acl=f"digest:{guest}:r") as owner:
        await filled(owner, "guarded", 5)
        monkeypatch.setenv("DLOG_ZK_AUTH", GUEST)
        async with connect(secured.of("guest", "shared")) as reader:
            assert len(await read_all(reader, "guarded")) == 5
            with pytest.raises(AuthError, match="no permission"):
                await reader.open_writer("guarded")
            with pytest.raises(AuthError, match="no permission"):
                await reader.admin.remove("guarded")
        monkeypatch.setenv("DLOG_ZK_AUTH", "nobody:else")
        async with connect(secured.of("nobody", "shared")) as stranger:
            with pytest.raises(AuthError, match="no permission"):
                await read_all(stranger, "guarded")
        async with owner.open_writer("guarded") as log:
            await log.append(b"still ours")


async def test_nodes_are_everybodys_only_if_that_is_said(
    secured: Secured, secrets: None, raw: KazooClient
) -> None:
    async with connect(secured.at("everybodys"), unsafe_open_nodes=True) as client:
        await filled(client, "open", 3)
    made = [path for path in walk(raw, "/everybodys") if path != "/everybodys"]
    assert {tuple(raw.get_acls(path)[0]) for path in made} == {tuple(OPEN_ACL_UNSAFE)}


async def test_who_comes_with_a_certificate_that_nobody_asked_for_owns_nothing(
    secured: Secured,
) -> None:
    """ZooKeeper knows a certificate only by asking for one. Where it does not, as on its plain
    port, the nodes would have no owner, and are not made."""
    store = ZooKeeperMetaStore(secured.cluster.zookeeper.hosts)
    store._acl = acl_of(has_credentials=True, others=None, unsafe_open=False)
    try:
        with pytest.raises(AuthError, match="does not know who we are"):
            await store.create("/nobodys", b"")
    finally:
        await store.close()
