"""Both lease stores on a real ZooKeeper and stock bookies, under the same suite as everywhere. Each
check has a root of its own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from dlog.groups.log_leases import LogLeases
from dlog.groups.meta_leases import MetaLeases
from dlog.testing.cluster import Cluster
from dlog.testing.conformance.leases import CHECKS, Check
from tests.conformance.test_leases import LeaseBench

_roots = itertools.count()


@pytest.fixture(params=[MetaLeases, LogLeases])
async def lease_bench(
    request: pytest.FixtureRequest, cluster: Cluster
) -> AsyncIterator[LeaseBench]:
    url = cluster.url.replace("/dlog?", f"/leases-{next(_roots)}?")
    bench = LeaseBench(url, request.param)
    yield bench
    for member in bench.members:
        await member.driver.close()
    for each in bench.clients:
        await each.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_leases_on_a_cluster(check: Check, lease_bench: LeaseBench) -> None:
    await check(lease_bench)
