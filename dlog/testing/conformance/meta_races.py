"""Checks of a MetaStore under clients that race: one wins, nothing is lost, all see it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound
from dlog.meta.store import MetaStore
from dlog.testing.conformance.meta_tools import Make, check


async def _increment(store: MetaStore, path: str) -> None:
    while True:
        await store.sync()
        seen = await store.get(path)
        try:
            await store.put(path, b"%d" % (int(seen.value) + 1), seen.version)
        except Conflict:
            continue
        return


@check
async def racing_increments_lose_no_update(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    await stores[0].create("/n", b"0")

    async def many(store: MetaStore) -> None:
        for _ in range(10):
            await _increment(store, "/n")

    await asyncio.gather(*(many(store) for store in stores for _ in range(2)))
    await stores[0].sync()
    assert (await stores[0].get("/n")).value == b"80"


async def _winners(calls: list[Coroutine[Any, Any, Any]], *kinds: type[DlogError]) -> list[int]:
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, kinds):
            raise answer
    return [i for i, answer in enumerate(answers) if not isinstance(answer, BaseException)]


@check
async def one_of_many_creates_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    for turn in range(5):
        calls = [s.create(f"/deep/er/{turn}", b"%d" % i) for i, s in enumerate(stores)]
        winners = await _winners(list(calls), AlreadyExists)
        assert len(winners) == 1, f"{winners} all made the node"
        await stores[0].sync()
        assert (await stores[0].get(f"/deep/er/{turn}")).value == b"%d" % winners[0]


@check
async def one_of_many_puts_at_a_version_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    version = (await stores[0].create("/a", b"")).version
    calls = [store.put("/a", b"%d" % i, version) for i, store in enumerate(stores)]
    winners = await _winners(list(calls), Conflict)
    assert len(winners) == 1, f"{winners} all put at version {version}"
    await stores[0].sync()
    assert (await stores[0].get("/a")).value == b"%d" % winners[0]


@check
async def one_of_many_deletes_wins(make: Make) -> None:
    stores = [await make() for _ in range(4)]
    version = (await stores[0].create("/a", b"")).version
    winners = await _winners([store.delete("/a", version) for store in stores], NotFound)
    assert len(winners) == 1, f"{winners} all deleted the node"


@check
async def a_delete_and_a_child_do_not_both_succeed(make: Make) -> None:
    first, second = await make(), await make()
    for turn in range(5):
        path = f"/p{turn}"
        version = (await first.create(path, b"parent")).version
        deleted, child = await asyncio.gather(
            first.delete(path, version), second.create(f"{path}/c", b""), return_exceptions=True
        )
        assert not isinstance(child, BaseException), child  # a missing parent would be made
        await first.sync()
        value = (await first.get(path)).value
        assert value == (b"parent" if isinstance(deleted, Conflict) else b"")


@check
async def an_answered_write_is_seen_by_others_after_sync(make: Make) -> None:
    writer, reader = await make(), await make()
    version = (await writer.create("/a", b"0")).version
    for count in range(1, 20):
        version = await writer.put("/a", b"%d" % count, version)
        await reader.sync()
        assert await reader.get("/a") == (b"%d" % count, version)


@check
async def what_was_written_outlives_the_store_that_wrote_it(make: Make) -> None:
    writer = await make()
    version = (await writer.create("/a/b", b"kept")).version
    await writer.close()
    reader = await make()
    assert await reader.get("/a/b") == (b"kept", version)


@check
async def a_cancelled_call_leaves_the_store_usable(make: Make) -> None:
    store = await make()
    version = (await store.create("/a", b"0")).version
    for _ in range(5):
        call = asyncio.ensure_future(store.put("/a", b"1", version))
        await asyncio.sleep(0)
        call.cancel()
        try:
            version = await call
        except asyncio.CancelledError:
            await store.sync()
            version = (await store.get("/a")).version
    # A cancelled write may still be under way, so only the compare-and-set loop is sure to end.
    before = await store.get("/a")
    assert before.value in (b"0", b"1")
    await store.create("/n", b"7")
    await _increment(store, "/n")
    assert (await store.get("/n")).value == b"8"
