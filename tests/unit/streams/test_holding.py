"""Making a hold on a stream while the stream is removed, or while others use its node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from dlog import aio, backends, limits
from dlog.admin.admin import Admin
from dlog.meta.stream_holds import StreamHold

NAME = "clicks"
HOLD = "audit"
_worlds = itertools.count()


@asynccontextmanager
async def a_client() -> AsyncIterator[aio.Client]:
    name = f"stream-holding-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{name}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(name, None)


async def held_up(
    client: aio.Client, patch: pytest.MonkeyPatch, method: str, meanwhile: Any
) -> None:
    """Hold the stream, and call `meanwhile` before the first call of this method of the metadata
    store that names the hold's node."""
    stores: Any = await client._stores(False)
    path = stores.layout.stream_hold(NAME, HOLD)
    genuine = getattr(stores.meta, method)
    done = False

    async def slow(asked: str, *given: Any, **more: Any) -> Any:
        nonlocal done
        if asked == path and not done:
            done = True
            await meanwhile()
        return await genuine(asked, *given, **more)

    with patch.context() as patched:
        patched.setattr(stores.meta, method, slow)
        await client.stream(NAME).hold(HOLD)
    assert done


async def stream_holds(client: aio.Client) -> list[str]:
    stores: Any = await client._stores(False)
    try:
        return list(await stores.meta.children(stores.layout.stream_holds(NAME)))
    except dlog.NotFound:
        return []


async def test_a_hold_of_a_stream_that_is_removed_meanwhile_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The remover looks for holds before the node is made: the node stays for ever."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        with pytest.raises(dlog.NotFound, match="was removed"):
            await held_up(client, monkeypatch, "create", stream.remove)
        assert await stream_holds(client) == []


async def test_a_maker_that_slept_takes_nothing_from_a_stream_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The maker read the stream that was removed, and finds the hold of the next one: that one's
    holder loses what it relies on."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)

        async def make_again() -> None:
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"x", key=b"k")
            await again.hold(HOLD)

        with pytest.raises(dlog.NotFound, match="another one was made"):
            await held_up(client, monkeypatch, "get", make_again)
        again = client.stream(NAME)
        assert [each.name for each in await again.holds()] == [HOLD]
        assert (await client.admin.truncate("clicks/0", "latest")).held_by == (HOLD,)


async def test_a_maker_that_slept_holds_no_log_of_a_stream_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The maker slept behind its node: its holds on the new stream's logs would bind for ever, and
    no holder of the new stream knows of them."""
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        genuine = Admin.hold

        async def slow(self: Admin, *given: Any, **more: Any) -> Any:
            monkeypatch.setattr(Admin, "hold", genuine)
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"x", key=b"k")
            return await genuine(self, *given, **more)

        monkeypatch.setattr(Admin, "hold", slow)
        with pytest.raises(dlog.NotFound, match="another one was made"):
            await stream.hold(HOLD)
        assert await client.admin.holds("clicks/0") == ()
        assert await stream_holds(client) == []


@pytest.mark.parametrize("who", ["a holder", "a founder of a group"])
async def test_a_node_that_keeps_changing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Somebody else replaces the node behind each look: the maker stops with an error that may be
    tried again, and does not turn for ever."""
    monkeypatch.setattr(limits, "META_ATTEMPTS_MAX", 5)
    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        stores: Any = await client._stores(False)
        hold = HOLD if who == "a holder" else f"group g of {NAME}"
        path = stores.layout.stream_hold(NAME, hold)
        other = StreamHold(hold, "of another stream", "bob", 0)
        await stores.meta.create(path, other.to_bytes())
        put, tries = stores.meta.put, 0

        async def too_late(asked: str, value: bytes, version: int) -> Any:
            nonlocal tries
            if asked == path:
                tries += 1
                assert tries <= limits.META_ATTEMPTS_MAX
                await put(path, other.to_bytes(), version)
            return await put(asked, value, version)

        monkeypatch.setattr(stores.meta, "put", too_late)
        if who == "a holder":
            with pytest.raises(dlog.Conflict, match="changed 5 times"):
                await stream.hold(HOLD)
        else:
            await found_once(client, stores)
        assert tries == limits.META_ATTEMPTS_MAX


async def found_once(client: aio.Client, stores: Any) -> None:
    from dlog.groups.founding import found
    from dlog.groups.options import WorkerOptions
    from dlog.groups.places import GroupPlaces
    from dlog.streams.driver import StreamDriver

    places = GroupPlaces(stores.layout, "g", NAME)
    async with asyncio.timeout(20):
        with pytest.raises(dlog.Conflict, match="changed 5 times"):
            await found(stores, StreamDriver(stores), places, WorkerOptions(), client.admin)
