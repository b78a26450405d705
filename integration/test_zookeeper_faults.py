"""The ZooKeeper store while its server is killed, frozen and cut off: what is refused is certain,
what may have happened says so, and everything ends in time."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import (
    ForkedHandle,
    LeaseLost,
    Outcome,
    Retry,
    Timeout,
    Unavailable,
)
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.meta.zookeeper_client import IN_FLIGHT_MAX, Stage
from dlog.testing.cluster import ZooKeeper
from dlog.testing.conformance.meta_tools import exists, refused, until
from dlog.testing.faulty_proxy import FaultyProxy
from integration.conftest import MakeStore
from integration.zookeeper_tools import end_session, failing
from tests.pace import within

SHORT_MS = 600
ROOT = Path(__file__).parents[1]


@pytest.fixture
async def proxy(zookeeper: ZooKeeper) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(zookeeper.port) as between:
        yield between


async def answers(store: ZooKeeperMetaStore) -> bool:
    try:
        await store.sync()
    except (Unavailable, Timeout):
        return False
    return True


async def down(store: ZooKeeperMetaStore) -> None:
    """Until the store knows that its connection is lost."""
    link = store._home
    assert link is not None

    async def known() -> bool:
        return link.stage is Stage.CONNECTING

    await until(known, "the store hears of the loss")


async def knocked(proxy: FaultyProxy, times: int) -> None:
    """Until this many more connections were tried."""
    count = proxy.connections_made + times

    async def done() -> bool:
        return proxy.connections_made >= count

    await until(done, "the store connects again")


# --- The connection is cut ---


async def test_a_write_cut_off_before_the_server_heard_it(
    zookeeper: ZooKeeper, proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store, other = make_store(proxy.address + place), make_store(zookeeper.hosts + place)
    version = (await store.create("/a", b"0")).version
    before = proxy.to_server.bytes_seen
    proxy.to_server.hold()
    put = asyncio.ensure_future(store.put("/a", b"1", version))
    await proxy.to_server.wait_bytes_seen(before)
    proxy.cut()
    error = await failing(put, Unavailable)
    # Here only the look was under way, which writes nothing.
    assert (error.outcome, error.retry) == (Outcome.NOT_HAPPENED, Retry.NOW)
    proxy.heal()
    assert await other.get("/a") == (b"0", version)
    assert await store.put("/a", b"2", version) != version


@pytest.mark.parametrize("applied", [True, False], ids=["answer-lost", "request-lost"])
async def test_a_write_in_flight_when_the_connection_is_lost_is_unknown(
    applied: bool, zookeeper: ZooKeeper, proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store, other = make_store(proxy.address + place), make_store(zookeeper.hosts + place)
    await store.create("/a", b"")
    way = proxy.to_client if applied else proxy.to_server
    before = proxy.to_server.bytes_seen
    way.hold()
    created = asyncio.ensure_future(store.create("/b", b"token"))
    await proxy.to_server.wait_bytes_seen(before)
    if applied:

        async def there() -> bool:
            return await exists(other, "/b")

        await until(there, "the server has executed it")
    proxy.cut()
    error = await failing(created, Unavailable)
    assert (error.outcome, error.retry, error.path) == (Outcome.UNKNOWN, Retry.NOW, "/b")
    proxy.heal()
    await store.sync()
    assert await exists(other, "/b") == applied


@pytest.mark.parametrize("act", ["put", "delete"])
async def test_a_leap_whose_answer_is_lost_is_unknown(
    act: str,
    zookeeper: ZooKeeper,
    proxy: FaultyProxy,
    make_store: MakeStore,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, other = make_store(proxy.address + place), make_store(zookeeper.hosts + place)
    version = (await store.create("/a", b"0")).version
    link = await store._any_link(asyncio.get_running_loop().time() + 5)
    real = link.ask

    async def ask(send: Any, *, writes: bool, **rest: Any) -> Any:
        if writes:
            proxy.to_client.hold()
        return await real(send, writes=writes, **rest)

    monkeypatch.setattr(link, "ask", ask)
    call = store.put("/a", b"1", version) if act == "put" else store.delete("/a", version)
    leap = asyncio.ensure_future(call)

    async def applied() -> bool:
        if act == "delete":
            return not await exists(other, "/a")
        await other.sync()
        return (await other.get("/a")).value == b"1"

    await until(applied, "the server has executed it")
    assert not leap.done()
    proxy.cut()
    error = await failing(leap, Unavailable)
    assert (error.outcome, error.path) == (Outcome.UNKNOWN, "/a")


async def test_a_read_in_flight_when_the_connection_is_lost_did_not_happen(
    proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store = make_store(proxy.address + place)
    await store.create("/a", b"0")
    for read in (store.get, store.children):
        await store.sync()
        proxy.to_client.hold()
        before = proxy.to_server.bytes_seen
        reading = asyncio.ensure_future(read("/a"))
        await proxy.to_server.wait_bytes_seen(before)
        proxy.cut()
        error = await failing(reading, Unavailable)
        assert (error.outcome, error.retry) == (Outcome.NOT_HAPPENED, Retry.NOW)
        proxy.heal()
    assert (await store.get("/a")).value == b"0"


async def test_a_short_loss_costs_no_session_and_no_presence(
    zookeeper: ZooKeeper, proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store, other = make_store(proxy.address + place), make_store(zookeeper.hosts + place)
    await store.create("/e", b"", ephemeral=True)
    session = await store.session()
    proxy.cut()
    await knocked(proxy, 1)
    assert (await store.get("/e")).value == b""
    assert not session.lost.is_set()
    assert await exists(other, "/e")


async def test_calls_made_while_the_connection_is_down_wait_for_it(
    proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store = make_store(proxy.address + place)
    version = (await store.create("/a", b"0")).version
    proxy.refuse()
    await down(store)
    put = asyncio.ensure_future(store.put("/a", b"1", version))
    await knocked(proxy, 2)
    assert not put.done()
    proxy.accept()
    async with asyncio.timeout(10):
        await put
    assert (await store.get("/a")).value == b"1"


async def test_calls_that_wait_in_vain_certainly_did_not_happen(
    proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store = make_store(proxy.address + place, SHORT_MS)
    version = (await store.create("/a", b"0")).version
    proxy.refuse()
    await down(store)
    for call in (
        store.put("/a", b"1", version),
        store.create("/b", b""),
        store.delete("/a", version),
        store.get("/a"),
        store.sync(),
    ):
        begun = time.monotonic()
        error = await failing(call, Unavailable, Timeout)
        assert error.outcome is Outcome.NOT_HAPPENED
        assert within(time.monotonic() - begun, SHORT_MS / 1000 + 1)
    proxy.accept()
    await until(lambda: answers(store), "it comes back")
    assert await store.get("/a") == (b"0", version)


async def test_a_server_that_is_not_there_is_unavailable_and_named(
    proxy: FaultyProxy, make_store: MakeStore
) -> None:
    proxy.refuse()
    store = make_store(proxy.address, SHORT_MS)
    error = await failing(store.get("/"), Unavailable)
    assert error.missing == [proxy.address]
    await failing(store.session(), Unavailable)


async def test_single_bytes_and_delays_change_nothing(
    proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store = make_store(proxy.address + place)
    proxy.to_client.slice_bytes = proxy.to_server.slice_bytes = 1
    version = (await store.create("/a", b"x" * 50)).version
    assert await store.put("/a", b"y", version) > version
    proxy.heal()
    proxy.to_client.delay_s = 0.05
    assert (await store.get("/a")).value == b"y"


async def test_a_silent_server_is_a_timeout_and_a_flood_does_not_block_the_loop(
    zookeeper: ZooKeeper, proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    store = make_store(proxy.address + place, SHORT_MS, session_timeout_ms=10_000)
    await store.create("/a", b"0")
    proxy.to_client.hold()
    error = await failing(store.create("/b", b""), Timeout)
    assert (error.outcome, error.path) == (Outcome.UNKNOWN, "/b")
    assert (await failing(store.get("/a"), Timeout)).outcome is Outcome.NOT_HAPPENED
    begun = time.monotonic()
    flood = [store.get("/a") for _ in range(10 * IN_FLIGHT_MAX)]
    told = await asyncio.gather(*flood, return_exceptions=True)
    assert within(time.monotonic() - begun, SHORT_MS / 1000 + 2)
    assert {type(each) for each in told} == {Timeout, Unavailable}
    proxy.heal()
    await until(lambda: answers(store), "the store goes on")
    link = store._home
    assert link is not None

    async def all_answered() -> bool:
        return not link._unanswered

    await until(all_answered, "every place in the queue is free again")


# --- Sessions ---


async def test_a_lost_session_is_lost_for_good_and_all_else_goes_on(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    store = make_store(zookeeper.hosts + place)
    session = await store.session()
    version = (await store.create("/a", b"0")).version
    await store.create("/e", b"", ephemeral=True)
    async with store.watch("/e") as watch:
        await end_session(store)
        async with asyncio.timeout(10):
            await session.lost.wait()
        assert await watch.wait(10_000)
    version = await store.put("/a", b"1", version)
    assert await store.get("/a") == (b"1", version)
    assert await store.session() is session
    await refused(store.create("/f", b"", ephemeral=True), LeaseLost)
    assert not await exists(store, "/e")


async def test_an_ephemeral_node_whose_answer_was_lost_with_the_session_is_certain(
    zookeeper: ZooKeeper, proxy: FaultyProxy, make_store: MakeStore, place: str
) -> None:
    """The server made the node; then the session expired, unheard."""
    store, other = (
        make_store(proxy.address + place, session_timeout_ms=500),
        make_store(zookeeper.hosts + place),
    )
    await store.create("/a", b"")
    before = proxy.to_server.bytes_seen
    proxy.to_client.hold()
    created = asyncio.ensure_future(store.create("/e", b"", ephemeral=True))
    await proxy.to_server.wait_bytes_seen(before)
    await until(lambda: exists(other, "/e"), "the server made it")
    proxy.refuse()

    async def gone() -> bool:
        return not await exists(other, "/e")

    await until(gone, "the session expires")
    proxy.heal()
    await refused(created, LeaseLost)
    assert (await store.session()).lost.is_set()


# --- The server is killed, frozen, started again ---


async def test_a_killed_server_that_comes_back(
    own_zookeeper: ZooKeeper, make_store: MakeStore
) -> None:
    store = make_store(own_zookeeper.hosts, SHORT_MS, session_timeout_ms=10_000)
    session = await store.session()
    version = (await store.create("/a", b"0")).version
    await store.create("/e", b"here", ephemeral=True)
    async with store.watch("/a") as watch:
        own_zookeeper.kill()
        await down(store)
        error = await failing(store.put("/a", b"1", version), Unavailable, Timeout)
        assert error.outcome is Outcome.NOT_HAPPENED
        assert not await watch.wait(100)
        own_zookeeper.start()
        await asyncio.to_thread(own_zookeeper.wait_until_serving)
        await until(lambda: answers(store), "the store finds its server again")
        assert await store.get("/a") == (b"0", version)
        version = await store.put("/a", b"1", version)
        assert await watch.wait(10_000)
    # Sessions live in the server's log.
    assert (await store.get("/e")).value == b"here"
    assert not session.lost.is_set()


async def test_a_frozen_server_that_thaws(own_zookeeper: ZooKeeper, make_store: MakeStore) -> None:
    store = make_store(own_zookeeper.hosts, SHORT_MS, session_timeout_ms=10_000)
    await store.create("/a", b"0")
    own_zookeeper.freeze()
    try:
        error = await failing(store.create("/b", b"late"), Timeout)
        assert error.outcome is Outcome.UNKNOWN
        error = await failing(store.get("/a"), Timeout, Unavailable)
        assert error.outcome is Outcome.NOT_HAPPENED
    finally:
        own_zookeeper.thaw()
    await until(lambda: answers(store), "the store goes on")
    # What was called unknown came true when the server woke.
    assert (await store.get("/b")).value == b"late"


async def test_closing_is_bounded_while_the_server_is_frozen(
    own_zookeeper: ZooKeeper, make_store: MakeStore
) -> None:
    own_zookeeper_hosts = own_zookeeper.hosts
    before = set(threading.enumerate())
    store = make_store(own_zookeeper_hosts)
    await store.create("/a", b"0")
    own_zookeeper.freeze()
    try:
        begun = time.monotonic()
        await store.close()
        await store.close()
        assert within(time.monotonic() - begun, 4)
        assert set(threading.enumerate()) <= before, "a thread is left behind"
    finally:
        own_zookeeper.thaw()


# --- Ends ---


async def test_a_store_that_is_dropped_says_so_and_ends(zookeeper: ZooKeeper) -> None:
    before = set(threading.enumerate())
    store: ZooKeeperMetaStore | None = ZooKeeperMetaStore(zookeeper.hosts)
    assert store is not None
    session = await store.session()
    assert set(threading.enumerate()) > before
    with pytest.warns(ResourceWarning, match="dropped without close"):
        store = None
    gc.collect()

    async def quiet() -> bool:
        return set(threading.enumerate()) <= before

    await until(quiet, "its threads end")
    async with asyncio.timeout(10):
        await session.lost.wait()


async def test_a_forked_child_may_not_use_it_and_does_not_end_it(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(zookeeper.hosts + place)
    await store.create("/e", b"", ephemeral=True)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as it looks from the child
    await refused(store.get("/e"), ForkedHandle)
    await refused(store.session(), ForkedHandle)
    await store.close()
    monkeypatch.undo()
    assert (await store.get("/e")).value == b""


async def test_a_program_that_forgets_to_close_ends_all_the_same(zookeeper: ZooKeeper) -> None:
    program = (
        "import asyncio, os\n"
        "from dlog.meta.zookeeper import ZooKeeperMetaStore\n"
        f"store = ZooKeeperMetaStore({zookeeper.hosts!r})\n"
        "asyncio.run(store.session())\n"
        "print('done')\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(15):
            told, _ = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert (child.returncode, told) == (0, b"done\n")


async def test_no_credentials_reach_the_logs(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(1):
        store = make_store(zookeeper.hosts + place, auth=b"ana:hush-hush")
        await store.create("/a", b"top-secret")
        await store.close()
    assert caplog.records, "kazoo says nothing at all"
    assert "hush-hush" not in caplog.text
    assert "top-secret" not in caplog.text
    assert "hush-hush" not in repr(store)
