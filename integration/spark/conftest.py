"""Spark on real servers: a root of its own for each test on the shared cluster.

All that Spark does is proven over files in `make test`. What is named here is proven on bookies,
too, with what only bookies have; `make full` runs every one.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.spark.conftest import clients_of_the_driver_end, quick_start, spark

__all__ = ["clients_of_the_driver_end", "quick_start", "spark", "url"]

_roots = itertools.count()
HERE = Path(__file__).parent
IN_TEST = {
    "test_every_message_in_every_field",
    "test_the_open_ledger_of_a_writer_that_died",
    "test_a_bookie_dies_in_the_middle_of_a_job",
    "test_each_message_once_over_restarts_rotations_and_takeovers",
    "test_a_writer_that_lives_is_fenced",
    "test_every_copy_is_read",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.name not in IN_TEST:
            item.add_marker(pytest.mark.tier("full", seconds=8))


@pytest.fixture
def url(cluster: Cluster) -> str:
    zookeeper = cluster.zookeeper.hosts
    return f"zk://{zookeeper}/spark-{next(_roots)}?ledgers={cluster.ledgers_root}"
