"""Streams and groups on a real cluster, as processes that are killed and frozen, while a bookie is
killed and started again, and ZooKeeper stands still for a second or two.

DLOG_CHAOS_SECONDS=600 python -m pytest integration/log/test_streams_chaos.py -s      longer
DLOG_CHAOS_SEED=abc …        the same draws again (servers take their own time, though)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.chance import SYSTEM_CHANCE
from integration.conftest import OwnCluster
from tests.chaos.streams.run import Run
from tests.chaos.streams.servers import BOOKIES, harm_of, url_of
from tests.chaos.test_streams_life import judged

SECONDS = max(30.0, float(os.environ.get("DLOG_CHAOS_SECONDS", "30")))
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(SECONDS * 2 + 400)]


@pytest.mark.tier("full", seconds=60)
async def test_streams_while_servers_are_harmed_too(
    own_cluster: OwnCluster, tmp_path: Path
) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    cluster = own_cluster(bookies=BOOKIES)
    run = Run(tmp_path, url_of(cluster, SEED), SEED)
    judged(await run.run(SECONDS, harm_of(cluster)))
