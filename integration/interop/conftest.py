"""Both sides on the same servers: of the newest release those that all tests share, of each other
one a cluster, and one JVM with the stock client of that release. They serve all tests of this
folder, so a test that stops a bookie starts it again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.cluster.jars import BOOKKEEPER_DEFAULT
from dlog.testing.cluster.java_program import why_not_compiled
from integration.conftest import each_release, or_skip
from integration.interop.java_ledgers import JavaLedgers

# A store with the given password, which has a ZooKeeper session and connections of its own.
MakeStore = Callable[..., Awaitable[BookKeeperLedgerStore]]


HERE = Path(__file__).parent
DIGESTS, WIRES = ("crc32c", "crc32", "hmac", "dummy"), ("v2", "v3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of all digests, by all wires, with and without a password, `make test` has each pair once."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if HERE in item.path.parents and {"digest", "wire", "password"} <= params.keys():
            number = DIGESTS.index(params["digest"]) + WIRES.index(params["wire"])
            if (number + bool(params["password"])) % 2:
                item.add_marker(pytest.mark.tier("full", seconds=0.5))


@pytest.fixture(scope="package", params=each_release())
def servers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """ZooKeeper and four bookies of one release."""
    version = str(request.param)
    if version == BOOKKEEPER_DEFAULT:
        yield request.getfixturevalue("cluster")
        return
    with Cluster(version=or_skip(version)) as started:
        yield started


@pytest.fixture(scope="package")
def java(servers: Cluster) -> Iterator[JavaLedgers]:
    """The stock client of the same release."""
    if missing := why_not_compiled():
        pytest.skip(missing)
    program = JavaLedgers(servers, servers.directory / "java")
    try:
        program.start()
        yield program
    finally:
        program.stop()


@pytest.fixture
async def meta(servers: Cluster) -> AsyncIterator[ZooKeeperMetaStore]:
    """Our way to ZooKeeper."""
    found = ZooKeeperMetaStore(servers.zookeeper.hosts, root=servers.ledgers_root)
    try:
        yield found
    finally:
        await found.close()


@pytest.fixture
async def make_store(servers: Cluster) -> AsyncIterator[MakeStore]:
    async with contextlib.AsyncExitStack() as ending:

        async def make(password: bytes = b"") -> BookKeeperLedgerStore:
            meta = ZooKeeperMetaStore(servers.zookeeper.hosts)
            ending.push_async_callback(meta.close)
            store = BookKeeperLedgerStore(
                meta,
                ledgers_root=servers.ledgers_root,
                password=password,
                unsafe_empty_password=True,  # as Java writes them in most tests
                unsafe_no_digest=True,
            )
            ending.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> BookKeeperLedgerStore:
    """Our side, with the password of most tests: none."""
    return await make_store()
