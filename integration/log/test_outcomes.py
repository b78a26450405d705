"""The same on a real cluster: retries without guessing, under kill -9 of the writer; and of the
bookies below it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.chaos.test_outcomes import retried, told_by

KILLS = int(os.environ.get("DLOG_CHAOS_KILLS", "15"))

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(KILLS * 10 + 120)]


@pytest.mark.parametrize("by", ["numbers", "tails"])
async def test_nothing_is_lost_and_nothing_is_there_twice(
    by: str, cluster: Cluster, tmp_path: Path
) -> None:
    url = f"zk://{cluster.zookeeper.hosts}/outcomes-{by}?ledgers={cluster.ledgers_root}"
    tally = await asyncio.to_thread(retried, tmp_path, by=by, kills=KILLS, url=url)
    assert tally["sent"] > tally["messages"] > 0


async def test_nothing_is_lost_where_the_bookies_die_too(jars: str, tmp_path: Path) -> None:
    """Bookies of its own, one after the other."""
    tally = await asyncio.to_thread(told_by, tmp_path, "--cluster", by="numbers", kills=KILLS)
    assert tally["sent"] > tally["messages"] > 0
    assert tally["bookie_kills"] + tally["bookie_freezes"] > 0
