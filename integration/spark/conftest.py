"""Spark on real servers: a root of its own for each test on the shared cluster."""

from __future__ import annotations

import itertools

import pytest

from dlog.testing.cluster import Cluster
from tests.spark.conftest import spark

__all__ = ["spark", "url"]

_roots = itertools.count()


@pytest.fixture
def url(cluster: Cluster) -> str:
    zookeeper = cluster.zookeeper.hosts
    return f"zk://{zookeeper}/spark-{next(_roots)}?ledgers={cluster.ledgers_root}"
