"""Many who wait at one path share one bell: whoever looked before it was armed is not forgotten."""

from __future__ import annotations

import asyncio

from dlog.meta.zookeeper import BELLS_KEPT, ZooKeeperMetaStore
from dlog.meta.zookeeper_watch import Bell, Sight, ZooKeeperWatch
from tests.api.waiting import eventually

OLD, NEW = Sight(1, 1, 1), Sight(1, 2, 1)


class Node:
    """A node at which arming takes its time."""

    def __init__(self) -> None:
        self.sight = OLD
        self.arming = asyncio.Event()
        self.may_arm = asyncio.Event()
        self.looks = 0
        self.arms = 0
        self._bell = Bell()

    def check_open(self) -> None:
        return

    def bell(self, path: str) -> Bell:
        return self._bell

    async def look(self, path: str) -> Sight | None:
        self.looks += 1
        await asyncio.sleep(0)
        return self.sight

    async def arm_and_look(self, path: str, bell: Bell) -> Sight | None:
        bell.armed = True
        self.arms += 1
        self.arming.set()
        await self.may_arm.wait()
        return self.sight


async def test_a_change_while_the_bell_is_being_armed_is_told_to_all() -> None:
    """It rings for nobody: one of them sees it as it arms, the others have looked before."""
    node = Node()
    async with ZooKeeperWatch(node, "/a") as one, ZooKeeperWatch(node, "/a") as other:
        waits = [asyncio.ensure_future(each.wait(60_000)) for each in (one, other)]
        await node.arming.wait()
        await eventually(lambda: node.looks == 4)  # both looked, twice with their beginning
        node.sight = NEW
        node.may_arm.set()
        async with asyncio.timeout(3):
            assert await asyncio.gather(*waits) == [True, True]


async def test_arming_what_all_have_seen_wakes_nobody_for_long() -> None:
    node = Node()
    node.may_arm.set()
    async with ZooKeeperWatch(node, "/a") as one, ZooKeeperWatch(node, "/a") as other:
        waits = [asyncio.ensure_future(each.wait(60_000)) for each in (one, other)]
        await eventually(lambda: node.arms == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        looks = node.looks
        for _ in range(50):
            await asyncio.sleep(0)
        assert (node.looks, node.arms) == (looks, 1)
        assert looks <= 6
        node.sight = NEW
        node.bell("/a").ring()
        async with asyncio.timeout(3):
            assert await asyncio.gather(*waits) == [True, True]


async def test_a_store_forgets_the_bells_that_nobody_needs_and_keeps_the_others() -> None:
    store = ZooKeeperMetaStore("127.0.0.1:1")
    armed, heard, idle = (store.bell(path) for path in ("/armed", "/heard", "/idle"))
    armed.armed = True
    with heard.heard():
        for number in range(BELLS_KEPT):
            store.bell(f"/{number}")
        assert store.bell("/armed") is armed, "ZooKeeper rings it once"
        assert store.bell("/heard") is heard, "somebody waits for it"
        assert store.bell("/idle") is not idle
