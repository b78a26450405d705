"""Who is said to write a log, when ZooKeeper gave up the session of a writer that is well."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.testing.cluster import Cluster
from dlog.writer import presence
from integration.bookkeeper.fault_tools import come_true
from integration.zookeeper_tools import end_session


async def test_a_writer_that_outlives_its_session_is_present_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "CHECK_S", 0.05)
    url = f"zk://{cluster.zookeeper.hosts}/presence?ledgers={cluster.ledgers_root}"
    async with aio.connect(url) as client, aio.connect(url) as other:
        log = await client.open_writer("log", owner="ada")
        await log.append(b"1")
        stores: Any = log._engine._stores
        await end_session(stores.meta.inner)

        async def is_present() -> bool:
            try:
                await stores.meta.get(log._engine._presence_path)
            except dlog.NotFound:
                return False
            return True

        async def is_known_again() -> bool:
            session = log._engine._presence._session
            return not session.lost.is_set() and await is_present()

        await come_true(is_known_again, "the writer is present again")
        with pytest.raises(dlog.Conflict, match="ada"):
            await other.open_writer("log", takeover="if_dead")
        await log.append(b"2")
        await log.close()
        assert not await is_present()
