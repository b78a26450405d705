"""Both lease stores keep the same contract, in memory and on disk: leases as nodes, and as logs."""

from __future__ import annotations

import inspect
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dlog import backends, uri
from dlog.chance import SYSTEM_CHANCE
from dlog.client import Client
from dlog.clock import SYSTEM_CLOCK
from dlog.effects import Procedure
from dlog.groups import presence
from dlog.groups.lease_driver import LeaseDriver
from dlog.groups.log_leases import LogLeases
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.places import GroupPlaces
from dlog.groups.store import LeaseStore
from dlog.groups.view import WorkerId
from dlog.testing.conformance import leases
from dlog.testing.conformance.leases import CHECKS

_worlds = itertools.count()


class OneMember:
    def __init__(self, member: WorkerId, store: LeaseStore, driver: LeaseDriver) -> None:
        self.id = member
        self.store = store
        self.driver = driver

    async def run(self, procedure: Procedure[Any]) -> Any:
        return await self.driver.run(procedure)


class LeaseBench:
    def __init__(self, url: str, kind: type[MetaLeases | LogLeases]) -> None:
        self._url = url
        self._kind = kind
        self.clients: list[Client] = []
        self.members: list[OneMember] = []

    async def member(self) -> OneMember:
        found = Client(uri.parse(self._url))
        self.clients.append(found)
        stores = await found._stores(create=True)
        places = GroupPlaces(stores.layout, "readers", "orders")
        driver = LeaseDriver(stores.meta, stores.ledgers, places, found)
        store = self._kind(places, SYSTEM_CHANCE, SYSTEM_CLOCK.wall_us)
        name = f"worker{len(self.members)}"
        member = OneMember(WorkerId(name, SYSTEM_CHANCE.token()), store, driver)
        self.members.append(member)
        return member


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file:{tmp_path / 'data'}"
    return f"memory:leases-{os.getpid()}-{next(_worlds)}"


@pytest.fixture(params=[MetaLeases, LogLeases])
async def bench(request: pytest.FixtureRequest, url: str) -> AsyncIterator[LeaseBench]:
    bench = LeaseBench(url, request.param)
    yield bench
    for member in bench.members:
        await member.driver.close()
    for each in bench.clients:
        await each.close()
    backends._memory_worlds.pop(url.partition(":")[2], None)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_leases(check: leases.Check, bench: LeaseBench) -> None:
    await check(bench)


def test_every_check_is_registered() -> None:
    written = {
        name
        for name, member in vars(leases).items()
        if inspect.iscoroutinefunction(member) and "bench" in inspect.signature(member).parameters
    }
    assert {each.__name__ for each in CHECKS} == written - {"join"}


@pytest.mark.parametrize("bench", [LogLeases], indirect=True)
async def test_a_log_that_is_opened_again_leaves_no_writer_behind(bench: LeaseBench) -> None:
    """Whoever lost a lease without a word, and has it again."""
    member = await bench.member()
    await member.run(presence.register(member.store.places, member.id, None))
    for _ in range(3):
        held = await member.run(member.store.claim("orders/0", member.id))
    assert list(member.driver._writers) == [("orders/0", held.lease.epoch)]
