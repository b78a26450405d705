"""The secrets of the secured cluster, and what its tests do with logs and nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import dlog
from dlog.aio import Client
from dlog.testing.canaries import canary
from dlog.testing.cluster import Cluster
from dlog.testing.cluster.authority import Authority

# Each says where it belongs, so that one that shows says where it came from.
PASSWORD = canary("password")
ZK_PASSWORD = canary("zookeeper")
BOOKIE_PASSWORD = canary("bookie")
PASSPHRASE = canary("passphrase")
CANARIES = (PASSWORD, ZK_PASSWORD, BOOKIE_PASSWORD, PASSPHRASE)
BOOKIE_USER = "bookkeeper-tests"
SECRETS = {
    "DLOG_PASSWORD": PASSWORD,
    "DLOG_ZK_AUTH": f"ana:{ZK_PASSWORD}",
    "DLOG_BOOKIE_AUTH": f"{BOOKIE_USER}:{BOOKIE_PASSWORD}",
    "DLOG_TLS_KEY_PASSPHRASE": PASSPHRASE,
}
SMALL = dlog.LogOptions(segment_bytes=4096)


@dataclass
class Secured:
    cluster: Cluster
    authority: Authority
    hosts: str
    files: str  # of the client whom the cluster knows

    @property
    def url(self) -> str:
        return self.at("dlog")

    def at(self, root: str, *, hosts: str | None = None) -> str:
        return f"zk://{hosts or self.hosts}/{root}?tls=required&{self.files}"

    def of(self, name: str, root: str = "dlog") -> str:
        """With the certificate of somebody else, and no passphrase. To ZooKeeper a certificate is a
        name as well, and what we make is ours by it, too."""
        theirs = self.authority.issue(name).both_file
        ca_file = self.authority.ca_file
        return f"zk://{self.hosts}/{root}?tls=required&tls_ca={ca_file}&tls_cert={theirs}"


async def filled(
    client: Client, name: str, count: int = 50, create: dlog.LogOptions = SMALL
) -> None:
    async with client.open_writer(name, create=create) as log:
        for number in range(count):
            await log.append(b"%d" % number * 100)


async def read_all(client: Client, name: str) -> list[bytes]:
    async with client.open_reader(name) as log:
        return [bytes(message.value) async for message in log]


def walk(zk: KazooClient, path: str = "/") -> Iterator[str]:
    yield path
    try:
        names = zk.get_children(path)
    except NoNodeError:
        return  # it was of somebody who is gone
    for name in names:
        yield from walk(zk, f"{path.rstrip('/')}/{name}")
