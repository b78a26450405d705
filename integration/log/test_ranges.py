"""Ranges of one ledger are read from different bookies, each range from one."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.ledger.bookkeeper.entry_fetch import EntryFetch
from dlog.testing.cluster import Cluster


def test_a_range_has_one_bookie_and_its_neighbours_have_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"zk://{cluster.zookeeper.hosts}/ranges?ledgers={cluster.ledgers_root}"
    with dlog.open_writer("log", url=url, entry_bytes=16_384) as log:
        log.append_many([b"x" * 1000] * 6_000)
    homes: list[str | None] = []
    hedges = 0
    read = EntryFetch.read

    async def watched(self: EntryFetch, *args: Any, **options: Any) -> list[memoryview]:
        nonlocal hedges
        found = await read(self, *args, **options)
        homes.append(self._home)
        hedges += self.hedges
        return found

    with dlog.connect(url) as client:
        ranges = client.admin.plan_ranges("log", min_ranges=3)
        assert len(ranges) >= 3
        assert len({part.ledger_id for each in ranges for part in each.parts}) == 1
        monkeypatch.setattr(EntryFetch, "read", watched)
        by_range = []
        for each in ranges[:3]:
            homes.clear()
            assert sum(map(len, client.read_range(each))) == each.messages
            by_range.append(set(homes))
    if hedges:  # a bookie that was slow for a moment was overtaken, and lost its place
        assert len(set.union(*by_range)) >= 2
    else:
        assert [len(homes) for homes in by_range] == [1, 1, 1]
        assert len(set.union(*by_range)) == 3
