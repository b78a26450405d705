"""What the doctor finds on a cluster that has everything on: nothing; and what it says where
certificates, names and passwords are wrong, or nodes were opened to the world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from dlog.aio import connect
from dlog.findings import Finding, State
from dlog.testing.cluster import Cluster
from dlog.testing.cluster.authority import Authority
from dlog.testing.cluster.secure import SASL_SETTINGS, bookie_tls, bookie_users, zookeeper_tls
from integration.zookeeper_tools import raw_client

BOOKIE_USER, BOOKIE_PASSWORD = "bookkeeper-doctor", "of-bookies"
SECRETS = {
    "DLOG_PASSWORD": "of-ledgers",
    "DLOG_ZK_AUTH": "ana:of-zookeeper",
    "DLOG_BOOKIE_AUTH": f"{BOOKIE_USER}:{BOOKIE_PASSWORD}",
}
CALM = (State.FINE, State.NOTE)


@dataclass
class Place:
    cluster: Cluster
    authority: Authority

    def url(self, root: str, who: str = "client") -> str:
        """As one who has a certificate of this name, which is a name for ZooKeeper, too."""
        both = self.authority.directory / f"{who}.both"
        if not both.exists():
            self.authority.issue(who)
        hosts = self.cluster.zookeeper.secure_hosts
        return f"zk://{hosts}/{root}?tls=required&tls_ca={self.authority.ca_file}&tls_cert={both}"


@pytest.fixture(scope="module")
def place(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("authority")
    authority = Authority(directory)
    settings = {
        **bookie_tls(authority.issue("bookie"), authority.ca_file, wants_certificate=True),
        **SASL_SETTINGS,
    }
    users = bookie_users({BOOKIE_USER: BOOKIE_PASSWORD}, directory / "jaas.conf")
    tls = zookeeper_tls(authority.issue("zookeeper"), authority.ca_file, wants_certificate=True)
    with Cluster(bookies=3, settings=settings, properties=users, zookeeper_tls=tls) as cluster:
        yield Place(cluster, authority)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def ana(place: Place) -> Iterator[KazooClient]:
    """Through ZooKeeper's plain port."""
    with raw_client(place.cluster.zookeeper.hosts) as zk:
        zk.add_auth("digest", SECRETS["DLOG_ZK_AUTH"])
        yield zk


async def a_log(url: str, name: str) -> int:
    """Its ledger."""
    async with connect(url) as client:
        async with client.open_writer(name) as log:
            await log.append(b"x")
        (segment,) = await client.admin.segments(name)
        return segment.ledger_id


async def examined(url: str) -> dict[str, Finding]:
    async with connect(url) as client:
        found = await client.admin.examine()
    assert not any(value.rpartition(":")[2] in str(found) for value in SECRETS.values())
    return {each.check: each for each in found}


async def test_a_secured_cluster_is_well(place: Place) -> None:
    url = place.url("well")
    await a_log(url, "orders")
    found = await examined(url)
    # Three bookies are what a ledger has: the only thing to be said against it.
    assert [f.check for f in found.values() if f.state not in CALM] == ["quorums"]
    for what in ("zookeeper", "bookie"):
        assert found[f"{what} tls"].told == "required"
        assert found[f"{what} auth"].state is State.FINE
    assert "more days" in found["zookeeper certificate"].told
    assert "more days" in found["bookie certificates"].told
    files = [check.rpartition("/")[2] for check in found if check.startswith("certificate ")]
    assert files == ["ca.pem", "client.both"]
    assert "none open to the world" in found["log nodes"].told
    assert "none open to the world" in found["ledger nodes"].told
    assert "whoever may read ledger nodes" in found["ledger passwords"].told


async def test_nodes_that_somebody_opened_are_named(place: Place, ana: KazooClient) -> None:
    url = place.url("opened")
    ledger_id = await a_log(url, "orders")
    at = "/opened/logs/orders"
    ana.set_acls(at, [*ana.get_acls(at)[0], make_acl("world", "anyone", read=True)])
    found = await examined(url)
    assert found["log nodes"].state is State.WARNING
    assert f"anybody may read {at} (1 of " in found["log nodes"].told
    at = f"/ledgers/00/0000/L{ledger_id:04}"
    ana.set_acls(at, OPEN_ACL_UNSAFE)
    found = await examined(url)
    assert found["ledger nodes"].state is State.BAD
    assert f"anybody may change {at} (1 of " in found["ledger nodes"].told


async def test_credentials_that_are_wrong(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    url = place.url("refused")
    await a_log(url, "orders")
    monkeypatch.setenv("DLOG_ZK_AUTH", "ben:guessed")
    found = await examined(place.url("refused", who="stranger"))
    assert found["logs"].state is State.BAD
    assert "other credentials (zk_auth, tls_cert)" in found["logs"].told
    assert found["bookie bookie-1"].state is State.FINE, "who may not see logs may see bookies"
    monkeypatch.setenv("DLOG_ZK_AUTH", SECRETS["DLOG_ZK_AUTH"])
    monkeypatch.setenv("DLOG_PASSWORD", "another")
    monkeypatch.setenv("DLOG_BOOKIE_AUTH", f"{BOOKIE_USER}:guessed")
    found = await examined(url)
    assert found["ledger passwords"].state is State.BAD
    assert "has another password" in found["ledger passwords"].told
    assert "may know no such user" in found["bookie bookie-1"].told
    assert found["quorums"].state is State.BAD
    monkeypatch.delenv("DLOG_BOOKIE_AUTH")
    found = await examined(url)
    assert "bookie_auth" in found["bookie bookie-1"].told
    assert found["bookie auth"].told == "bookie_auth is not given; no bookie serves us"


async def test_tls_that_is_wrong(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DLOG_BOOKIE_AUTH")  # it wants TLS
    hosts = place.cluster.zookeeper.secure_hosts
    with_ca = f"zk://{hosts}/dlog?tls=required&tls_ca="
    for url, told in (
        (f"zk://{hosts}/dlog", "or wants TLS"),
        (f"{with_ca}{place.authority.ca_file}", "ended the TLS handshake"),
        (f"{with_ca}{Authority(tmp_path).ca_file}", "did not prove who it is"),
    ):
        found = await examined(url)
        assert found["zookeeper"].state is State.BAD
        assert told in found[f"zookeeper {hosts}"].told


async def test_tls_that_is_offered_and_not_used(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DLOG_BOOKIE_AUTH")
    found = await examined(f"zk://{place.cluster.zookeeper.hosts}/dlog")
    assert found["bookie tls"].state is State.NOTE, "all of it is this machine"
    assert "offered by bookie-1, bookie-2, bookie-3" in found["bookie tls"].told
