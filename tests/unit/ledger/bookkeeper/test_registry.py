"""Which bookies there are and where, also while the metadata store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import Corrupt, FormatError, NotFound, Unavailable, WriterClosed
from dlog.ledger.bookkeeper import registry as registry_module
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.store import Versioned
from dlog.streams.health.bookies import BookieQuarantine
from dlog.wire.bookie_service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint

AVAILABLE = "/ledgers/available"
READ_ONLY = "/ledgers/available/readonly"


def _info(port: int) -> bytes:
    return BookieServiceInfo((Endpoint("bookie", "127.0.0.1", port, BOOKIE_RPC),)).to_bytes()


class Flaky(MemoryMetaStore):
    """A metadata store that goes away, or falls silent, at the test's word."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.is_away = self.is_silent = False
        self.asked = asyncio.Event()
        self.gate: asyncio.Event | None = None  # what was listed waits here
        self.node_gate: asyncio.Event | None = None  # what was read waits here
        self.waits_at_node = asyncio.Event()

    async def get(self, path: str) -> Versioned:
        await self._pass()
        node = await super().get(path)
        gate, self.node_gate = self.node_gate, None
        if gate is not None:
            self.waits_at_node.set()
            await gate.wait()
        return node

    async def children(self, path: str) -> list[str]:
        await self._pass()
        names = await super().children(path)
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.wait()
        return names

    async def _pass(self) -> None:
        self.asked.set()
        if self.is_silent:
            await asyncio.get_running_loop().create_future()
        if self.is_away:
            raise Unavailable("away", missing=("zookeeper",))


