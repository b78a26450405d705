"""`dlog doctor` on a real cluster: one that is well, and one after the other of what can be wrong
with it. It says what, in bounded time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from kazoo.client import KazooClient

import dlog
from dlog import aio
from dlog.clock import SystemClock
from dlog.findings import Finding, State
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.meta.zookeeper_examine import examine
from dlog.testing.cluster import Cluster, JavaProcess, ZooKeeper
from dlog.testing.conformance.meta_tools import until
from integration.bookkeeper.fault_tools import pause
from integration.conftest import OwnCluster
from integration.zookeeper_tools import raw
from tests.pace import Deadline, within

BOUND_S = 30.0  # all of it, on a busy machine
PATIENCE_S = 60.0

Found = dict[str, Finding]


async def examined(url: str) -> Found:
    async with aio.connect(url) as client:
        begin_s = time.monotonic()
        found = await client.admin.examine()
        assert within(time.monotonic() - begin_s, BOUND_S)
    assert len({each.check for each in found}) == len(found), "each fact has a name of its own"
    return {each.check: each for each in found}


def in_state(found: Found, state: State) -> set[str]:
    return {check for check, each in found.items() if each.state is state}


def doctor(url: str, expect: int) -> Found:
    """The command itself."""
    done = subprocess.run(
        [sys.executable, "-m", "dlog", "doctor", "-o", "json", "--url", url],
        env={key: value for key, value in os.environ.items() if not key.startswith("DLOG")},
        capture_output=True,
        text=True,
        timeout=2 * BOUND_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (expect, ""), done
    each = [json.loads(line) for line in done.stdout.splitlines()]
    return {e["check"]: Finding(e["check"], State(e["state"]), e["told"]) for e in each}


def walk(zk: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in zk.get_children(path):
        yield from walk(zk, f"{path.rstrip('/')}/{name}")


async def a_log(url: str, name: str) -> None:
    async with aio.connect(url) as client, client.open_writer(name) as log:
        await log.append(b"x")


# --- A cluster that is well


async def test_a_cluster_without_logs_is_well_and_stays_without(cluster: Cluster) -> None:
    url = cluster.url.replace("/dlog?", "/doctor-nothing?")
    before = await raw(cluster.zookeeper.hosts, lambda zk: set(walk(zk, "/")))
    found = await examined(url)
    assert in_state(found, State.BAD) == in_state(found, State.WARNING) == set()
    assert "none are kept at /doctor-nothing" in found["logs"].told
    assert "there is no node /doctor-nothing yet" in found["clock"].told
    assert await raw(cluster.zookeeper.hosts, lambda zk: set(walk(zk, "/"))) == before


async def test_a_cluster_that_is_well(cluster: Cluster) -> None:
    url = cluster.url.replace("/dlog?", "/doctor-well?")
    await a_log(url, "orders")
    before = await raw(cluster.zookeeper.hosts, lambda zk: set(walk(zk, "/")))
    found = await asyncio.to_thread(doctor, url, 0)
    assert await raw(cluster.zookeeper.hosts, lambda zk: set(walk(zk, "/"))) == before
    assert in_state(found, State.WARNING) == set()
    server = found[f"zookeeper {cluster.zookeeper.hosts}"]
    assert server.state is State.FINE
    assert server.told.startswith("version 3.")
    assert found["clock"].state is State.FINE
    for bookie in cluster.bookies:
        told = found[f"bookie {bookie.bookie_id}"].told
        assert f"127.0.0.1:{bookie.port}, writable, answers in" in told
        assert "GiB free" in told
    assert found["logs"].told == "1 logs, format 1"
    assert found["quorums"].state is State.FINE
    assert "4.17 or later" in found["bookie versions"].told
    assert "instance " in found["bookkeeper"].told
    # Nothing is secured here, and nobody but this machine can reach it.
    for check in ("zookeeper tls", "zookeeper auth", "bookie tls", "bookie auth"):
        assert found[check].state is State.NOTE, check
    assert "anybody may change /doctor-well" in found["log nodes"].told
    assert "L" in found["ledger nodes"].told
    assert "1 ledgers looked at" in found["ledger passwords"].told


async def test_clocks_that_differ_are_said(zookeeper: ZooKeeper) -> None:
    class Shifted(SystemClock):
        def wall_us(self) -> int:
            return super().wall_us() + 5_000_000

    store = ZooKeeperMetaStore(zookeeper.hosts)
    await store.open()
    found = await examine(
        zookeeper.hosts,
        "/",
        lambda hosts: store._new_link(lambda: None, hosts),
        None,
        owns_nodes=False,
        clock=Shifted(),
    )
    await store.close()
    (clock,) = (each for each in found if each.check == "clock")
    assert clock.state is State.WARNING
    assert "ms behind this machine's" in clock.told
    assert 4_000 < int(clock.told.split(" is ")[1].split(" ms")[0]) < 6_000


async def test_an_address_that_leads_nowhere_is_a_warning(cluster: Cluster) -> None:
    hosts = cluster.zookeeper.hosts
    found = await examined(f"zk://127.0.0.1:1,{hosts}/doctor-well")
    assert in_state(found, State.WARNING) == {"zookeeper 127.0.0.1:1"}
    assert found["zookeeper"].told.startswith("1 of 2 addresses serve")


async def test_another_root_of_bookkeeper_has_no_cluster(cluster: Cluster) -> None:
    found = await asyncio.to_thread(
        doctor, f"zk://{cluster.zookeeper.hosts}/doctor-well?ledgers=/nowhere", 1
    )
    assert in_state(found, State.BAD) == {"bookkeeper"}
    assert "/nowhere (ledgers=)" in found["bookkeeper"].told


# --- What can be wrong


@asynccontextmanager
async def frozen(server: JavaProcess) -> AsyncIterator[None]:
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@asynccontextmanager
async def killed(server: JavaProcess) -> AsyncIterator[None]:
    server.kill()
    try:
        yield
    finally:
        server.start()
        await asyncio.to_thread(server.wait_until_serving)


async def well(own_cluster: OwnCluster) -> Cluster:
    """Four bookies, a log, and nothing to be said against them."""
    cluster = own_cluster(bookies=4)
    await eventually(lambda: examined(cluster.url), lambda found: not in_state(found, State.BAD))
    await a_log(cluster.url, "orders")
    return cluster


async def eventually(look: Callable[[], Awaitable[Found]], is_so: Callable[[Found], bool]) -> Found:
    """What is found once it is so. On a busy machine a bookie may lose its session for a moment."""
    deadline = Deadline(PATIENCE_S)
    while not is_so(found := await look()):
        assert not deadline.passed(), found
        await pause(0.1)
    return found


async def test_a_read_only_bookie(own_cluster: OwnCluster) -> None:
    cluster = await well(own_cluster)
    bookie = cluster.bookies[0]
    check = f"bookie {bookie.bookie_id}"
    bookie.terminate()
    bookie.start_read_only()
    try:
        await asyncio.to_thread(bookie.wait_until_serving)
        found = await eventually(
            lambda: examined(cluster.url),
            lambda found: in_state(found, State.WARNING) == {check, "quorums"},
        )
        assert "read-only" in found[check].told
        assert "none to spare" in found["quorums"].told
    finally:
        bookie.terminate()
        bookie.start_writable()
        await asyncio.to_thread(bookie.wait_until_serving)


async def test_one_bookie_is_frozen_and_another_dead(own_cluster: OwnCluster) -> None:
    cluster = await well(own_cluster)
    one, two, *_ = cluster.bookies

    async def is_forgotten() -> bool:
        return not two.is_registered()

    async with killed(two):
        await until(is_forgotten, "the registration of a bookie that was killed ends")
        async with frozen(one):

            def is_seen(found: Found) -> bool:
                return "1 too few" in found["quorums"].told

            await eventually(lambda: examined(cluster.url), is_seen)
            found = await eventually(lambda: asyncio.to_thread(doctor, cluster.url, 1), is_seen)
    assert in_state(found, State.WARNING) == {f"bookie {each.bookie_id}" for each in (one, two)}
    assert "not registered" in found[f"bookie {two.bookie_id}"].told
    told = found[f"bookie {one.bookie_id}"].told
    assert "answers nothing" in told or "not registered" in told  # its session may have ended
    assert in_state(found, State.BAD) == {"quorums"}
    await eventually(
        lambda: examined(cluster.url), lambda found: not in_state(found, State.WARNING)
    )


@pytest.mark.parametrize("way", [frozen, killed])
async def test_zookeeper_is_away(own_cluster: OwnCluster, way: object) -> None:
    cluster = await well(own_cluster)
    assert callable(way)
    async with way(cluster.zookeeper):
        found = await asyncio.to_thread(doctor, cluster.url, 1)
    assert in_state(found, State.BAD) == {"zookeeper", "logs"}
    told = found[f"zookeeper {cluster.zookeeper.hosts}"].told
    assert ("answers none" if way is frozen else "Connection refused") in told


async def test_too_few_bookies_for_what_a_log_wants(cluster: Cluster) -> None:
    """Five, of which there are four; no default says so, but a log that was made."""
    url = cluster.url.replace("/dlog?", "/doctor-wide?")
    async with aio.connect(url) as client:
        await client.admin.create("wide", ensemble=5, write_quorum=5, ack_quorum=3)
    found = await examined(url)
    assert in_state(found, State.BAD) == {"quorums"}
    assert "a ledger has 5" in found["quorums"].told


def test_the_sync_admin_has_it_as_well(cluster: Cluster) -> None:
    with dlog.connect(cluster.url) as client:
        found = client.admin.examine()
    assert {each.check for each in found} > {"zookeeper", "quorums", "bookie versions"}
