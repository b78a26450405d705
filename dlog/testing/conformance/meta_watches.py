"""Checks of a MetaStore's watches: hints that arrive, late perhaps, but arrive."""

from __future__ import annotations

import asyncio

from dlog.errors import WriterClosed
from dlog.meta.store import MetaStore, Watch
from dlog.testing.conformance.meta_tools import PATIENCE_S, Make, check, refused, until

QUIET_MS = 30.0


async def _told(watch: Watch) -> None:
    assert await watch.wait(PATIENCE_S * 1000), "nobody told of the change"


async def _quiet(watch: Watch) -> None:
    """Hints may come twice, so a quiet watch is one that becomes quiet."""
    for _ in range(20):
        if not await watch.wait(QUIET_MS):
            return
    raise AssertionError("a watch tells of changes where there are none")


async def _begun(store: MetaStore) -> None:
    """A wait that was started before this is under way after it."""
    await asyncio.sleep(0)
    await store.get("/")
    await store.get("/")


@check
async def a_watch_is_quiet_when_nothing_changes(make: Make) -> None:
    store, other = await make(), await make()
    await store.create("/a", b"")
    async with store.watch("/a") as watch, store.watch("/none") as none:
        await _quiet(watch)
        await _quiet(none)
        await other.create("/b", b"")
        await _quiet(watch)
        await _quiet(none)


@check
async def a_watch_tells_of_each_kind_of_change(make: Make) -> None:
    store, other = await make(), await make()
    async with store.watch("/a") as watch:
        await _quiet(watch)
        version = (await other.create("/a", b"")).version
        await _told(watch)
        await _quiet(watch)
        version = await other.put("/a", b"1", version)
        await _told(watch)
        await _quiet(watch)
        child = await other.create("/a/b", b"")
        await _told(watch)
        await _quiet(watch)
        await other.delete("/a/b", child.version)
        await _told(watch)
        await _quiet(watch)
        await other.delete("/a", version)
        await _told(watch)
        await _quiet(watch)


@check
async def a_watch_wakes_a_wait_that_began_before_the_change(make: Make) -> None:
    store, other = await make(), await make()
    version = (await other.create("/a", b"")).version
    await store.sync()
    async with store.watch("/a") as watch:
        await _quiet(watch)
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await _begun(store)
        await other.put("/a", b"1", version)
        assert await waiting
        await store.sync()
        assert (await store.get("/a")).value == b"1"


@check
async def a_change_between_the_begin_and_the_wait_is_not_missed(make: Make) -> None:
    store, other = await make(), await make()
    version = (await store.create("/a", b"")).version
    async with store.watch("/a") as watch:
        await other.sync()
        await other.put("/a", b"1", version)
        await _told(watch)


@check
async def a_watch_tells_of_our_own_writes(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"")).version
    async with store.watch("/a") as watch:
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await _begun(store)
        await store.put("/a", b"1", version)
        assert await waiting


@check
async def a_watch_tells_of_a_presence_that_ends(make: Make) -> None:
    owner, store = await make(), await make()
    await owner.create("/dir/e", b"", ephemeral=True)
    await store.sync()
    async with store.watch("/dir/e") as node, store.watch("/dir") as parent:
        await _quiet(node)
        await _quiet(parent)
        telling = asyncio.gather(_told(node), _told(parent))
        await _begun(store)
        await owner.close()
        await telling


@check
async def many_watches_hear_of_one_change(make: Make) -> None:
    store, other = await make(), await make()
    version = (await other.create("/a", b"")).version
    await store.sync()

    async def hear() -> None:
        async with store.watch("/a") as watch:
            await _told(watch)

    watches = [asyncio.ensure_future(hear()) for _ in range(10)]

    async def changed() -> bool:
        nonlocal version
        version = await other.put("/a", b"", version)
        return all(watch.done() for watch in watches)

    await until(changed, "every watch hears of a change")
    await asyncio.gather(*watches)


@check
async def a_wait_ends_when_the_store_closes(make: Make) -> None:
    store = await make()
    await store.create("/a", b"")
    async with store.watch("/a") as watch:
        await _quiet(watch)
        waiting = asyncio.ensure_future(watch.wait(PATIENCE_S * 1000))
        await asyncio.sleep(0)
        await store.close()
        await refused(waiting, WriterClosed)
