"""What is special to the tree in memory: its names, several event loops, real interleaving."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dlog.errors import Conflict, LeaseLost
from dlog.meta.memory import MemoryMetaStore, MemoryTree, forget_tree, tree_named

PATIENCE_S = 20.0


def test_a_name_stands_for_one_tree_until_it_is_forgotten() -> None:
    first = tree_named("test-memory")
    try:
        assert tree_named("test-memory") is first
        assert tree_named("test-memory-other") is not first
    finally:
        forget_tree("test-memory")
        forget_tree("test-memory-other")
    assert tree_named("test-memory") is not first
    forget_tree("test-memory")


def run_in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(work()))  # type: ignore[operator]
    thread.start()
    return thread


async def test_clients_on_other_loops_lose_no_update_and_wake_a_watch_here() -> None:
    tree = MemoryTree()
    store = MemoryMetaStore(tree)
    await store.create("/n", b"0")

    async def increment() -> None:
        rival = MemoryMetaStore(tree)
        for _ in range(200):
            while True:
                seen = await rival.get("/n")
                try:
                    await rival.put("/n", b"%d" % (int(seen.value) + 1), seen.version)
                    break
                except Conflict:
                    continue
        await rival.close()

    async with store.watch("/n") as watch:
        threads = [run_in_thread(increment) for _ in range(4)]
        assert await watch.wait(PATIENCE_S * 1000)
        for thread in threads:
            await asyncio.to_thread(thread.join)
    assert (await store.get("/n")).value == b"800"
    await store.close()


async def test_a_watch_whose_loop_is_gone_stops_nobody() -> None:
    tree = MemoryTree()
    leaky = MemoryMetaStore(tree)

    async def begin_and_leave() -> None:
        await leaky.watch("/a").__aenter__()

    thread = run_in_thread(begin_and_leave)
    await asyncio.to_thread(thread.join)
    store = MemoryMetaStore(tree)
    await store.create("/a", b"")
    await store.close()
    await leaky.close()


async def test_somebody_may_come_between_a_read_and_a_write() -> None:
    store = MemoryMetaStore(MemoryTree())
    version = (await store.create("/n", b"")).version
    answers = await asyncio.gather(
        *(store.put("/n", b"", version) for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 2
    await store.close()


async def test_an_expired_session_can_be_expired_again_and_owns_nothing() -> None:
    tree = MemoryTree()
    store = MemoryMetaStore(tree)
    session = await store.session()
    tree.expire(session.id)
    tree.expire(session.id)
    with pytest.raises(LeaseLost):
        await store.create("/e", b"", ephemeral=True)
    await store.close()


async def test_sequential_numbers_survive_their_parent() -> None:
    store = MemoryMetaStore(MemoryTree())
    first = await store.create("/q/n-", b"", sequential=True)
    await store.delete(first.path, first.version)
    await store.delete("/q", (await store.get("/q")).version)
    assert (await store.create("/q/n-", b"", sequential=True)).path > first.path
    await store.close()
