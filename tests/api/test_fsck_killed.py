"""A repair that is killed at any of its steps: the same plan again, and another look, make the log
whole, message by message."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlog import backends, limits
from dlog.admin.fsck import relist
from dlog.admin.fsck.report import Ended
from dlog.effects import CreateNode, DeleteNode, Procedure, ReadNode, ReplaceNode
from dlog.errors import Corrupt, NotFound
from dlog.meta.cas import Seen
from dlog.meta.log_meta import LogMeta
from dlog.trace import REPAIR_POINTS
from tests.api.adapter import AioApi, Api
from tests.api.killing import Killed, killed_at
from tests.api.planting import (
    change_meta,
    checked,
    filled,
    kinds,
    meta_of,
    new_ledger,
    put_node,
    remove_node,
    repaired,
    stale,
    stores_of,
    with_segment,
)

SIDES = ("before", "after")
ROUNDS_MAX = 4  # the list first: before it is whole, no ledger is anybody's orphan
SEGMENTS = 14
WORLD = "killed"
TWICE = {"repair.page_written", "repair.page_deleted", "repair.ledger_deleted"}
CASES = [
    (point, side, hit)
    for point in sorted(REPAIR_POINTS)
    for side in SIDES
    for hit in range(1, 2 + (point in TWICE))
]

Pages = dict[str, bytes]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    yield AioApi(f"memory:{WORLD}")
    backends._memory_worlds.pop(WORLD, None)


@asynccontextmanager
async def damaged(api: Api) -> AsyncIterator[tuple[list[Any], Pages]]:
    """A log with something for every step to do: its messages, and its pages as they were."""
    await filled(api, SEGMENTS, each=1)
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        uid, epoch = meta.uid.encode(), str(meta.epoch).encode()
        for _ in range(2):  # of an epoch that is over
            await new_ledger(stores, log=uid, number=b"99", epoch=epoch)
    async with api.open_writer() as dead:
        await dead.append(b"and one that nobody sealed")
        messages = await api.read_all()
        async with stores_of(api) as stores:
            meta = await meta_of(stores)
            pages = await pages_of(stores)
            above, beside = meta.pages[:2]
            assert above.level == 1
            await remove_node(stores, stores.layout.page("log", above.number, above.level))
            leaf = stores.layout.page("log", beside.number)
            await put_node(stores, leaf, stale(pages[leaf]))
            for level in range(2):  # which nothing names
                await stores.meta.create(stores.layout.page("log", 0, level), pages[leaf])
            sealed = [each for each in meta.segments if each.sealed is not None][-1]
            await change_meta(stores, with_segment(sealed.number, bytes=7))
            assert meta.writer is not None
            await remove_node(stores, stores.layout.presence("log", meta.writer.token))
        yield messages, pages


async def pages_of(stores: Any) -> Pages:
    folder = stores.layout.pages("log")
    paths = [f"{folder}/{name}" for name in await stores.meta.children(folder)]
    return {path: (await stores.meta.get(path)).value for path in paths}


async def mended(api: Api) -> None:
    """Look and repair, until there is nothing to do."""
    for _ in range(ROUNDS_MAX):
        report = await checked(api, deep=True)
        if not report.plan:
            assert report.is_clean, (report.findings, report.not_checked)
            return
        await repaired(api, report)
    raise AssertionError(f"it does not end: {report.plan}")


async def killed_and_done_again(api: Api, point: str, side: str, hit: int) -> None:
    async with damaged(api) as (messages, pages):
        assert {"page_missing", "page_stale", "page_unused", "end_differs"} <= set(
            kinds(await checked(api))
        )
        with killed_at(point, side, hit) as reached:
            for _ in range(ROUNDS_MAX):
                report = await checked(api)
                try:
                    await repaired(api, report)
                except Killed:
                    break
        assert reached.hits == hit, "it was not reached"
        again = await repaired(api, report)
        ends = {each.ended for each in again.steps}
        assert ends <= {Ended.DONE, Ended.NOT_NEEDED}, again.steps
        await mended(api)
        assert await api.read_all() == messages
        async with stores_of(api) as stores:
            now = await pages_of(stores)
            assert {path: now[path] for path in pages} == pages, "byte by byte"
            assert not (await meta_of(stores)).unsealed
    assert [each.value for each in await api.read_all()] == [each.value for each in messages]


@pytest.mark.parametrize(("point", "side", "hit"), CASES)
async def test_killed_at_every_step_and_done_again(
    api: Api, point: str, side: str, hit: int
) -> None:
    await killed_and_done_again(api, point, side, hit)


# --- steps that could not be done again: this test would see it


def _only_once(path: str, value: bytes) -> Procedure[None]:
    """A page that is there already is an obstacle."""
    try:
        yield ReadNode(path)
    except NotFound:
        yield CreateNode(path, value, point="repair.page_written")
        return
    raise Corrupt("there is a page")


def _away_first(path: str, value: bytes) -> Procedure[None]:
    """And then the one that is right: a crash between leaves none, and the other is forgotten."""
    try:
        node = yield ReadNode(path)
        yield DeleteNode(path, node.version, point="repair.page_deleted")
    except NotFound:
        raise Corrupt("it was to be replaced") from None
    yield CreateNode(path, value, point="repair.page_written")


def _in_two_writes(path: str, seen: Seen, change: Any, **others: Any) -> Procedure[Seen]:
    """The segment is taken out, then put in again as it should be."""
    wanted: LogMeta = change(seen.meta)
    kept = tuple(each for each in wanted.segments if each in seen.meta.segments)
    without = dataclasses.replace(wanted, segments=kept)
    point = others["point"]
    version = yield ReplaceNode(path, without.to_bytes(), seen.version, point=point)
    return Seen(wanted, (yield ReplaceNode(path, wanted.to_bytes(), version, point=point)))


@pytest.mark.parametrize(
    ("name", "planted", "point", "side"),
    [
        ("put_node", _only_once, "repair.page_written", "after"),
        ("put_node", _away_first, "repair.page_deleted", "after"),
        ("change_log", _in_two_writes, "repair.resealed", "after"),
    ],
)
async def test_a_step_that_cannot_be_done_again_is_seen(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    planted: Any,
    point: str,
    side: str,
) -> None:
    monkeypatch.setattr(relist, name, planted)
    with pytest.raises(AssertionError):
        await killed_and_done_again(api, point, side, 1)
