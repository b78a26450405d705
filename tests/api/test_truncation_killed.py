"""Truncation, holds, the collector and the end of a log, killed at each of their steps: done again
they come to the same, nothing that is held or behind the point is lost, nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dlog
from dlog import backends, limits
from dlog.meta.log_meta import LogState
from dlog.trace import LIFE_POINTS
from tests.api.adapter import AioApi, Api
from tests.api.killing import Killed, killed_at
from tests.api.planting import checked, meta_of, stores_of

SIDES = ("before", "after")
MESSAGES = 14
HELD = 9  # seqs below are truncated; by the second hold, which moved
WORLD = "killed-life"
TWICE = {"collect.ledger_deleted", "truncate.marked"}
CASES = [
    (point, side, hit)
    for point in sorted(LIFE_POINTS)
    for side in SIDES
    for hit in range(1, 2 + (point in TWICE))
]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setattr(limits, "META_PAGE_ITEMS", 2)
    yield AioApi(f"memory:{WORLD}")
    backends._memory_worlds.pop(WORLD, None)


async def _filled(api: Api, log: str) -> None:
    options = dlog.LogOptions(deletion_grace_s=0)
    async with api.open_writer(log, create=options) as writer:
        for number in range(MESSAGES):
            await writer.append(b"%d" % number)
            await writer.rotate()


async def _live(api: Api) -> None:
    async with api.connect() as connected:
        admin = connected.admin
        await admin.hold("log", "reader", 5)
        await admin.truncate("log", 5)
        await admin.hold("log", "reader", HELD)
        assert (await admin.truncate("log", "latest")).head_seq == HELD
        await admin.collect("log")
        await admin.drop_hold("log", "reader")
        await admin.hold("log", "other", HELD)
        await admin.terminate("log")


async def _done_again(api: Api) -> None:
    """By somebody who finds it as it was left."""
    async with api.connect() as connected:
        admin = connected.admin
        await admin.hold("log", "other", HELD)
        for hold in await admin.holds("log"):
            if hold.name == "reader":
                await admin.drop_hold("log", "reader")
        assert (await admin.truncate("log", "latest")).head_seq == HELD
        collected = await admin.collect("log")
        assert not collected.problems
        await admin.terminate("log")


async def _live_and_end(api: Api) -> None:
    """And another log, which its writer ends."""
    await _live(api)
    async with api.open_writer("ended") as writer:
        await writer.append(b"last")
        await writer.terminate()


async def _stray_page(api: Api) -> None:
    async with stores_of(api) as stores:
        page = stores.layout.pages("log")
        some = (await stores.meta.children(page))[0]
        value = (await stores.meta.get(f"{page}/{some}")).value
        await stores.meta.create(stores.layout.page("log", 0), value)


async def killed_and_done_again(api: Api, point: str, side: str, hit: int) -> None:
    await _filled(api, "log")
    await _stray_page(api)
    with killed_at(point, side, hit), pytest.raises(Killed):
        await _live_and_end(api)
    for _ in range(2):  # the second time nothing is left to do
        await _done_again(api)
    values = [message.value for message in await api.read_all("log", on_truncated="jump")]
    assert values == [b"%d" % number for number in range(HELD, MESSAGES)]
    async with stores_of(api) as stores:
        meta = await meta_of(stores)
        assert (meta.state, meta.deleting, meta.deleting_pages) == (LogState.TERMINATED, (), ())
    report = await checked(api, deep=True)
    assert report.is_clean, (report.findings, report.not_checked)


@pytest.mark.parametrize(("point", "side", "hit"), CASES)
async def test_killed_at_every_step_and_done_again(
    api: Api, point: str, side: str, hit: int
) -> None:
    await killed_and_done_again(api, point, side, hit)