class World:
    """The bookies, and the registry that looks at them."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.bookies = MemoryMetaStore(self.tree)
        self.meta = Flaky(self.tree)
        self.health = BookieQuarantine()
        self.registry = BookieRegistry(self.meta, health=self.health, poll_ms=20)
        self.told: list[tuple[set[str], set[str]]] = []
        self.news = asyncio.Event()

    def on_bookies(self, came: frozenset[str], gone: frozenset[str]) -> None:
        self.told.append((set(came), set(gone)))
        self.news.set()

    async def register(self, name: str, port: int = 3181, *, folder: str = AVAILABLE) -> None:
        await self.bookies.create(f"{folder}/{name}", _info(port), ephemeral=True)

    async def remove(self, name: str, *, folder: str = AVAILABLE) -> None:
        path = f"{folder}/{name}"
        await self.bookies.delete(path, (await self.bookies.get(path)).version)

    async def next_news(self) -> tuple[set[str], set[str]]:
        async with asyncio.timeout(10):
            while not self.told:
                self.news.clear()
                await self.news.wait()
        return self.told.pop(0)

    async def until_stale(self, *, stale: bool = True) -> None:
        async with asyncio.timeout(10):
            while (self.registry.stale_since_s is not None) is not stale:
                self.meta.asked.clear()
                await self.meta.asked.wait()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.bookies.create(READ_ONLY, b"")
    await made.register("b1")
    await made.register("b2")
    await made.register("b3", folder=READ_ONLY)
    await made.registry.open()
    made.registry.listen(made)
    yield made
    await made.registry.close()
    await made.meta.close()
    await made.bookies.close()


async def test_writable_and_read_only_bookies_are_apart(world: World) -> None:
    assert world.registry.writable() == ("b1", "b2")
    assert world.registry.read_only() == ("b3",)
    assert world.registry.stale_since_s is None


async def test_who_comes_and_goes_is_told(world: World) -> None:
    await world.register("b4")
    assert await world.next_news() == ({"b4"}, set())
    await world.remove("b1")
    assert await world.next_news() == (set(), {"b1"})
    assert world.registry.writable() == ("b2", "b4")


async def test_a_bookie_that_turns_read_only_is_so_before_it_stops_being_writable(
    world: World,
) -> None:
    await world.register("b1", folder=READ_ONLY)
    await world.registry.refresh()
    assert world.registry.writable() == ("b2",)
    assert world.registry.read_only() == ("b1", "b3")
    await world.remove("b1")
    await world.registry.refresh()
    assert world.registry.read_only() == ("b1", "b3")


async def test_a_bookie_that_turns_writable_has_come(world: World) -> None:
    await world.register("b3")
    await world.remove("b3", folder=READ_ONLY)
    assert await world.next_news() == ({"b3"}, set())


async def test_a_bookie_that_registered_anew_has_come_with_its_new_address(world: World) -> None:
    assert (await world.registry.resolve("b1")).port == 3181
    await world.remove("b1")
    await world.register("b1", 3999)
    await world.registry.refresh()
    assert {"b1"} in [came for came, _ in world.told]
    assert (await world.registry.resolve("b1")).port == 3999


@pytest.mark.parametrize("absent", [True, False])
async def test_an_address_that_was_asked_for_once_is_kept_up_to_date(
    world: World, absent: bool
) -> None:
    """While the metadata store was away the bookie's session may have ended: it is gone for a
    moment, and comes back. Who reconnects to it later may again have nobody to ask."""
    await world.registry.resolve("b1")
    await world.registry.close()
    await world.remove("b1")
    if absent:
        await world.registry.refresh()
    await world.register("b1", 3999)
    await world.registry.refresh()
    world.meta.is_away = True
    assert (await world.registry.resolve("b1")).port == 3999
    with pytest.raises(Unavailable):
        await world.registry.resolve("b2")  # nobody ever asked


async def test_a_node_that_turned_to_nonsense_stops_no_list(world: World) -> None:
    await world.registry.resolve("b1")
    await world.bookies.put(f"{AVAILABLE}/b1", b"\xff\xff", await _version(world, "b1"))
    await world.register("b4")
    await world.registry.refresh()
    assert world.registry.writable() == ("b1", "b2", "b4")
    with pytest.raises((Corrupt, FormatError)):
        await world.registry.resolve("b1")


async def test_an_address_is_looked_up_once_until_it_is_suspected(world: World) -> None:
    await world.registry.close()  # nobody looks again by himself
    assert (await world.registry.resolve("b1")).port == 3181
    await world.bookies.put(f"{AVAILABLE}/b1", _info(4000), await _version(world, "b1"))
    assert (await world.registry.resolve("b1")).port == 3181
    world.registry.suspect("b1")
    assert (await world.registry.resolve("b1")).port == 4000


async def _version(world: World, name: str) -> int:
    return (await world.bookies.get(f"{AVAILABLE}/{name}")).version


async def test_read_only_bookies_have_addresses(world: World) -> None:
    assert (await world.registry.resolve("b3")).port == 3181


@pytest.mark.parametrize("name", ["b9", "127.0.0.1:3181", "readonly", "a/b", ""])
async def test_who_is_not_registered_has_no_address(world: World, name: str) -> None:
    with pytest.raises(Unavailable) as raised:
        await world.registry.resolve(name)
    assert raised.value.missing == (name,)


async def test_who_left_loses_its_address(world: World) -> None:
    await world.registry.resolve("b1")
    await world.remove("b1")
    await world.registry.refresh()
    with pytest.raises(Unavailable):
        await world.registry.resolve("b1")


async def test_who_was_missed_once_has_no_last_known_address(world: World) -> None:
    await world.registry.close()
    await world.registry.resolve("b1")
    await world.remove("b1")
    world.registry.suspect("b1")
    with pytest.raises(Unavailable, match="registered"):
        await world.registry.resolve("b1")
    world.meta.is_away = True
    with pytest.raises(Unavailable):
        await world.registry.resolve("b1")


async def test_who_left_is_no_longer_quarantined(world: World) -> None:
    world.health.note_hung("b1", SYSTEM_CLOCK.monotonic_s())
    await world.remove("b1")
    await world.registry.refresh()
    assert world.registry.avoided() == frozenset()


async def test_an_older_list_never_replaces_a_newer_one(world: World) -> None:
    await world.registry.close()
    gate = world.meta.gate = asyncio.Event()
    older = asyncio.ensure_future(world.registry.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.meta.gate is None  # it has its list, and is held
    await world.register("b4")
    newer = asyncio.ensure_future(world.registry.refresh())
    for _ in range(5):
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(older, newer)
    assert "b4" in world.registry.writable()


async def test_an_older_look_never_replaces_an_address_that_was_looked_up_since(
    world: World,
) -> None:
    assert (await world.registry.resolve("b1")).port == 3181
    await world.registry.close()
    await world.remove("b1")
    await world.register("b1", 4181)
    world.meta.node_gate = gate = asyncio.Event()
    older = asyncio.ensure_future(world.registry.refresh())
    await world.meta.waits_at_node.wait()  # it has seen the node of this moment
    await world.remove("b1")
    await world.register("b1", 5181)
    world.registry.suspect("b1")
    assert (await world.registry.resolve("b1")).port == 5181
    gate.set()
    await older
    assert (await world.registry.resolve("b1")).port == 5181


async def test_a_node_without_sense_gives_no_address(world: World) -> None:
    await world.bookies.create(f"{AVAILABLE}/b5", b"\xff\xff", ephemeral=True)
    with pytest.raises(Corrupt):
        await world.registry.resolve("b5")
    assert "b5" in (await _after_refresh(world)).writable()


async def _after_refresh(world: World) -> BookieRegistry:
    await world.registry.refresh()
    return world.registry


async def test_names_that_are_no_bookie_ids_are_left_out_and_said(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.bookies.create(f"{AVAILABLE}/READONLY", b"", ephemeral=True)
    with caplog.at_level(logging.WARNING, "dlog.ledger"):
        await world.registry.refresh()
        await world.registry.refresh()
    assert not [each for each in caplog.records if "readonly" in each.message]
    assert world.registry.writable() == ("b1", "b2")
    assert len([each for each in caplog.records if "READONLY" in each.message]) == 1


async def test_while_the_metadata_store_is_away_the_last_list_stands(world: World) -> None:
    await world.registry.resolve("b1")
    world.meta.is_away = True
    await world.until_stale()
    await world.remove("b1")
    assert world.registry.writable() == ("b1", "b2")
    world.registry.suspect("b1")
    world.meta.is_silent = True  # who asks now waits
    assert (await world.registry.resolve("b1")).port == 3181
    world.meta.is_silent = False
    with pytest.raises(Unavailable):
        await world.registry.resolve("b2")  # its address was never known
    world.meta.is_away = False
    await world.until_stale(stale=False)
    assert world.registry.writable() == ("b2",)


async def test_every_outage_is_waited_through_from_the_shortest_pause_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    def pause_s(attempt: int, *_: object, **__: object) -> float:
        attempts.append(attempt)
        return 0.001

    monkeypatch.setattr(registry_module, "backoff_s", pause_s)
    for _ in range(2):
        attempts.clear()
        world.meta.is_away = True
        await world.until_stale()
        since_s = world.registry.stale_since_s
        async with asyncio.timeout(10):
            while len(attempts) < 3:
                world.meta.asked.clear()
                await world.meta.asked.wait()
        assert attempts[:3] == [1, 2, 3]
        assert world.registry.stale_since_s == since_s, "as long as the outage lasts"
        world.meta.is_away = False
        await world.until_stale(stale=False)


async def test_a_silent_metadata_store_delays_a_known_address_only_shortly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "LOOK_UP_GRACE_S", 0.01)
    await world.registry.resolve("b1")
    world.meta.is_silent = True
    world.registry.suspect("b1")
    assert (await world.registry.resolve("b1")).port == 3181
    assert world.registry.stale_since_s is not None


async def test_without_a_cluster_nothing_opens() -> None:
    meta = MemoryMetaStore(MemoryTree())
    registry = BookieRegistry(meta)
    with pytest.raises(NotFound):
        await registry.open()
    await registry.close()
    await meta.close()


async def test_an_operator_turns_quarantine_off_and_on(world: World) -> None:
    world.health.note_hung("b1", SYSTEM_CLOCK.monotonic_s())
    assert world.registry.avoided() == {"b1"}
    made = await world.bookies.create("/ledgers/disableHealthCheck", b"")
    await world.registry.refresh()
    assert world.registry.avoided() == frozenset()
    await world.bookies.delete("/ledgers/disableHealthCheck", made.version)
    await world.registry.refresh()
    world.health.note_hung("b1", SYSTEM_CLOCK.monotonic_s())
    assert world.registry.avoided() == {"b1"}


async def test_the_task_does_not_die_silently(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.registry.resolve("b1")
    with caplog.at_level(logging.ERROR, "dlog.ledger"):
        await world.meta.close()
        await asyncio.wait(
            [task for task in asyncio.all_tasks() if task.get_name() == "dlog-bookies"]
        )
    assert any("no longer" in each.message for each in caplog.records)
    with pytest.raises(WriterClosed):
        await world.registry.resolve("b1")


async def test_closing_leaves_no_task(world: World) -> None:
    await world.registry.close()
    await world.registry.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "dlog-bookies"]


async def test_a_list_that_fails_leaves_no_call_of_it_running() -> None:
    """What it asks for together is cut short once one of it failed: else it went on behind the
    close of the store."""

    class HalfAway(MemoryMetaStore):
        def __init__(self) -> None:
            super().__init__(MemoryTree())
            self.ended: list[str] = []

        async def children(self, path: str) -> list[str]:
            if path == AVAILABLE:
                await asyncio.sleep(0)
                raise Unavailable("away", missing=("zookeeper",))
            return await self._hang(path)

        async def get(self, path: str) -> Versioned:
            return await self._hang(path)

        async def _hang(self, path: str) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.ended.append(path)

    meta = HalfAway()
    before = asyncio.all_tasks()
    with pytest.raises(Unavailable):
        await BookieRegistry(meta).refresh()
    assert len(meta.ended) == 2
    assert asyncio.all_tasks() == before
    await meta.close()
