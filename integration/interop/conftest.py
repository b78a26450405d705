"""Both sides on the same servers: for each release of BookKeeper a cluster, and one JVM with the
stock client of that release. They serve all tests of this folder, so a test that stops a bookie
starts it again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster, class_path, why_not
from dlog.testing.cluster.java_program import why_not_compiled
from integration.conftest import each_release
from integration.interop.java_ledgers import JavaLedgers

# A store with the given password, which has a ZooKeeper session and connections of its own.
MakeStore = Callable[..., Awaitable[BookKeeperLedgerStore]]


@pytest.fixture(scope="package", params=each_release())
def servers(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """ZooKeeper and four bookies of one release."""
    version = str(request.param)
    missing = why_not(version) or why_not_compiled()
    if missing is not None:
        pytest.skip(missing)
    try:
        class_path(version)
    except Unavailable as error:  # Maven has no such release, or reached no repository
        pytest.skip(error.message)
    with Cluster(version=version) as started:
        yield started


@pytest.fixture(scope="package")
def java(servers: Cluster) -> Iterator[JavaLedgers]:
    """The stock client of the same release."""
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
