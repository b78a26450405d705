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
from dlog.meta import zookeeper_looks
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.meta.zookeeper_looks import LOOK_AGE_S
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
    owner = make_store(zookeeper.hosts + place, auth=b"ana:secret")
    again = make_store(zookeeper.hosts + place, auth=b"ana:secret")
    other = make_store(zookeeper.hosts + place, auth=b"ben:guess")
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


async def test_who_only_reads_makes_nothing(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    """The root would be the reader's own, and the writers who come later could not use it."""
    reader = make_store(zookeeper.hosts, root=place, auth=b"ben:guess")
    await refused(reader.get(f"{place}/a"), NotFound)
    await refused(reader.children(place), NotFound)
    await reader.sync()
    assert await raw(zookeeper.hosts, lambda zk: zk.exists(place)) is None
    writer = make_store(zookeeper.hosts, root=place, auth=b"ana:secret")
    version = (await writer.create(f"{place}/a", b"mine")).version
    await writer.put(f"{place}/a", b"still mine", version)
    await refused(reader.get(place), AuthError)


async def test_what_is_not_below_the_root_is_read_without_it(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    """As a cluster's ledgers are, by one who may not see our logs."""
    await make_store(zookeeper.hosts, root=place, auth=b"ana:secret").create(f"{place}/a", b"")
    open_to_all = make_store(zookeeper.hosts, root=f"{place}-open")
    version = (await open_to_all.create(f"{place}-open/b", b"theirs")).version
    other = make_store(zookeeper.hosts, root=place, auth=b"ben:guess")
    assert (await other.get(f"{place}-open/b")).value == b"theirs"
    # But to write there takes the root, which is not his.
    await refused(other.put(f"{place}-open/b", b"", version), AuthError)


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


def asks_of(link: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the server from now on."""
    real: Any = link.ask
    asked: list[str] = []

    async def ask(send: Any, *, writes: bool, **rest: Any) -> Any:
        asked.append("write" if writes else "read")
        return await real(send, writes=writes, **rest)

    monkeypatch.setattr(link, "ask", ask)
    return asked


async def test_a_write_behind_a_read_asks_nothing_more(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(zookeeper.hosts + place)
    await store.create("/a", b"0")
    version = (await store.get("/a")).version
    link = await store._any_link(asyncio.get_running_loop().time() + 5)
    asked = asks_of(link, monkeypatch)
    version = await store.put("/a", b"1", version)
    version = await store.put("/a", b"2", version)
    assert asked == ["write", "write"]
    await refused(store.put("/a", b"lost", version - 1), Conflict)
    assert (await store.get("/a")).value == b"2"


async def test_a_node_made_again_behind_a_read_is_not_written(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str
) -> None:
    """Its counter is the one that was read, and the version is not."""
    store, rival = make_store(zookeeper.hosts + place), make_store(zookeeper.hosts + place)
    old = (await rival.create("/a", b"old")).version
    assert (await store.get("/a")).version == old
    await rival.delete("/a", old)
    await rival.create("/a", b"new")
    await refused(store.put("/a", b"lost", old), Conflict)
    found = await store.get("/a")
    assert found.value == b"new"
    await store.put("/a", b"kept", found.version)
    assert (await rival.get("/a")).value == b"kept"


async def test_what_was_seen_of_the_root_long_ago_is_not_relied_on(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would still be safe, and mostly cost a write that is refused."""
    store = make_store(zookeeper.hosts + place)
    version = (await store.create("/a", b"0")).version
    await store.get("/a")
    link = await store._any_link(asyncio.get_running_loop().time() + 5)
    assert link.looks.of(f"{place}/a", version, store._now_s()) is not None
    assert link.looks.of(f"{place}/a", version, store._now_s() + LOOK_AGE_S + 1) is None
    assert link.looks.of(f"{place}/a", version + 1, store._now_s()) is None
    await store.delete((await store.create("/b", b"")).path, (await store.get("/b")).version)
    assert link.looks.of(f"{place}/a", version, store._now_s()) is None


async def test_a_read_looks_at_the_root_that_others_write(
    zookeeper: ZooKeeper, make_store: MakeStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's delete wrote it since we saw it last: the write behind our read is not refused."""
    store, rival = make_store(zookeeper.hosts + place), make_store(zookeeper.hosts + place)
    await store.create("/a", b"0")
    await store.get("/a")
    await rival.delete("/b", (await rival.create("/b", b"")).version)
    monkeypatch.setattr(zookeeper_looks, "ROOT_AGE_S", 0.0)
    version = (await store.get("/a")).version
    link = await store._any_link(asyncio.get_running_loop().time() + 5)
    asked = asks_of(link, monkeypatch)
    await store.put("/a", b"1", version)
    assert asked == ["write"]


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
