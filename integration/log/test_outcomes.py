"""The same on a real cluster: retries without guessing, under kill -9 of the writer; and of the
bookies below it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from tests.chaos.test_outcomes import retried, told_by
from tests.tiers import in_full

TOLD = os.environ.get("DLOG_CHAOS_KILLS")
KILLS = [int(TOLD)] if TOLD else in_full([4, 25], but=[4], seconds=20)

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(int(TOLD or 25) * 10 + 120),
    pytest.mark.parametrize("kills", KILLS),
]


@pytest.mark.parametrize("by", in_full(["numbers", "tails"], but=["numbers"], seconds=6))
async def test_nothing_is_lost_and_nothing_is_there_twice(
    by: str, kills: int, cluster: Cluster, tmp_path: Path
) -> None:
    url = f"zk://{cluster.zookeeper.hosts}/outcomes-{by}-{kills}?ledgers={cluster.ledgers_root}"
    tally = await asyncio.to_thread(retried, tmp_path, by=by, kills=kills, url=url)
    assert tally["sent"] > tally["messages"] > 0


async def test_nothing_is_lost_where_the_bookies_die_too(
    jars: str, kills: int, tmp_path: Path
) -> None:
    """Bookies of its own, one after the other."""
    tally = await asyncio.to_thread(told_by, tmp_path, "--cluster", by="numbers", kills=kills)
    assert tally["sent"] > tally["messages"] > 0
    assert tally["bookie_kills"] + tally["bookie_freezes"] > 0
