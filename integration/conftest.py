"""Real servers for tests, started once per run and only if a test asks for them.

A test that breaks a server takes one of its own (`own_zookeeper`); the shared ones are left as they
were found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.errors import Unavailable
from dlog.testing.cluster import Cluster, ZooKeeper, class_path, scratch_directory, why_not

HERE = Path(__file__).parent
FIRST_START_S = 700  # the limit of a test includes its servers' start and, once, Maven's downloads


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(FIRST_START_S))


@pytest.fixture(scope="session")
def jars() -> str:
    """The class path of the servers, or a skip that says what is missing."""
    missing = why_not()
    if missing is not None:
        pytest.skip(missing)
    try:
        return class_path()
    except Unavailable as error:  # Maven reached no repository
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def cluster(jars: str) -> Iterator[Cluster]:
    """ZooKeeper and four bookies."""
    with Cluster() as started:
        yield started


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
