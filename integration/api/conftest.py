"""`zk://` URLs for the tests of the APIs, each with a root of its own on the shared cluster."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.api.conftest import api, file_api, file_url, make_api, nothing_is_left

__all__ = ["api", "file_api", "file_url", "make_api", "nothing_is_left", "url"]

_roots = itertools.count()


@pytest.fixture
def url(cluster: Cluster, tmp_path: Path) -> str:
    zookeeper = cluster.zookeeper.hosts
    return f"zk://{zookeeper}/api-{next(_roots)}?ledgers={cluster.ledgers_root}"
