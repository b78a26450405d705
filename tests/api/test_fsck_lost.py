"""Metadata that is gone, in part, under ledgers that are there: `fsck` says so, and of what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlog.drive import Stores
from dlog.errors import NotFound
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta
from tests.api.adapter import Api
from tests.api.grouping import GROUP, STREAM, Seen, seen_all, send, work
from tests.api.planting import checked, filled, stores_of
from tests.api.waiting import until

pytestmark = pytest.mark.crosswise(seconds=1)


async def lose(stores: Stores, path: str) -> None:
    """The node, and all below it."""
    try:
        names = await stores.meta.children(path)
        for name in names:
            await lose(stores, f"{path}/{name}")
        await stores.meta.delete(path, (await stores.meta.get(path)).version)
    except NotFound:
        pass


@asynccontextmanager
async def a_world(api: Api) -> AsyncIterator[Any]:
    """A log, and a stream that was split, with a group that has read all of it; everything is
    closed."""
    await filled(api, 2)
    seen = Seen()
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=2)
        async with stream.open_writer() as writer:
            await send(writer, 20)
            await stream.split(0)
            await send(writer, 20, first=20)
            async with work(client, seen.process):
                await seen_all(seen, 40)

                async def is_finished() -> bool:
                    told = await client.group(GROUP, STREAM).describe()
                    return told.shards[0].state == "finished"

                await until(is_finished)
        yield client


def found(report: Any) -> set[tuple[str, str | None]]:
    return {(each.kind.value, each.where.log) for each in report.damage}


async def test_nothing_is_wrong_with_a_stream_a_group_and_what_was_removed(api: Api) -> None:
    async with a_world(api) as client:
        assert found(await checked(api)) == set()
        assert dict(await client.admin.unlisted()) == {}
        await client.admin.truncate(f"{STREAM}/0", "latest")
        await client.stream(STREAM).trim()
        await client.admin.remove("log")
        assert found(await checked(api)) == set()
        await client.stream(STREAM).remove()
        assert found(await checked(api)) == set(), "a group may outlive its stream"
        await client.create_stream("fresh", shards=3)
        assert found(await checked(api)) == set(), "its logs are not made yet"


@pytest.mark.parametrize("log", ["log", f"{STREAM}/0", f"{STREAM}/1"])
async def test_a_log_whose_node_is_gone(api: Api, log: str) -> None:
    async with a_world(api) as client:
        uid = (await client.admin.status(log)).uid
        async with stores_of(api) as stores:
            await lose(stores, stores.layout.log(log))
        report = await checked(api)
        assert any(each.kind == "unknown_ledger" and uid in each.told for each in report.damage)
        if log != "log":
            assert ("log_missing", log) in found(report)
        assert list(await client.admin.unlisted()) == [uid]
        assert not report.plan, "what is left of a log is not removed"


async def test_a_shard_that_was_removed_is_told_once_though_a_group_has_a_place_in_it(
    api: Api,
) -> None:
    shard = f"{STREAM}/1"
    async with a_world(api):
        async with stores_of(api) as stores:
            path = stores.layout.log(shard)
            there = await stores.meta.get(path)
            meta = LogMeta.from_bytes(there.value, where=path)
            removed = meta.doomed(0, WriterMark("somebody", "elsewhere", 0))
            await stores.meta.put(path, removed.to_bytes(), there.version)
        missing = [each for each in (await checked(api)).damage if each.kind == "log_missing"]
        assert [(each.where.log, "removed" in each.told) for each in missing] == [(shard, True)]


async def test_all_logs_are_gone(api: Api) -> None:
    async with a_world(api) as client:
        uids = {(await client.admin.status(each.name)).uid for each in await client.admin.list()}
        async with stores_of(api) as stores:
            await lose(stores, stores.layout.logs)
            await lose(stores, stores.layout.streams)
            await lose(stores, stores.layout.groups)
        assert await client.admin.list() == []
        assert set(await client.admin.unlisted()) == uids
        report = await checked(api)
        assert [each.kind.value for each in report.damage] == ["unknown_ledger"] * len(uids)


async def test_a_stream_whose_node_is_gone(api: Api) -> None:
    async with a_world(api):
        async with stores_of(api) as stores:
            await lose(stores, stores.layout.stream(STREAM))
        report = await checked(api)
        (finding,) = report.damage
        assert finding.kind.value == "stream_missing"
        assert STREAM in str(finding.where) or STREAM in finding.told


async def test_a_group_whose_charter_is_gone(api: Api) -> None:
    async with a_world(api):
        async with stores_of(api) as stores:
            await lose(stores, f"{stores.layout.group(GROUP, STREAM)}/charter")
        (finding,) = (await checked(api)).damage
        assert (finding.kind.value, finding.severity.value) == ("group_broken", "bad")
        assert repr(GROUP) in finding.told


async def test_a_node_that_says_nothing_readable(api: Api) -> None:
    async with a_world(api):
        async with stores_of(api) as stores:
            path = stores.layout.stream(STREAM)
            await stores.meta.put(path, b"{", (await stores.meta.get(path)).version)
        kinds = {each.kind.value for each in (await checked(api)).damage}
        assert kinds == {"meta_unreadable"}
