"""Real servers for tests, started once per run and only if a test asks for them.

A test that leaves a server as it found it takes a shared one (`cluster`, `zookeeper`); one that
breaks something for good takes its own (`own_cluster`, `own_zookeeper`). At no time are there more
than two sets of bookies: the shared one, and the one that the module at work has of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import Unavailable
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import (
    BOOKKEEPER_VERSIONS,
    Cluster,
    ZooKeeper,
    archive,
    class_path,
    scratch_directory,
    why_not_brought,
)
from dlog.testing.cluster.cluster import BOOKIES_DEFAULT
from tests.leftovers import logging_stays_as_it_was, no_thread_is_left

__all__ = ["logging_stays_as_it_was", "no_thread_is_left"]

HERE = Path(__file__).parent
TEST_S = 180  # includes the start of a cluster, which takes ten seconds on a busy machine

SESSION_MS = 2_000
MENDING_S = 20.0
USUAL = {"bookies": BOOKIES_DEFAULT}  # options of a cluster

OwnCluster = Callable[..., Cluster]
MakeStore = Callable[..., ZooKeeperMetaStore]


@pytest.hookimpl(trylast=True)  # what a test says of itself, or of its module, wins
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Maven may load for minutes, and servers run for what is kept of them, once: before the first
    test, so that it is on no test's time."""
    if session.config.option.collectonly:
        return
    if any(HERE in item.path.parents for item in session.items):
        for version in BOOKKEEPER_VERSIONS:
            if why_not_brought(version) is None:
                archive.make(version)


def or_skip(version: str) -> str:
    """The release, or a skip that says what is missing for it."""
    missing = why_not_brought(version)
    if missing is not None:
        pytest.skip(missing)
    return version


@pytest.fixture(scope="session")
def jars() -> str:
    """The class path of the servers, or a skip that says what is missing."""
    return class_path(or_skip(next(iter(BOOKKEEPER_VERSIONS))))


def each_release() -> list[Any]:
    """The releases of BookKeeper as parameters: the newest in `make test`, each in `make full`."""
    newest, *others = BOOKKEEPER_VERSIONS
    full = pytest.mark.tier("full", seconds=10)  # alone it starts servers of that release
    return [newest, *(pytest.param(version, marks=full) for version in others)]


@pytest.fixture(scope="module", params=each_release())
def bookkeeper_version(request: pytest.FixtureRequest) -> str:
    """Each release of BookKeeper in turn; those that Maven cannot get are skipped by name."""
    return or_skip(str(request.param))


@pytest.fixture(scope="session")
def cluster(jars: str) -> Iterator[Cluster]:
    """ZooKeeper and four bookies, shared. Leave them running and writable.

    `cluster.zookeeper.hosts` and `cluster.ledgers_root` say where the metadata is; a test keeps its
    own nodes below a chroot or a name of its own."""
    with Cluster() as started:
        yield started


class BreakableCluster:
    """The one cluster of a worker whose servers tests may break. One without any options goes from
    module to module, mended; others end with their module, or when it asks for other options."""

    def __init__(self) -> None:
        self._ending = contextlib.ExitStack()
        self._options: dict[str, Any] | None = None
        self._cluster: Cluster | None = None
        self._module = ""

    def get(self, module: str, options: dict[str, Any], *, fresh: bool) -> Cluster:
        found = self._cluster
        usable = found is not None and not fresh and options == self._options
        if usable and module != self._module:
            assert found is not None
            usable = _mended(found, options)
        self._module = module
        if not usable:
            self.end()
            found = self._ending.enter_context(Cluster(**options))
            self._cluster, self._options = found, options
        assert found is not None
        return found

    def leave(self) -> None:
        """The module has ended."""
        if self._options != USUAL:
            self.end()

    def end(self) -> None:
        self._cluster = self._options = None
        self._ending.close()


def _mended(cluster: Cluster, options: dict[str, Any]) -> bool:
    """Whether every server serves again, the same ones as at the start and set up as then."""
    settings = options.get("settings", {})
    if len(cluster.bookies) != options["bookies"] or any(
        each.disk_bytes or each.settings != settings for each in cluster.bookies
    ):
        return False
    try:
        for server in cluster.servers:
            server.thaw()
        cluster.zookeeper.start()
        cluster.zookeeper.wait_until_serving(MENDING_S)
        for bookie in cluster.bookies:
            if not bookie.is_registered():  # read-only, or it gave up while ZooKeeper was away
                bookie.kill()
            bookie.start_writable()
        for bookie in cluster.bookies:
            bookie.wait_until_serving(MENDING_S)
    except Unavailable:
        return False
    return True


@pytest.fixture(scope="session")
def breakable_cluster(jars: str) -> Iterator[BreakableCluster]:
    made = BreakableCluster()
    yield made
    made.end()


@pytest.fixture(scope="module")
def own_cluster(
    breakable_cluster: BreakableCluster, request: pytest.FixtureRequest
) -> Iterator[OwnCluster]:
    """Makes clusters for one module, with the options of `Cluster`. The same options again give the
    same cluster, other options end it first: one at a time. `fresh=True` asks for a new one, for a
    test that cannot use what others left behind."""

    def make(*, fresh: bool = False, **options: Any) -> Cluster:
        return breakable_cluster.get(request.node.nodeid, USUAL | options, fresh=fresh)

    yield make
    breakable_cluster.leave()


@pytest.fixture(scope="session")
def zookeeper(jars: str) -> Iterator[ZooKeeper]:
    """ZooKeeper alone: for tests that need no bookies."""
    with Cluster(bookies=0) as started:
        yield started.zookeeper


@pytest.fixture
def own_zookeeper(jars: str) -> Iterator[ZooKeeper]:
    """One to be killed and frozen."""
    with scratch_directory() as directory:
        server = ZooKeeper(directory, jars)
        server.start()
        try:
            server.wait_until_serving()
            yield server
        finally:
            server.kill()
            server.release()


@pytest.fixture
async def make_store() -> AsyncIterator[MakeStore]:
    """Makes ZooKeeper stores that are closed at the end of the test, with short sessions."""
    made: list[ZooKeeperMetaStore] = []

    def make(hosts: str, timeout_ms: float = 10_000, **options: Any) -> ZooKeeperMetaStore:
        options.setdefault("session_timeout_ms", SESSION_MS)
        store = ZooKeeperMetaStore(hosts, timeout_ms=timeout_ms, **options)
        made.append(store)
        return store

    yield make
    await asyncio.gather(*(store.close() for store in made))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> str:
    """A chroot of the test's own."""
    return f"/{request.node.name}"
