"""`zk://` URLs for the tests of the APIs, each with a root of its own on the shared cluster.

The synchronous face drives the same client from a thread. Every test of it runs on memory and files
in `make check`; on a cluster `make test` has the asyncio face, and `make full` both.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.api.conftest import api, file_api, file_url, make_api, nothing_is_left

__all__ = ["api", "file_api", "file_url", "make_api", "nothing_is_left", "url"]

_roots = itertools.count()
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and is_sync(item):
            item.add_marker(pytest.mark.tier("full", seconds=1.5))


def is_sync(item: pytest.Item) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return bool(params.get("make_api") == "sync")


@pytest.fixture
def url(cluster: Cluster, tmp_path: Path) -> str:
    zookeeper = cluster.zookeeper.hosts
    return f"zk://{zookeeper}/api-{next(_roots)}?ledgers={cluster.ledgers_root}"
