"""Nodes on a real ZooKeeper: how large, whose, which version, under which name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dlog.errors import (
    AuthError,
    ConfigError,
    Conflict,
    NotFound,
    TooLarge,
)
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import ZooKeeper
from dlog.testing.conformance.meta_tools import refused
from integration.conftest import MakeStore
from integration.zookeeper_tools import failing, raw


async def test_the_largest_value_fits_and_one_byte_more_is_never_sent(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    store = make_store(zookeeper.hosts + place)
    version = (await store.create("/a", b"")).version
    error = await refused(store.put("/a", bytes(1 << 20), version), TooLarge)
    assert error.path == "/a"
    room = int(error.message.split("at most ")[1].split(" ")[0].replace(",", ""))
    version = await store.put("/a", bytes(room), version)
    await refused(store.put("/a", bytes(room + 1), version), TooLarge)
    await store.create("/b", bytes(room))
    assert len((await store.get("/a")).value) == room


async def test_nodes_of_an_owner_are_the_owners(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    owner = make_store(zookeeper.hosts + place, auth=("ana", "secret"))
    again = make_store(zookeeper.hosts + place, auth=("ana", "secret"))
    other = make_store(zookeeper.hosts + place, auth=("ben", "guess"))
    nobody = make_store(zookeeper.hosts + place)
    version = (await owner.create("/a/b", b"mine")).version
    assert (await again.get("/a/b")).value == b"mine"
    version = await again.put("/a/b", b"ours", version)
    for stranger in (other, nobody):
        for call in (
            stranger.get("/a/b"),
            stranger.put("/a/b", b"", version),
            stranger.delete("/a/b", version),
            stranger.create("/a/c", b""),
            stranger.children("/a"),
        ):
            await refused(call, AuthError)
    assert await owner.get("/a/b") == (b"ours", version)
    await owner.delete("/a/b", version)


async def test_a_node_made_again_between_look_and_leap_is_not_written(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's own counter of the new node is the one that was looked at."""
    store, rival = make_store(zookeeper.hosts + place), make_store(zookeeper.hosts + place)
    for act in ("put", "delete"):
        old = (await store.create("/a", b"old")).version
        link = await store._any_link(asyncio.get_running_loop().time() + 5)
        real, writes_sent = link.ask, 0

        async def ask(send: Any, *, writes: bool, **rest: Any) -> Any:
            nonlocal writes_sent
            writes_sent += writes
            if writes and writes_sent == 1:
                await rival.delete("/a", old)  # noqa: B023 - called within this turn of the loop
                await rival.create("/a", b"new")
            return await real(send, writes=writes, **rest)  # noqa: B023

        monkeypatch.setattr(link, "ask", ask)
        call = store.put("/a", b"lost", old) if act == "put" else store.delete("/a", old)
        await refused(call, Conflict)
        assert writes_sent == 1
        monkeypatch.undo()
        found = await store.get("/a")
        assert found.value == b"new"
        await store.delete("/a", found.version)


async def test_many_deletes_at_once(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    stores = [make_store(zookeeper.hosts + place) for _ in range(3)]
    made = await asyncio.gather(*(stores[0].create(f"/d/{i}", b"") for i in range(60)))
    await asyncio.gather(
        *(stores[i % 3].delete(node.path, node.version) for i, node in enumerate(made))
    )
    await stores[0].sync()
    assert await stores[0].children("/d") == []


async def test_a_counter_of_the_server_that_wraps_is_too_large(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can wait for two thousand million creates: a node with such a name is made by hand."""
    store = make_store(zookeeper.hosts + place)
    await store.create("/q/keep", b"")
    made = await store.create("/q/n--2147483648", b"")
    stat = type("Stat", (), {"mzxid": made.version})()

    async def ask(*_: object, **__: object) -> object:
        return f"{place}/q/n--2147483648", stat

    link = await store._any_link(asyncio.get_running_loop().time() + 5)
    real = link.ask
    calls = iter([ask])

    async def once(*args: object, **kwargs: object) -> object:
        fake = next(calls, None)
        return await (fake or real)(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(link, "ask", once)
    await failing(store.create("/q/n-", b"", sequential=True), TooLarge)
    assert await store.children("/q") == ["keep"]


async def test_other_clients_see_the_names_people_chose(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    store = make_store(zookeeper.hosts + place)
    await store.create("/ä %2F 世界", b"")
    await store.create("/🙂", b"")
    seen = await raw(zookeeper.hosts, lambda zk: sorted(zk.get_children(place)))
    assert seen == ["ä %2F 世界", "␛1f642;"]
    assert await store.children("/") == ["ä %2F 世界", "🙂"]


async def test_hosts_that_are_none_are_refused() -> None:
    for hosts in ("", "a b:1", "h:x", "h:1,", "http://h:1", "h:1//x"):
        with pytest.raises(ConfigError):
            ZooKeeperMetaStore(hosts)


async def test_the_root_of_the_tree_stays(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    store = make_store(zookeeper.hosts + place, root="/dlog")
    await store.create("/dlog/a", b"")
    await refused(store.delete("/dlog", (await store.get("/dlog")).version), ConfigError)
    version = (await store.get("/dlog")).version
    version = await store.put("/dlog", b"kept", version)
    await store.delete("/dlog/a", (await store.get("/dlog/a")).version)
    assert (await store.get("/dlog")).value == b"kept"
    await refused(store.get("/dlog/a"), NotFound)


async def test_many_watches_leave_nothing_behind(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    store = make_store(zookeeper.hosts + place)
    for number in range(300):
        version = (await store.create(f"/w/{number}", b"")).version
        async with store.watch(f"/w/{number}") as watch:
            assert not await watch.wait(5)
            await store.put(f"/w/{number}", b"1", version)
            assert await watch.wait(10_000)
    assert len(store._bells) < 100
